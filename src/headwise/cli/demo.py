"""``headwise demo``: every feature on built-in examples, in one report."""

from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from headwise.cli.output import write_stderr, write_stdout
from headwise.cli.reporting import PATH, build_command, click_options
from headwise.document.files import check_place, write
from headwise.errors import MissingExtra
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.document import Document

SUMMARY = Text("Run every feature once on built-in examples and write one HTML report.")

REPORT = Path("headwise-demo.html")
MODEL = "minilm"
SENTENCE = "The keys that the teacher left on the table were hers, so she came back for them."
TARGET = "headwise.MultiheadAttention"
TITLE = Text("headwise: multi-head attention, read, proved and seen")
ON_SCREEN = ("X", "A_1", "A_2", "Output")
"""The matrices of the first example shown on the screen; the report contains all matrices."""

NEEDED = (("jinja2", "html"), ("latex2mathml", "html"), ("transformers", "inspect"))
"""The packages that the report needs, each with the extra that installs it."""

Say = Callable[[Text], None]


def command(lang: Lang) -> click.Command:
    """Return the command ``demo``, in the reader's language."""
    texts = {"--output": Text("The file of the report.")}
    kinds = {"--output": {"type": PATH, "default": REPORT, "show_default": True}}
    parameters = click_options(texts, kinds, lang)
    return build_command("demo", _run, parameters, lang, SUMMARY, SUMMARY)


def _run(values: SimpleNamespace, lang: Lang) -> int:
    from headwise.document import html, terminal

    def say(text: Text) -> None:
        write_stderr(f"headwise: {text.to(lang)} …")

    output: Path = values.output
    check_place(output)
    for package, extra in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra.of(package, extra)
    fragments = []
    for document, shown in _documents(say):
        fragments.append(html.fragment(document))
        write_stdout(terminal.render(shown, lang))
    write(output, html.page(TITLE, fragments, lang))
    label = Text("the full report, in English and Chinese").to(lang)
    write_stdout(f"{label}: {output.resolve()}")
    return 0


def _documents(say: Say) -> Iterator[tuple["Document", "Document"]]:
    """Yield for each part of the demo the whole document and the version for the screen."""
    say(Text("explain: every number of 我 爱 你 with two heads"))
    yield _explained()
    say(Text("check: a worked example with two wrong numbers"))
    yield _checked()
    say(Text("verify: {target}", target=TARGET))
    yield _verified()
    yield _inspected(say)


def _explained() -> tuple["Document", "Document"]:
    import torch

    from headwise.cli.explain import EXAMPLE, HEADS, TOKENS
    from headwise.document import Document, Matrix
    from headwise.explain.steps import steps
    from headwise.explain.trace import trace

    whole = steps(trace(torch.tensor(EXAMPLE, dtype=torch.float64), HEADS, tokens=TOKENS))
    few = [b for b in whole.blocks if isinstance(b, Matrix) and b.symbol.plain in ON_SCREEN]
    return whole, Document(whole.title, (whole.blocks[0], *few), whole.precision)


def _checked() -> tuple["Document", "Document"]:
    from headwise.check import check
    from headwise.check.checker import document
    from headwise.document import Code, Document

    article = files("headwise.cli").joinpath("demo_article.md").read_text(encoding="utf-8")
    report = document(check(article, source="demo_article.md"))
    lines = [f"{i:3}  {line}" for i, line in enumerate(article.splitlines(), 1)]
    source = Code("\n".join(lines), "markdown")
    return Document(report.title, (source, *report.blocks), report.precision), report


def _verified() -> tuple["Document", "Document"]:
    from headwise.verify.diagnosis.verdict import verify
    from headwise.verify.report import data
    from headwise.verify.report.report_document import document
    from headwise.verify.target import load

    report = document(data(verify(load(TARGET), TARGET)))
    return report, report


def _inspected(say: Say) -> tuple["Document", "Document"]:
    from headwise.document import Document, Heading, HeatMap
    from headwise.heads.inspection import inspect
    from headwise.heads.inspection_report import report
    from headwise.heads.models.load import load

    loaded = load(MODEL, say)
    say(Text("inspect: every head of a model on one sentence"))
    whole = report(inspect(loaded, SENTENCE))
    shown = list(takewhile(lambda block: not isinstance(block, HeatMap), whole.blocks))
    maps = max(i for i, block in enumerate(shown) if isinstance(block, Heading))
    return whole, Document(whole.title, shown[:maps], whole.precision)

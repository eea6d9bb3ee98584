"""The result of a check: wrong numbers, unmatched arrays, and the report as document and JSON."""

import json
from dataclasses import dataclass

from headwise.document import Document, Heading, Notice, Paragraph, Table
from headwise.document.blocks import Block
from headwise.lang import Text, joined, same

FORMAT = "headwise.check/1"

TITLE = Text("Check of a worked example")


@dataclass(frozen=True)
class Finding:
    """One printed number that is wrong.

    Attributes:
        line: its line, from 1.
        start: its offset in the article.
        printed: the number as printed.
        right: the exact value at the printed precision.
        what: the quantity, such as "head 1, softmax, row 0, column 2".
    """

    line: int
    start: int
    printed: str
    right: str
    what: Text


@dataclass(frozen=True)
class Unmatched:
    """A printed array of ``count`` numbers that was not checked: its quantity is unclear."""

    line: int
    text: str
    why: Text
    count: int = 1


@dataclass(frozen=True)
class CheckReport:
    """The result of checking one article.

    Attributes:
        source: the article's name.
        checked: how many printed numbers were compared with the computation.
        findings: the wrong ones, in the order of the article.
        unmatched: the arrays that were not checked.
        notes: the assumed input, heads, weights, mask and index bases.
    """

    source: str
    checked: int
    findings: tuple[Finding, ...]
    unmatched: tuple[Unmatched, ...]
    notes: tuple[Text, ...]

    @property
    def unmatched_count(self) -> int:
        """How many printed numbers could not be matched."""
        return sum(array.count for array in self.unmatched)


def verdict(report: CheckReport) -> Text:
    """The result in one sentence."""
    if not report.checked and not report.findings:
        return Text("{source}: nothing was checked", source=report.source)
    wrong = len(report.findings)
    parts = [
        Text("{count} wrong", count=wrong) if wrong else Text("nothing wrong"),
        Text("{count} numbers checked", count=report.checked),
    ]
    if report.unmatched_count:
        parts.append(Text("{count} could not be matched", count=report.unmatched_count))
    result = joined(Text(", "), parts)
    return Text("{source}: {result}", source=report.source, result=result)


def document(report: CheckReport) -> Document:
    """The report: verdict, wrong numbers, unmatched arrays and assumptions."""
    blocks: list[Block] = [Notice(bool(report.checked) and not report.findings, verdict(report))]
    if report.findings:
        blocks += [Heading(Text("Wrong")), _findings(report)]
    if report.unmatched:
        blocks += [Heading(Text("Could not match")), _unmatched(report)]
    blocks.append(Heading(Text("Taken as given")))
    blocks += [Paragraph(note) for note in report.notes]
    return Document(TITLE, tuple(blocks))


def _findings(report: CheckReport) -> Table:
    head = (Text("line"), Text("printed"), Text("right value"), Text("what it is"))
    rows = [
        (same(str(finding.line)), same(finding.printed), same(finding.right), finding.what)
        for finding in report.findings
    ]
    return Table(head, tuple(rows))


def _unmatched(report: CheckReport) -> Table:
    head = (Text("line"), Text("printed"), Text("why"))
    rows = [(same(str(array.line)), same(array.text), array.why) for array in report.unmatched]
    return Table(head, tuple(rows))


def as_json(report: CheckReport) -> str:
    """The report as JSON: "format", "source", "wrong", "findings", "unmatched", "notes"."""
    data = {
        "format": FORMAT,
        "source": report.source,
        "wrong": len(report.findings),
        "checked": report.checked,
        "findings": [
            {
                "line": finding.line,
                "printed": finding.printed,
                "right": finding.right,
                "what": _bilingual(finding.what),
            }
            for finding in report.findings
        ],
        "unmatched": [
            {"line": array.line, "printed": array.text, "why": _bilingual(array.why)}
            for array in report.unmatched
        ],
        "notes": [_bilingual(note) for note in report.notes],
    }
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def _bilingual(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}

"""Check a worked example: recompute each printed number, and report the wrong ones."""

import json
from collections import Counter
from dataclasses import dataclass

from headwise.check.article_lines import normalized
from headwise.check.expression_tree import BadArticle
from headwise.check.settings.setting import CheckOptions
from headwise.check.settings.stated_sizes import read_sizes
from headwise.check.statements import read_statements
from headwise.check.verdicts.computations import contradictions, read_computations
from headwise.check.verdicts.findings import FOLLOWS, LAST_DIGIT, WRONG, Finding, Unmatched
from headwise.document import Document, Heading, Notice, Paragraph, Table
from headwise.document.blocks import Block
from headwise.document.reading import ArticleText
from headwise.errors import BadFile
from headwise.lang import Text, joined, same

MOST_CHARACTERS = 1_000_000
"""The longest article that is checked."""

FORMAT = "headwise.check/1"


@dataclass(frozen=True)
class CheckReport:
    """The result of checking one article.

    ``checked`` numbers were compared with the computation; ``notes`` are the assumed input, heads,
    weights, mask and index bases.
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
    counts = Counter(finding.verdict for finding in report.findings)
    parts = []
    if counts[WRONG] or counts[FOLLOWS]:
        parts.append(Text("{count} wrong", count=counts[WRONG] + counts[FOLLOWS]))
    elif any(array.labelled for array in report.unmatched):
        parts.append(Text("not everything could be checked"))
    else:
        parts.append(Text("nothing wrong"))
    parts.append(Text("{count} numbers checked", count=report.checked))
    if counts[LAST_DIGIT]:
        parts.append(Text("{count} off in the last digit only", count=counts[LAST_DIGIT]))
    if report.unmatched_count:
        parts.append(Text("{count} could not be matched", count=report.unmatched_count))
    return Text("{source}: {result}", source=report.source, result=joined(Text(", "), parts))


def is_clean(report: CheckReport) -> bool:
    """Whether no number is wrong, and every array that names a quantity was checked."""
    wrong = any(finding.verdict != LAST_DIGIT for finding in report.findings)
    return bool(report.checked) and not wrong and not any(a.labelled for a in report.unmatched)


SECTIONS = (
    (WRONG, Text("Wrong")),
    (FOLLOWS, Text("Follows from an earlier wrong number")),
    (LAST_DIGIT, Text("Last digit only, from rounded steps")),
)


_UNCONVERTED = ArticleText("")


def document(report: CheckReport, article: ArticleText = _UNCONVERTED) -> Document:
    """Return the report: verdict, wrong numbers by verdict, unmatched arrays and assumptions.

    ``article`` gives the place of each line in a converted file, such as a notebook.
    """
    blocks: list[Block] = [Notice(is_clean(report), verdict(report))]
    for kind, title in SECTIONS:
        found = [finding for finding in report.findings if finding.verdict == kind]
        if found:
            blocks += [Heading(title), _findings(found, report, article)]
    if report.unmatched:
        titles = (Text("line"), Text("printed"), Text("why"))
        arrays = [(article.place(a.line), same(a.text), a.why) for a in report.unmatched]
        blocks += [Heading(Text("Could not be checked")), Table(titles, arrays)]
    blocks.append(Heading(Text("Taken as given")))
    blocks += [Paragraph(note) for note in report.notes]
    return Document(Text("Check of a worked example"), tuple(blocks))


def _findings(found: list[Finding], report: CheckReport, article: ArticleText) -> Table:
    """The findings of one verdict; a cause stands once, at the first number that it explains."""
    lines = {finding.start: finding.line for finding in report.findings}
    last = Text("cause")
    if found[0].verdict == FOLLOWS:
        last = Text("from line")
    elif found[0].verdict == LAST_DIGIT:
        last = Text("")
    head = (Text("line"), Text("printed"), Text("right value"), Text("what it is"), last)
    rows, named = [], set[int | None]()
    for f in found:
        reason = Text("")
        if f.verdict == FOLLOWS and f.root in lines:
            reason = article.place(lines[f.root])
        elif f.cause is not None and f.root not in named:
            reason = f.cause
        named.add(f.root)
        rows.append((article.place(f.line), same(f.printed), same(f.right), f.what, reason))
    size = 4 if found[0].verdict == LAST_DIGIT else 5
    return Table(head[:size], [row[:size] for row in rows])


def as_json(report: CheckReport, article: ArticleText = _UNCONVERTED) -> str:
    """The report as JSON: "format", "source", "wrong", "findings", "unmatched", "notes".

    "wrong" counts the findings whose "verdict" is "wrong" or "follows"; "root" is the line of the
    wrong number that a finding starts from. "line" counts in the text that was read; for a
    converted file, such as a notebook, "place" gives the place in the file.
    """

    def located(line: int) -> dict[str, object]:
        place = {"place": _bilingual(article.place(line))} if article.converted else {}
        return {"line": line, **place}

    lines = {finding.start: finding.line for finding in report.findings}
    data = {
        "format": FORMAT,
        "source": report.source,
        "wrong": sum(f.verdict != LAST_DIGIT for f in report.findings),
        "checked": report.checked,
        "findings": [
            {
                **located(f.line),
                "printed": f.printed,
                "right": f.right,
                "what": _bilingual(f.what),
                "verdict": f.verdict,
                "cause": None if f.cause is None else _bilingual(f.cause),
                "root": None if f.root is None else lines.get(f.root),
            }
            for f in report.findings
        ],
        "unmatched": [
            {**located(a.line), "printed": a.text, "why": _bilingual(a.why), "labelled": a.labelled}
            for a in report.unmatched
        ],
        "notes": [_bilingual(note) for note in report.notes],
    }
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def _bilingual(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}


def check(
    text: str, options: CheckOptions | None = None, *, source: str = "article"
) -> CheckReport:
    """Compare every number of a worked example with a float64 computation.

    The article is read into parts, settings and claims; a claim is judged by the settings in force
    at its place.

    Args:
        text: the article: Markdown, LaTeX, HTML tables, lists, prints of arrays, or prose.
        options: inputs that the article does not state.
        source: the name of the article in the report.

    Raises:
        BadFile: if no input is found, it is too large, or a statement cannot be computed.
        BadValue: if sizes do not fit, such as heads that do not divide the width.

    Example:
        >>> article = "One head, X = [[1, 0], [0, 1]]. Softmax: [[0.67, 0.33], [0.32, 0.67]]"
        >>> [(f.printed, f.right, f.what.en) for f in check(article).findings]
        [('0.32', '0.33', 'head 1, softmax, row 1, column 0')]
    """
    try:
        return _checked(text, options or CheckOptions(), source)
    except BadArticle as error:
        raise BadFile("{source}: {problem}", source=source, problem=error.text) from None


def _checked(text: str, options: CheckOptions, source: str) -> CheckReport:
    if len(text) > MOST_CHARACTERS:
        raise BadArticle(
            "expected at most {most} characters, got {count}; cut out the worked example",
            most=MOST_CHARACTERS,
            count=len(text),
        )
    flat = normalized(text)
    article = read_statements(flat)
    computations = read_computations(article, flat, options)
    findings: dict[int, Finding] = {}
    unmatched: list[Unmatched] = []
    checked: set[int] = set()
    notes: list[Text] = []
    for computation in computations:
        verdicts = computation.verdicts
        findings |= verdicts.findings
        unmatched += verdicts.unmatched
        checked |= verdicts.checked - verdicts.judge.setting.inputs
        notes += [note for note in computation.notes if note not in notes]
    if len(computations) == 1:
        findings |= contradictions(read_sizes(flat), computations[0].verdicts.judge.setting)
    return CheckReport(
        source=source,
        checked=len(checked),
        findings=tuple(findings[start] for start in sorted(findings)),
        unmatched=tuple(unmatched),
        notes=tuple(notes),
    )

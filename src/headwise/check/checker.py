"""Check a worked example: recompute each printed number, and report the wrong ones."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from headwise.check.article_lines import normalized
from headwise.check.derivation import Part, entries, parts
from headwise.check.expression_tree import BadArticle, Grid, Node, Printed, leaves, numbers
from headwise.check.labels import IndexBases
from headwise.check.matching import MOST_NODES, Matcher
from headwise.check.problem_setup import CheckOptions, Setup, setups
from headwise.check.stated_values import StatedSizes, read_sizes
from headwise.check.statements import Statement, is_empty, read_statements
from headwise.check.targets import Quantities, consistent, quantity_errors, value
from headwise.document import Document, Heading, Notice, Paragraph, Table
from headwise.document.blocks import Block
from headwise.document.reading import ArticleText
from headwise.errors import BadFile
from headwise.explain.trace import Projections, Trace, trace
from headwise.lang import Text, joined, same

FORMAT = "headwise.check/1"


@dataclass(frozen=True)
class Finding:
    """One wrong number: its line (from 1) and offset, its text, the right value, and what it is.

    The right value has the printed precision; an example of ``what`` is "head 1, softmax, row 0".
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
    wrong = len(report.findings)
    parts = [Text("{count} wrong", count=wrong) if wrong else Text("nothing wrong")]
    parts.append(Text("{count} numbers checked", count=report.checked))
    if report.unmatched_count:
        parts.append(Text("{count} could not be matched", count=report.unmatched_count))
    return Text("{source}: {result}", source=report.source, result=joined(Text(", "), parts))


_UNCONVERTED = ArticleText("")


def document(report: CheckReport, article: ArticleText = _UNCONVERTED) -> Document:
    """The report: verdict, wrong numbers, unmatched arrays and assumptions.

    ``article`` says where a line of a converted file stands in it.
    """
    blocks: list[Block] = [Notice(bool(report.checked) and not report.findings, verdict(report))]
    if report.findings:
        head = (Text("line"), Text("printed"), Text("right value"), Text("what it is"))
        rows = [
            (article.place(f.line), same(f.printed), same(f.right), f.what) for f in report.findings
        ]
        blocks += [Heading(Text("Wrong")), Table(head, rows)]
    if report.unmatched:
        titles = (Text("line"), Text("printed"), Text("why"))
        arrays = [(article.place(a.line), same(a.text), a.why) for a in report.unmatched]
        blocks += [Heading(Text("Could not match")), Table(titles, arrays)]
    blocks.append(Heading(Text("Taken as given")))
    blocks += [Paragraph(note) for note in report.notes]
    return Document(Text("Check of a worked example"), tuple(blocks))


def as_json(report: CheckReport, article: ArticleText = _UNCONVERTED) -> str:
    """The report as JSON: "format", "source", "wrong", "findings", "unmatched", "notes".

    "line" counts in the text that was read; where a file was converted, such as a notebook,
    "place" says where that is in the file.
    """

    def located(line: int) -> dict[str, object]:
        place = {"place": _bilingual(article.place(line))} if article.converted else {}
        return {"line": line, **place}

    data = {
        "format": FORMAT,
        "source": report.source,
        "wrong": len(report.findings),
        "checked": report.checked,
        "findings": [
            {**located(f.line), "printed": f.printed, "right": f.right, "what": _bilingual(f.what)}
            for f in report.findings
        ],
        "unmatched": [
            {**located(a.line), "printed": a.text, "why": _bilingual(a.why)}
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
    flat = normalized(text)
    statements = read_statements(flat)
    sizes = read_sizes(flat)
    runs = (run for setup in setups(statements, sizes, options) for run in _runs(setup, statements))
    best = min(runs, key=lambda run: run.cost, default=None)
    if best is None:
        raise BadArticle("nothing to check")
    findings = {**best.findings, **_contradictions(sizes, best.setup)}
    return CheckReport(
        source=source,
        checked=len(best.checked - best.setup.inputs),
        findings=tuple(findings[start] for start in sorted(findings)),
        unmatched=tuple(best.unmatched),
        notes=_notes(best.setup, best.bases),
    )


def _runs(setup: Setup, statements: list[Statement]) -> Iterator["_Run"]:
    """The comparison for each index base (0 or 1) that the printed indices allow."""

    def compute(x: Tensor, projections: Projections) -> Trace:
        return trace(x, setup.heads, projections=projections, mask=setup.mask, scale=setup.scale)

    printed = setup.x, setup.projections
    result = compute(*printed)
    unmasked = ("Q", "K", "V", "score", "output")
    if not all(bool(q.values.isfinite().all()) for q in result.quantities if q.key in unmasked):
        raise BadFile(
            "X: expected numbers whose products are finite, got larger ones; scale it down"
        )
    slack = quantity_errors(compute, printed, setup.upper)
    quantities = Quantities(result, hidden=setup.hidden, slack=slack)
    for bases in product(*_bases(statements, setup.heads, len(setup.x))):
        run = _Run(quantities, setup, IndexBases(*bases))
        for statement in statements:
            if not is_empty(statement):
                run.read(statement)
        yield run


def _bases(
    statements: list[Statement], heads: int, length: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The possible index bases of heads, rows and brackets, from the indices that occur."""
    seen: dict[str, set[int]] = {"head": set(), "row": set(), "bracket": set()}
    hints = [hint for s in statements for hint in (s.own, *s.around) if not hint.weight]
    for hint in hints:
        for kind, ref in (("head", hint.head), ("row", hint.row), ("row", hint.column)):
            if ref is not None and ref.kind != "ordinal":
                seen["bracket" if ref.kind == "bracket" else kind].add(ref.number)
    head = _base(seen["head"], heads, (1, 0))
    row = _base(seen["row"], length, (0, 1))
    bracket = (1,) if length in seen["bracket"] and 0 not in seen["bracket"] else (0,)
    return head, row, bracket


def _base(indices: set[int], size: int, usual: tuple[int, ...]) -> tuple[int, ...]:
    if 0 in indices:
        return (0,)
    return (1,) if size in indices else usual


class _Run:
    """The comparison of an article with one computation."""

    def __init__(self, quantities: Quantities, setup: Setup, bases: IndexBases) -> None:
        self.quantities, self.setup, self.bases = quantities, setup, bases
        self.matcher = Matcher(quantities, bases)
        self.findings: dict[int, Finding] = {}
        self.unmatched: list[Unmatched] = []
        self.checked = set(setup.inputs)

    @property
    def cost(self) -> float:
        return len(self.findings) + 0.5 * len(self.unmatched)

    def read(self, statement: Statement) -> None:
        """Check a statement by its reading, the rest as arithmetic, or list it as unmatched."""
        nodes = statement.equation.nodes
        rest = nodes[:MOST_NODES]
        is_input = all(c.start in self.setup.inputs for node in nodes for c in numbers(node))
        reading = None if is_input else self.matcher.read(statement)
        if reading is not None:
            self.compare(reading.parts)
            rest = [node for node in rest if not parts(node, reading.target, self.quantities)]
        rest = [node for node in rest if self.unchecked(node)]
        result = next((n for n in nodes if isinstance(n, Grid) and n.dims == 0 and n.cells), None)
        for node in rest:
            if result is not None and not isinstance(node, Grid):
                self.compute(node, result.cells[0])
        for node in rest:
            cells = self.unchecked(node)
            if cells and _matters(node):
                texts = [cell.text for cell in numbers(node)]
                shown = ", ".join(texts[:6]) + (", …" if len(texts) > 6 else "")
                line = numbers(node)[0].line
                self.unmatched.append(Unmatched(line, shown, _why(statement), len(cells)))

    def unchecked(self, node: Node) -> list[Printed]:
        return [cell for cell in numbers(node) if cell.start not in self.checked]

    def compare(self, matched: tuple[Part, ...]) -> None:
        for grid, target in matched:
            for cell, exact, slack, place in entries(grid, target):
                if cell.start not in self.checked and not cell.right(exact, slack):
                    self.add(cell, exact, target.name(*place))
                self.checked.add(cell.start)

    def compute(self, node: Node, result: Printed) -> None:
        """Compare a printed result with the value of an expression."""
        computed, right = value(node), consistent(node, result)
        if computed is None:
            return
        if not right and result.start not in self.checked:
            self.add(result, computed[0], Text("arithmetic of the line"))
        if right or result.start in self.findings:
            self.checked.update(cell.start for cell in [*numbers(node), result])

    def add(self, cell: Printed, exact: float, what: Text) -> None:
        right = cell.corrected(exact)
        self.findings[cell.start] = Finding(cell.line, cell.start, cell.text, right, what)


def _matters(node: Node) -> bool:
    """Whether an expression holds computed numbers rather than sizes or indices."""
    grids = leaves(node)
    texts = [c.text if g.dims else c.text.removesuffix(".") for g in grids for c in g.cells]
    return any("." in t or "%" in t for t in texts) or any(grid.dims == 2 for grid in grids)


def _why(statement: Statement) -> Text:
    label = " ".join(statement.equation.labels)[:60]
    if not statement.own.keys and not statement.own.weight:
        return Text("nothing says clearly which quantity this is")
    return Text("no quantity of this shape fits the label {label!r}", label=label)


def _contradictions(sizes: StatedSizes, setup: Setup) -> dict[int, Finding]:
    head_dim = setup.projections.q.shape[0] // setup.heads
    expected = [(sizes.key, head_dim, Text("head dim"))]
    if "x" not in setup.hidden:
        expected.append((sizes.model, setup.x.shape[1], Text("columns of X")))
    result: dict[int, Finding] = {}
    for stated, right, what in expected:
        if stated and all(size.value != right for size in stated):
            first = stated[0]
            result[first.start] = Finding(first.line, first.start, first.text, str(right), what)
    return result


def _notes(setup: Setup, bases: IndexBases) -> tuple[Text, ...]:
    counts = Text(
        "the article counts heads from {head} and rows from {row}; this report counts "
        "heads from 1 and rows and columns from 0",
        head=bases.head,
        row=bases.row,
    )
    return (Text("heads: {heads}", heads=setup.heads), *setup.notes, counts)

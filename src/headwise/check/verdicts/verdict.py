"""The verdict on each printed number: right, wrong, follows from a wrong one, last digit only."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from headwise.check.expression_tree import Grid, Node, Printed, leaves, numbers
from headwise.check.labels import IndexBases, read_words
from headwise.check.statements import Statement
from headwise.check.verdicts.causes import Cause, causes
from headwise.check.verdicts.derivation import entries, fits
from headwise.check.verdicts.findings import FOLLOWS, LAST_DIGIT, WRONG, Finding, Unmatched
from headwise.check.verdicts.judge import Claim, Judge, Modes
from headwise.check.verdicts.matching import MOST_NODES, Reading, is_divisor
from headwise.check.verdicts.number_patterns import pattern_of, shared_pattern
from headwise.check.verdicts.printed_steps import PrintedSteps
from headwise.check.verdicts.targets import Target, consistent, value
from headwise.lang import Text

MOST_MISMATCHES = 100
"""The most arrays with differing numbers for which an explanation is looked for."""


@dataclass(frozen=True, eq=False)
class WrongCell:
    """A printed number that is not the value of its place."""

    cell: Printed
    exact: float
    target: Target
    at: tuple[int, int]


@dataclass
class Printing:
    """A number that was printed, its place, the modes it was read in, and the wrong one behind."""

    target: Target
    at: tuple[int, int]
    cell: Printed
    mode: Modes
    root: int | None


class Verdicts:
    """Walks the claims of one setting in order."""

    def __init__(self, judge: Judge, bases: IndexBases, claims: list[Claim]) -> None:
        self.judge, self.bases, self.claims = judge, bases, claims
        self.findings: dict[int, Finding] = {}
        self.unmatched: list[Unmatched] = []
        self.checked: set[int] = set(judge.setting.inputs)
        self.matched: set[int] = set()
        self.printed: list[Printing] = []
        self.steps: dict[Modes, PrintedSteps] = {}
        self.taken: dict[Modes, int] = {}
        self.mismatches = 0
        self.base = bases.row
        self.established: set[str] = set()

    def run(self) -> None:
        """Give every number of every claim its verdict."""
        for claim in self.claims:
            rest = claim.statement.equation.nodes[:MOST_NODES]
            reading = claim.reading
            if reading is not None:
                unclear = self._judge(claim, reading)
                self.matched.update(c.start for grid, _ in reading.parts for c in grid.cells)
                if unclear is not None:
                    for grid, _ in reading.parts:
                        for cell in grid.cells:
                            self.findings.pop(cell.start, None)
                    self._leave(claim.statement, [g for g, _ in reading.parts], unclear)
                    rest = []
            self._arithmetic(claim.statement, rest)

    def _unchecked(self, node: Node) -> list[Printed]:
        known = (self.checked, self.matched)
        return [c for c in numbers(node) if not any(c.start in starts for starts in known)]

    def _judge(self, claim: Claim, reading: Reading) -> Text | None:
        """Check the numbers of a reading; a reason where they cannot be checked."""
        bad = list(self._wrong(reading))
        if not bad:
            if claim.statement.own.keys:
                self.established.add(reading.target.key)
            self._accept(reading, claim.mode)
            return None
        self.mismatches += 1
        if reading.target.key == "x":
            return Text("another input than the one taken as given")
        if self.mismatches > MOST_MISMATCHES:
            return Text("too many arrays differ before this one; correct those first")
        return self._explain(claim, reading, bad)

    def _explain(self, claim: Claim, reading: Reading, bad: list[WrongCell]) -> Text | None:
        """Find what the wrong numbers of a reading come from; a reason where that is unclear."""
        left = self._derived(claim, bad)
        if not left:
            self._accept(reading, claim.mode)
            return None
        cause = self._cause(claim, reading, left)
        if cause is not None and self._is_first_step(claim, cause):
            self._accept(reading, claim.mode, record=False)
            return None
        if cause is not None and cause.kind == "unscaled" and not self._scale_is_named():
            return Text(
                "right without the scale 1/√d_k, of which the text says nothing; give --scale 1 "
                "if none is meant"
            )
        total = sum(len(grid.cells) for grid, _ in reading.parts)
        pattern = None if cause is not None else shared_pattern(left)
        known = cause is not None or (pattern is not None and len(left) > 1)
        if not known and self._unclear(claim, reading, len(left), total):
            return Text("its numbers are none that this setting leads to")
        if not known and self._without_output(claim):
            return Text("the output projection W^O is announced but not given; give --weights FILE")
        name = cause.name if cause is not None else pattern_of(left, reading, self.base)
        root = left[0].cell.start
        for wrong in left:
            self._find(wrong, WRONG, name, root)
        self._accept(reading, claim.mode, root={w.cell.start: root for w in left})
        return None

    def _wrong(self, reading: Reading) -> Iterator[WrongCell]:
        for grid, target in reading.parts:
            for cell, exact, slack, at in entries(grid, target):
                if cell.start not in self.checked and not cell.right(exact, slack):
                    yield WrongCell(cell, exact, target, at)

    def _derived(self, claim: Claim, bad: list[WrongCell]) -> list[WrongCell]:
        """Those that no printed number explains; the others are found to follow from it."""
        steps = self._steps(claim.mode)
        left = []
        for wrong in bad:
            explained = self._explained(wrong, steps)
            if explained is None:
                left.append(wrong)
            else:
                root = explained or None
                cause = None if root is None else self._cause_of(root)
                self._find(wrong, FOLLOWS if root else LAST_DIGIT, cause, root)
        return left

    def _cause_of(self, root: int) -> Text | None:
        finding = self.findings.get(root)
        return None if finding is None else finding.cause

    def _explained(self, wrong: WrongCell, steps: PrintedSteps) -> int | None:
        """The root of a number that the printed steps lead to, 0 for none; None if they do not."""
        target = wrong.target
        place = (target.key, target.head)
        known = place in steps.exact() and not target.key.startswith("W_")
        if target.label is not None or not known:
            return None
        row, column = target.place(*wrong.at)
        if target.role is not None:
            earlier = steps.printed.get(place, {}).get((row, column))
            if earlier is not None and earlier == wrong.cell.value:
                return steps.roots.get(place, {}).get((row, column), 0)
            return None
        for option in steps.options(place):
            table, roots = option
            expected, root = float(table[row, column]), int(roots[row, column])
            if wrong.cell.right(expected) and expected != wrong.exact:
                return root
            if root and wrong.cell.right(expected, float(steps.spread(place)[row, column])):
                return root
        return None

    def _steps(self, mode: Modes) -> PrintedSteps:
        """What was printed before, as a computation of some mode goes on from it."""
        if mode not in self.steps:
            setting = self.judge.setting
            self.steps[mode] = PrintedSteps(setting.given, setting.heads, self.judge.rules(mode))
            self.taken[mode] = 0
        steps = self.steps[mode]
        for p in self.printed[self.taken[mode] :]:
            key = p.target.key
            before_scale = key in ("q", "k", "v", "Q", "K", "V", "score")
            before_mask = key == "scaled" and p.mode.scale == mode.scale
            if before_scale or before_mask or p.mode == mode:
                place = p.target.place(*p.at)
                steps.put((key, p.target.head), place, p.cell.value, p.cell.step, p.root)
        self.taken[mode] = len(self.printed)
        return steps

    def _cause(self, claim: Claim, reading: Reading, left: list[WrongCell]) -> Cause | None:
        """The mistake under which every number of a claim is right."""
        if len(left) < 2:
            return None
        rules = self.judge.rules(claim.mode)
        setting = self.judge.setting
        scale = self.judge.quantities(claim.mode).scale
        steps = self._steps(claim.mode)
        for cause in causes(setting.given, setting.heads, rules, scale):
            if self._explains(cause, reading, steps):
                return cause
        return self._other_head(claim, reading, steps)

    def _explains(self, cause: Cause, reading: Reading, steps: PrintedSteps) -> bool:
        """Whether every number is right under a mistake, or goes on from the printed ones."""
        target = reading.target
        place = (target.key, target.head)
        grids = [grid for grid, part in reading.parts if part.role is None and part.label is None]
        quantities = self.judge.compute(cause.rules, cause.given)
        if not grids or place not in quantities.tables:
            return False
        rows = quantities.tables[place]
        if (target.row or 0) >= len(rows) or (target.column or 0) >= len(rows[0]):
            return False
        other = quantities.part(place, target.row, target.column, turned=target.turned)
        if all(_right(grid, other) for grid in grids):
            return True
        table = steps.under(cause.given, cause.rules).expected(place)[0]
        return all(_goes_on(grid, target, table) for grid in grids)

    def _other_head(self, claim: Claim, reading: Reading, steps: PrintedSteps) -> Cause | None:
        target = reading.target
        quantities = self.judge.quantities(claim.mode)
        for head in range(1, self.judge.setting.heads + 1):
            place = (target.key, head)
            if target.head in (None, head) or place not in quantities.tables:
                continue
            other = quantities.part(place, target.row, target.column, turned=target.turned)
            grids = [grid for grid, part in reading.parts if part.role is None]
            table = steps.overlay(place)
            if all(_right(grid, other) or _goes_on(grid, target, table) for grid in grids):
                name = Text("the numbers of head {head}", head=head)
                return Cause(name, self.judge.setting.given, self.judge.rules(claim.mode))
        return None

    def _is_first_step(self, claim: Claim, cause: Cause) -> bool:
        """Whether numbers without the mask are a step before those with it."""
        if cause.kind != "unmasked" or claim.reading is None:
            return False
        target = claim.reading.target
        for other in self.claims:
            if other.at > claim.at and other.reading is not None and other.mode == claim.mode:
                found = other.reading.target
                if (found.key, found.head) == (target.key, target.head) and not other.reading.wrong:
                    return True
        return False

    def _unclear(self, claim: Claim, reading: Reading, bad: int, total: int) -> bool:
        """Whether it is not clear enough what an array is, to call its numbers wrong."""
        own = claim.statement.own
        placed = bool(own.row or own.column or own.either)
        if bad <= 0.5 * total and (total - bad >= 2 or placed):
            return False
        if not self.judge.setting.strict or own.weight or not own.keys:
            return True
        known = reading.target.key in self.established
        return total > 1 and not known and not _is_strong(claim.statement)

    def _scale_is_named(self) -> bool:
        """Whether the article speaks of the scale, or of the head dim that it is taken from."""
        around = self.judge.around
        return around.scales.mentioned or around.head_dim

    def _without_output(self, claim: Claim) -> bool:
        return self.judge.setting.output_unknown and claim.statement.own.keys[:1] == ("output",)

    def _find(self, wrong: WrongCell, verdict: str, cause: Text | None, root: int | None) -> None:
        cell, (i, j) = wrong.cell, wrong.at
        right, what = cell.corrected(wrong.exact), wrong.target.name(i, j, self.base)
        self.findings[cell.start] = Finding(
            cell.line, cell.start, cell.text, right, what, verdict, cause, root
        )

    def _accept(
        self,
        reading: Reading,
        mode: Modes,
        *,
        root: dict[int, int] | None = None,
        record: bool = True,
    ) -> None:
        """Take the numbers of a reading as checked, and keep them for what follows."""
        for grid, target in reading.parts:
            for cell, _, _, at in entries(grid, target):
                found = self.findings.get(cell.start)
                behind = found.root if found is not None else None
                self.checked.add(cell.start)
                if record and target.role is None and target.label is None:
                    self.printed.append(Printing(target, at, cell, mode, behind))

    def _arithmetic(self, statement: Statement, rest: list[Node]) -> None:
        """Check what is left of a statement as arithmetic, or list it."""
        result = next((n for n in rest if isinstance(n, Grid) and n.dims == 0 and n.cells), None)
        scale = abs(self.judge.quantities(Modes(None, "none")).scale)
        if result is not None and is_divisor(statement) and result.cells[0].right(1 / scale):
            self.checked.add(result.cells[0].start)
        for chain in statement.equation.chains:
            results = [n for n in chain if isinstance(n, Grid) and n.dims == 0 and n.cells]
            for node in chain:
                if results and not isinstance(node, Grid) and self._unchecked(node):
                    self._compute(node, results[0].cells[0])
        grids = [node for node in rest if self._unchecked(node) and _matters(node)]
        for node in grids:
            lone = isinstance(node, Grid) and node.dims == 0
            if lone and not statement.equation.related and not statement.own.keys:
                continue  # a number in running text
            self._leave(statement, leaves(node), _why(statement))

    def _compute(self, node: Node, result: Printed) -> None:
        computed, right = value(node), consistent(node, result)
        if computed is None:
            return
        if not right and result.start not in self.checked:
            what = Text("arithmetic of the line")
            self.findings[result.start] = Finding(
                result.line, result.start, result.text, result.corrected(computed[0]), what,
                WRONG, Text("arithmetic slip"), result.start,
            )  # fmt: skip
        if right or result.start in self.findings:
            self.checked.update(cell.start for cell in [*numbers(node), result])

    def _leave(self, statement: Statement, grids: list[Grid], why: Text) -> None:
        cells = [c for grid in grids for c in grid.cells if c.start not in self.checked]
        if not cells:
            return
        shown = ", ".join(c.text for c in cells[:6]) + (", …" if len(cells) > 6 else "")
        own = statement.own.keys
        is_input = "x" in own or read_words(statement.label).keys == ("x",)
        named = bool(own) and not is_input and not is_divisor(statement)
        hint = statement.own
        placed = bool(hint.row or hint.column or hint.either)
        labelled = named and (len(cells) > 1 or (placed and "." in cells[0].text))
        self.unmatched.append(Unmatched(cells[0].line, shown, why, len(cells), labelled))


def _right(grid: Grid, target: Target) -> bool:
    if grid.dims != target.dims or [*map(len, grid.rows)] != [*map(len, target.values)]:
        return False
    return all(cell.right(exact, slack) for cell, exact, slack, _ in entries(grid, target))


def _goes_on(grid: Grid, target: Target, table: Tensor) -> bool:
    """Whether the numbers of a grid are those of a table at a target's place."""
    if not fits(grid, target):
        return False
    for cell, _, _, at in entries(grid, target):
        row, column = target.place(*at)
        inside = row < table.shape[0] and column < table.shape[1]
        if not inside or not cell.right(float(table[row, column])):
            return False
    return True


def _is_strong(statement: Statement) -> bool:
    """Whether a label says in words or by a formula what an array is, not by a letter alone."""
    letters = [c for c in statement.label if c.isalpha() or "\u3400" <= c <= "\u9fff"]
    return len(letters) > 2


def _matters(node: Node) -> bool:
    """Whether an expression holds computed numbers rather than sizes or indices."""
    grids = leaves(node)
    texts = [c.text if g.dims else c.text.removesuffix(".") for g in grids for c in g.cells]
    return any("." in t or "%" in t for t in texts) or any(grid.dims == 2 for grid in grids)


def _why(statement: Statement) -> Text:
    label = statement.label[:60]
    if not statement.own.keys and not statement.own.weight:
        return Text("nothing says clearly which quantity this is")
    return Text("no quantity of this shape fits the label {label!r}", label=label)

"""Judge the claims of an article by the settings in force."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from headwise.check.expression_tree import BLOCKED, numbers
from headwise.check.labels import IndexBases
from headwise.check.settings.attention_steps import StepRules, Tables, attention_tables, scale_of
from headwise.check.settings.choices import Choice, Choices
from headwise.check.settings.parts import ArticlePart, part_at
from headwise.check.settings.setting import CheckOptions, Setting
from headwise.check.statements import Statement, is_empty
from headwise.check.verdicts.matching import MatchContext, Matcher, Reading
from headwise.check.verdicts.targets import Quantities, quantity_errors
from headwise.errors import BadFile
from headwise.shapes import AttentionShape


@dataclass(frozen=True)
class Surroundings:
    """What the text of an article says around its statements."""

    parts: list[ArticlePart]
    masks: Choices
    scales: Choices
    other_masks: bool
    head_dim: bool
    options: CheckOptions


@dataclass(frozen=True)
class Modes:
    """The scale and the mask of a computation: ``scale`` None is 1/sqrt(D)."""

    scale: float | None
    mask: str


@dataclass(frozen=True, eq=False)
class Claim:
    """One statement with the reading of its numbers that fits best, and the modes of that reading.

    ``modes`` are all that may be in force there.
    """

    at: int
    statement: Statement
    reading: Reading | None
    mode: Modes
    modes: tuple[Modes, ...]


class Judge:
    """Reads the statements of one computation against one setting."""

    def __init__(
        self, setting: Setting, statements: list[Statement], around: Surroundings, first: int
    ) -> None:
        self.setting, self.statements, self.around = setting, statements, around
        self.first = first
        self._quantities: dict[tuple[object, ...], Quantities] = {}
        self.patterns = self._printed_patterns()

    def best(self) -> "tuple[IndexBases, list[Claim]]":
        """The claims under the index bases that explain most."""
        runs: list[tuple[float, int, IndexBases, list[Claim]]] = []
        for bases in product(*_bases(self.statements, self.setting.heads, self._length())):
            base = IndexBases(*bases)
            claims = list(self._claims(base))
            runs.append((sum(map(_cost, claims)), len(runs), base, claims))
        _, _, base, claims = min(runs, key=lambda run: run[:2])
        return base, claims

    def _length(self) -> int:
        tables = self.quantities(Modes(None, "none")).tables
        return max(
            (len(rows) for (key, _), rows in tables.items() if not key.startswith("W")), default=1
        )

    def _claims(self, bases: IndexBases) -> Iterator[Claim]:
        context = MatchContext()
        for at, statement in enumerate(self.statements, start=self.first):
            if statement.aside or is_empty(statement) or self._is_input(statement):
                continue
            modes = self.modes(statement)
            yield self._claim(at, statement, modes, bases, context)

    def _is_input(self, statement: Statement) -> bool:
        cells = [cell for node in statement.equation.nodes for cell in numbers(node)]
        return all(cell.start in self.setting.inputs for cell in cells)

    def _claim(
        self,
        at: int,
        statement: Statement,
        modes: tuple[Modes, ...],
        bases: IndexBases,
        context: MatchContext,
    ) -> Claim:
        found: list[tuple[Reading, Modes]] = []
        for mode in modes:
            reading = self.matcher(self.quantities(mode), bases, context).read(statement)
            if reading is not None:
                found.append((reading, mode))
                if reading.wrong == 0:
                    break
        if not found:
            return Claim(at, statement, None, modes[0], modes)
        reading, mode = min(found, key=lambda pair: pair[0].wrong / max(pair[0].count, 1))
        self.matcher(self.quantities(mode), bases, context).keep(reading)
        return Claim(at, statement, reading, mode, modes)

    def matcher(self, quantities: Quantities, bases: IndexBases, context: MatchContext) -> Matcher:
        """A matcher for one computation of this setting."""
        return Matcher(quantities, bases, context, columns=self.setting.columns)

    def modes(self, statement: Statement) -> tuple[Modes, ...]:
        """What may be in force at a statement, the likeliest first."""
        start = statement.equation.start
        part = part_at(self.around.parts, start)
        options = self.around.options
        mask = self.around.masks.at(part, start)
        scale = self.around.scales.at(part, start)
        scales: list[float | None] = [options.scale]
        if options.scale is None:
            scales = [None] * scale.on + [1.0] * scale.off
        masks = ["options"] if options.mask is not None else self._masks(mask, part)
        return tuple(Modes(s, m) for s in scales for m in masks)

    def _masks(self, choice: Choice, part: int) -> list[str]:
        result = []
        if choice.on:
            causal = "causal" if self._square() else None
            if self.around.other_masks or causal is None:
                result += list(self.patterns)
            result += [causal] if causal and not (self.around.other_masks and self.patterns) else []
            if self.around.other_masks and causal and self.patterns:
                result.append(causal)
        if choice.off:
            result.append("none")
        return result or ["none"]

    def _square(self) -> bool:
        score = self.quantities(Modes(None, "none")).tables.get(("score", 1))
        return score is not None and len(score) == len(score[0])

    def _printed_patterns(self) -> dict[str, Tensor]:
        """The masks that are printed, as patterns of pairs that may attend, by name."""
        result: dict[str, Tensor] = {}
        for statement in self.statements:
            grids = [g for g in statement.equation.grids if g.dims > 0 and g.whole]
            for grid in grids:
                values = torch.tensor(grid.values, dtype=torch.float64)
                if grid.dims == 2 and bool((values <= BLOCKED).any()):
                    result[f"pattern {len(result)}"] = values > BLOCKED
                elif statement.mask and set(values.flatten().tolist()) <= {0.0, 1.0}:
                    for pattern in (values > 0.5, values < 0.5):
                        if bool(pattern.any(-1).all()):
                            result[f"pattern {len(result)}"] = pattern
        return dict(list(result.items())[:4])

    def mask(self, name: str) -> Tensor | None:
        """The mask of a mode, (L, S) or (H, L, S)."""
        if name == "none":
            return None
        shape = self._score_shape()
        if shape is None:
            return None
        if name == "options" and self.around.options.mask is not None:
            return _dense(self.around.options, self.setting.heads, shape)
        if name == "causal":
            queries, keys = shape
            return torch.ones(shape, dtype=torch.bool).tril(keys - queries)
        pattern = self.patterns[name]
        if tuple(pattern.shape) == shape:
            return pattern
        if pattern.shape[-1] == shape[1] and pattern.shape[0] == 1:
            return pattern.expand(shape)
        return None

    def _score_shape(self) -> tuple[int, int] | None:
        tables = attention_tables(self.setting.given, self.setting.heads, StepRules())
        score = tables.get(("scaled", 1))
        return None if score is None else (score.shape[0], score.shape[1])

    def rules(self, mode: Modes) -> StepRules:
        """How the steps of a mode are computed."""
        return StepRules(scale=mode.scale, mask=self.mask(mode.mask))

    def quantities(self, mode: Modes) -> Quantities:
        """Every matrix of one mode; computed once."""
        key = (mode.scale, mode.mask)
        if key not in self._quantities:
            self._quantities[key] = self.compute(self.rules(mode))
            for (name, _), rows in self._quantities[key].tables.items():
                finite = all(math.isfinite(value) for row in rows for value in row)
                if name in ("score", "Q", "K", "V", "output") and not finite:
                    raise BadFile(
                        "X: expected numbers whose products are finite, got larger ones; "
                        "scale it down"
                    )
        return self._quantities[key]

    def compute(self, rules: StepRules, given: Tables | None = None) -> Quantities:
        """Every matrix of this setting under some rules, with its rounding errors."""
        low = self.setting.given if given is None else given
        heads = self.setting.heads
        tables = attention_tables(low, heads, rules)
        high = self.setting.high if given is None else None
        slack = quantity_errors(lambda t: attention_tables(t, heads, rules), low, high)
        return Quantities(tables, heads, scale_of(rules, tables), slack)


def _dense(options: CheckOptions, heads: int, shape: tuple[int, int]) -> Tensor:
    if options.mask is None:
        return torch.ones(shape, dtype=torch.bool)
    mask = options.mask(heads, shape[1])
    queries, keys = shape
    size = AttentionShape(1, heads, queries, keys, keys - queries, torch.device("cpu"))
    allowed = mask.dense(size)[0].expand(heads, queries, keys)
    bias = mask.resolve(size).bias(*size.indices())
    if bias is None:
        return allowed
    added = bias.double().expand(1, heads, queries, keys)[0]
    return added.masked_fill(~allowed, -math.inf)


def _cost(claim: Claim) -> float:
    reading = claim.reading
    if reading is None:
        return 0.5
    return reading.wrong


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
    if not indices:
        return usual[:1]
    return (1,) if size in indices else usual

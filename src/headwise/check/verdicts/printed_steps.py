"""What the numbers that an article printed lead to: each step computed from the printed ones.

A printed number that differs from the exact value follows from an earlier wrong number, or is off
in its last digit only, where the step computed from what was printed before gives just this number.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.check.settings.attention_steps import (
    Place,
    StepRules,
    Tables,
    attention_tables,
    scale_of,
)

DRAWS, SAFETY = 8, 1.5

STAGES = (
    ("Q", "q"), ("K", "k"), ("V", "v"), ("score",), ("scaled",), ("masked",), ("shifted",),
    ("exp",), ("exp_shifted",), ("softmax",), ("head",), ("concat",), ("output",),
)  # fmt: skip


@dataclass
class PrintedSteps:
    """The numbers printed so far for one setting, and the wrong one that each depends on."""

    given: Tables
    heads: int
    rules: StepRules
    printed: dict[Place, dict[tuple[int, int], float]] = field(default_factory=dict)
    roots: dict[Place, dict[tuple[int, int], int]] = field(default_factory=dict)
    digits: dict[Place, float] = field(default_factory=dict)
    _exact: Tables | None = None

    def under(self, given: Tables, rules: StepRules) -> "PrintedSteps":
        """The same printed numbers as another computation would go on from them.

        Printed queries, keys and values stay only where the other computation has the same.
        """
        other = PrintedSteps(given, self.heads, rules)
        kept = {}
        for place, table in self.printed.items():
            new = other.exact().get(place)
            if new is None or new.shape != self.exact()[place].shape:
                continue
            if place[0] not in (*"qkvQKV",) or torch.equal(new, self.exact()[place]):
                kept[place] = table
        other.printed, other.roots, other.digits = kept, self.roots, self.digits
        return other

    def put(
        self, place: Place, at: tuple[int, int], value: float, step: float, root: int | None
    ) -> None:
        """Keep one printed number; ``root`` is the wrong number it depends on."""
        if place not in self.exact():
            return
        for own, where in self._copies(place, at):
            self.printed.setdefault(own, {})[where] = value
            self.digits[own] = max(step, self.digits.get(own, 0.0))
            table = self.roots.setdefault(own, {})
            if root is None:
                table.pop(where, None)
            else:
                table[where] = root

    def _copies(self, place: Place, at: tuple[int, int]) -> list[tuple[Place, tuple[int, int]]]:
        """The same number in the matrix of all heads and in that of its head."""
        key, head = place
        result = [(place, at)]
        width = self._width(key)
        if width is None:
            return result
        if key in "QKV" and head is None:
            result.append(((key.lower(), at[1] // width + 1), (at[0], at[1] % width)))
        elif key in "qkv" and head is not None:
            result.append(((key.upper(), None), (at[0], at[1] + (head - 1) * width)))
        elif key == "head" and head is not None:
            result.append((("concat", None), (at[0], at[1] + (head - 1) * width)))
        return result

    def _width(self, key: str) -> int | None:
        """How many columns of the matrix of all heads one head has."""
        table = self.exact().get((key.lower(), 1)) if key in (*"qkvQKV", "head") else None
        return None if table is None else table.shape[1]

    def exact(self) -> Tables:
        """The tables of the setting itself."""
        if self._exact is None:
            self._exact = attention_tables(self.given, self.heads, self.rules)
        return self._exact

    def overlay(self, place: Place) -> Tensor:
        """A quantity with the printed numbers in the place of the exact ones."""
        exact = self.exact()[place]
        return self._overlaid(place, exact, torch.zeros(exact.shape, dtype=torch.long))[0]

    def options(self, place: Place) -> list[tuple[Tensor, Tensor]]:
        """A quantity from the printed numbers, with the hidden steps exact or rounded."""
        result = [self.expected(place)]
        if place[0] == "softmax" and any(key in ("exp", "exp_shifted") for key, _ in self.printed):
            kept = self.printed
            self.printed = {p: t for p, t in kept.items() if not p[0].startswith("exp")}
            result.append(self.expected(place))
            self.printed = kept
        return result

    def expected(self, place: Place) -> tuple[Tensor, Tensor]:
        """A quantity computed from what was printed before, and the wrong numbers it depends on."""
        tables, roots = self._through(place, None)
        return tables[place], roots[place]

    def spread(self, place: Place) -> Tensor:
        """How far the rounding of the printed numbers moves what they lead to."""
        generator = torch.Generator().manual_seed(0)
        expected = self.expected(place)[0]
        most = torch.zeros_like(expected)
        for _ in range(DRAWS):
            moved = self._through(place, generator)[0][place]
            most = torch.maximum(most, (moved - expected).abs().nan_to_num(0.0))
        return SAFETY * most

    def _through(self, wanted: Place, generator: torch.Generator | None) -> tuple[Tables, Tables]:
        exact = self.exact()
        tables: Tables = {}
        roots: Tables = {}
        for stage in STAGES:
            for place in [place for place in exact if place[0] in stage]:
                table, root = self._step(place, tables, roots)
                if place != wanted:
                    table, root = self._overlaid(place, table, root, generator)
                tables[place], roots[place] = table, root
            if wanted[0] in stage and wanted in tables:
                break
        return tables, roots

    def _overlaid(
        self, place: Place, table: Tensor, root: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        if place not in self.printed:
            return table, root
        table, root = table.clone(), root.clone()
        own = self.roots.get(place, {})
        for (i, j), value in self.printed[place].items():
            table[i, j], root[i, j] = value, own.get((i, j), 0)
        if generator is not None:
            sign = torch.randint(2, table.shape, generator=generator).double() * 2 - 1
            table = table + sign * self.digits[place] / 2
        return table, root

    def _step(self, place: Place, tables: Tables, roots: Tables) -> tuple[Tensor, Tensor]:
        """One step from the tables before it."""
        key, head = place
        exact = self.exact()[place]
        none = torch.zeros(exact.shape, dtype=torch.long)
        if key in ("score", "scaled", "masked") and (key != "score" or ("q", head) in tables):
            return self._scores(key, head, tables, roots)
        if key in ("shifted", "exp", "exp_shifted", "softmax"):
            return self._powers(key, head, tables, roots)
        v = tables.get(("v", head))
        if key == "head" and v is not None:
            own = roots["softmax", head].amax(1)[:, None]
            mixed = self.rules.mix(tables["softmax", head], v)
            return mixed, torch.maximum(own, roots["v", head].amax(0)[None, :])
        return self._joined(key, tables, roots, exact, none)

    def _scores(
        self, key: str, head: int | None, tables: Tables, roots: Tables
    ) -> tuple[Tensor, Tensor]:
        if key == "score":
            q, k = tables["q", head], tables["k", head]
            own, other = roots["q", head].amax(1), roots["k", head].amax(1)
            return self.rules.score(q, k), torch.maximum(own[:, None], other[None, :])
        if key == "masked":
            masked = self.rules.block(tables["scaled", head], self._mask(head))
            return masked, roots["scaled", head]
        if ("score", head) not in tables:
            exact = self.exact()["scaled", head]
            return exact, torch.zeros(exact.shape, dtype=torch.long)
        factor = scale_of(self.rules, self.exact(), head)
        return tables["score", head] * factor, roots["score", head]

    def _powers(
        self, key: str, head: int | None, tables: Tables, roots: Tables
    ) -> tuple[Tensor, Tensor]:
        before = "masked" if ("masked", head) in tables else "scaled"
        if (before, head) not in tables:
            exact = self.exact()[key, head]
            return exact, torch.zeros(exact.shape, dtype=torch.long)
        scores, root = tables[before, head], roots[before, head]
        if key == "shifted":
            row_root = root.amax(1)[:, None].expand(root.shape)
            return scores - scores.amax(-1, keepdim=True), row_root
        if key != "softmax":
            name = before if key == "exp" else "shifted"
            return tables[name, head].exp(), roots[name, head]
        name = next((n for n in ("exp", "exp_shifted") if (n, head) in self.printed), before)
        powers = tables[name, head]
        weights = self.rules.weigh(powers if name == before else powers.log())
        own = torch.maximum(root, roots[name, head]).amax(1)[:, None].expand(root.shape)
        return self.rules.reweigh(weights, self._mask(head)), own

    def _joined(
        self, key: str, tables: Tables, roots: Tables, exact: Tensor, none: Tensor
    ) -> tuple[Tensor, Tensor]:
        if key == "concat":
            parts = [("head", head) for head in range(1, self.heads + 1)]
            joined = torch.cat(self.rules.order([tables[p] for p in parts]), 1)
            return joined, torch.cat(self.rules.order([roots[p] for p in parts]), 1)
        if key == "output" and ("W_out", None) in self.given:
            weight = self.given["W_out", None]
            bias = self.given.get(("b_out", None), torch.zeros(()).double())
            reach = (weight != 0).long()
            root = (roots["concat", None][:, :, None] * reach[None]).amax(1)
            return self.rules.finish(tables["concat", None], weight) + bias, root
        return exact, none

    def _mask(self, head: int | None) -> Tensor | None:
        mask = self.rules.mask
        return mask if mask is None or mask.dim() < 3 or head is None else mask[head - 1]

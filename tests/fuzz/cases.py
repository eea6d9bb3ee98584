"""Random calls from a seed, with the arguments for headwise and for the oracle."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import headwise as hw
from tests.fuzz.oracle import Pattern, Place, alibi, turned

DTYPES = (torch.float64, torch.float64, torch.float32, torch.bfloat16)
STATISTICS = ("weights", "logsumexp", "entropy", "received", "distance", "largest")


@dataclass
class Case:
    """One call.

    Attributes:
        qkv: q, k and v in the dtype of the call.
        mask, pattern: the mask, and the same for the oracle.
        position, place: the position or None, and the same for the oracle.
        options: scale, offset and sinks.
        need: the results asked for.
    """

    qkv: tuple[Tensor, Tensor, Tensor]
    mask: hw.Mask
    pattern: Pattern
    position: hw.Position | None
    place: Place
    options: dict[str, Any] = field(default_factory=dict)
    need: tuple[str, ...] = ()


class Drawn:
    """The sizes of a call, and random masks of these sizes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        few = self.random.random() < 0.9
        choose = self.random.choice
        self.batch = choose((1, 1, 2, 3))
        self.key_heads = choose((1, 1, 2))
        self.heads = self.key_heads * choose((1, 1, 2, 3))
        self.queries = self.random.randint(1, 9) if few else self.random.randint(20, 40)
        self.keys = choose((self.queries, self.queries, self.random.randint(1, 12)))
        self.dim, self.width = 2 * self.random.randint(1, 5), self.random.randint(1, 9)
        self.offset = choose((None, None, None, 0, self.random.randint(-6, 14)))
        self.first = self.keys - self.queries if self.offset is None else self.offset

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.torch, dtype=torch.float64)

    def booleans(self, *shape: int, share: float = 0.5) -> Tensor:
        return torch.rand(*shape, generator=self.torch) < share

    def mask(self, depth: int) -> tuple[hw.Mask, Pattern]:
        """An expression of masks; only a conjunction or the whole may add a bias."""
        kind = self.random.random()
        if depth and kind < 0.5:
            (one, first), (other, second) = self.mask(depth - 1), self.mask(depth - 1)
            rule, counter = first.rule, second.rule
            if self.random.random() < 0.5 or first.added or second.added:
                added = _sum(first, second)
                return one & other, Pattern(lambda *pair: rule(*pair) and counter(*pair), added)
            return one | other, Pattern(lambda *pair: rule(*pair) or counter(*pair))
        if depth and kind < 0.65:
            one, first = self.mask(depth - 1)
            if first.added is None:
                return ~one, Pattern(lambda *pair: not first.rule(*pair))
            return one, first
        if depth and kind < 0.72:
            parts = [self.mask(0) for _ in range(self.heads)]
            if not any(pattern.added for _, pattern in parts):
                rules = [pattern.rule for _, pattern in parts]
                return (
                    hw.per_head([mask for mask, _ in parts]),
                    Pattern(lambda b, h, i, j: rules[h](b, h, i, j)),
                )
        return self.random.choice(self.leaves())()

    def leaves(self) -> list[Any]:
        return [
            self.full, self.causal, self.window, self.dilated, self.every, self.strided, self.fixed,
            self.block_sparse, self.documents, self.padding, self.prefix, self.global_tokens,
            self.from_booleans, self.from_floats,
        ]  # fmt: skip

    def small(self, least: int = 0) -> int:
        return self.random.randint(least, 5)

    def full(self) -> tuple[hw.Mask, Pattern]:
        return hw.full(), Pattern(lambda b, h, i, j: True)

    def causal(self) -> tuple[hw.Mask, Pattern]:
        return hw.causal(), Pattern(lambda b, h, i, j: j <= i)

    def window(self) -> tuple[hw.Mask, Pattern]:
        left, right = self.small(), self.small()
        return hw.window(left, right), Pattern(lambda b, h, i, j: i - left <= j <= i + right)

    def dilated(self) -> tuple[hw.Mask, Pattern]:
        left, right, step = self.small(), self.small(), self.small(1)
        seen = {n * step for n in range(-left, right + 1)}
        return hw.dilated(left, right, step=step), Pattern(lambda b, h, i, j: j - i in seen)

    def every(self) -> tuple[hw.Mask, Pattern]:
        step = self.small(1)
        return hw.every(step), Pattern(lambda b, h, i, j: abs(i - j) % step == 0)

    def strided(self) -> tuple[hw.Mask, Pattern]:
        step = self.small(1)
        rule = lambda b, h, i, j: j <= i and (i - j <= step or (i - j) % step == 0)  # noqa: E731
        return hw.strided(step), Pattern(rule)

    def fixed(self) -> tuple[hw.Mask, Pattern]:
        block = self.small(1)
        last = self.random.randint(0, block)

        def rule(b: int, h: int, i: int, j: int) -> bool:
            return j <= i and (i // block == j // block or j % block >= block - last)

        return hw.fixed(block, last), Pattern(rule)

    def block_sparse(self) -> tuple[hw.Mask, Pattern]:
        block, rows, columns = self.small(1), self.small(1), self.small(1)
        heads = self.random.choice((1, self.heads))
        layout = self.booleans(heads, rows, columns)
        table = layout.tolist()

        def rule(b: int, h: int, i: int, j: int) -> bool:
            row, column = i // block, j // block
            inside = 0 <= row < rows and column < columns
            return inside and bool(table[h if heads > 1 else 0][row][column])

        return hw.block_sparse(layout, block), Pattern(rule)

    def documents(self) -> tuple[hw.Mask, Pattern]:
        samples = self.random.choice((1, self.batch))
        ids = torch.randint(0, 3, (samples, self.keys), generator=self.torch)
        table = ids.tolist()

        def rule(b: int, h: int, i: int, j: int) -> bool:
            row = table[b if samples > 1 else 0]
            return 0 <= i < self.keys and row[i] == row[j]

        return hw.documents(ids), Pattern(rule)

    def padding(self) -> tuple[hw.Mask, Pattern]:
        if self.random.random() < 0.5:
            lengths = [self.random.randint(0, self.keys) for _ in range(self.batch)]
            return hw.padding(lengths), Pattern(lambda b, h, i, j: j < lengths[b])
        real = self.booleans(self.batch, self.keys, share=0.7)
        table = real.tolist()
        return hw.padding(real), Pattern(lambda b, h, i, j: bool(table[b][j]))

    def prefix(self) -> tuple[hw.Mask, Pattern]:
        lengths = [self.random.randint(0, self.keys) for _ in range(self.batch)]
        return hw.prefix(lengths), Pattern(lambda b, h, i, j: j <= i or j < lengths[b])

    def global_tokens(self) -> tuple[hw.Mask, Pattern]:
        chosen = self.random.sample(range(self.keys + 2), self.random.randint(0, 2))
        both = self.random.random() < 0.7
        rule = lambda b, h, i, j: j in chosen or (both and i in chosen)  # noqa: E731
        return hw.global_tokens(chosen, symmetric=both), Pattern(rule)

    def from_booleans(self) -> tuple[hw.Mask, Pattern]:
        tensor, at = self.tensor(self.booleans)
        return hw.from_tensor(tensor, "b h q k"), Pattern(lambda *pair: bool(at(*pair)))

    def from_floats(self) -> tuple[hw.Mask, Pattern]:
        tensor, at = self.tensor(self.numbers)
        tensor.masked_fill_(self.booleans(*tensor.shape, share=0.2), -math.inf)
        rule = lambda *pair: at(*pair) > -math.inf  # noqa: E731
        return hw.from_tensor(tensor, "b h q k"), Pattern(rule, lambda *pair: at(*pair))

    def tensor(self, draw: Any) -> tuple[Tensor, Any]:
        """A tensor (B or 1, H or 1, Lq, Lk), and its entry for a pair."""
        samples, heads = self.random.choice((1, self.batch)), self.random.choice((1, self.heads))
        tensor = draw(samples, heads, self.queries, self.keys)

        def at(b: int, h: int, i: int, j: int) -> Any:
            b, h = b if samples > 1 else 0, h if heads > 1 else 0
            return tensor[b, h, i - self.first, j].item()

        return tensor, at

    def position(self) -> tuple[hw.Position | None, Place]:
        kind = self.random.choice(("none", "none", "rotary", "alibi", "shaw"))
        if kind == "rotary":
            pairs = self.random.choice(("halves", "neighbours"))
            place = Place(turn=lambda x, n: turned(x, n, pairs == "neighbours"))
            return hw.Rotary(self.dim, pairs=pairs), place
        if kind == "alibi":
            heads = self.heads
            return hw.ALiBi(heads), Place(score=lambda q, h, i, j, scale: alibi(heads, h, i, j))
        if kind == "shaw":
            far = self.small()
            shaw = hw.Shaw(far, self.dim).double()
            table = shaw.table.detach()
            return shaw, Place(
                score=lambda q, h, i, j, scale: (
                    (q * table[max(-far, min(far, j - i)) + far]).sum() * scale
                )
            )
        return None, Place()

    def case(self) -> Case:
        dtype = self.random.choice(DTYPES)
        sizes = (
            (self.heads, self.queries, self.dim),
            (self.key_heads, self.keys, self.dim),
            (self.key_heads, self.keys, self.width),
        )
        q, k, v = (self.numbers(self.batch, *size).to(dtype) for size in sizes)
        mask, pattern = self.mask(self.random.randint(0, 3))
        position, place = self.position()
        options: dict[str, Any] = {"offset": self.offset}
        options["scale"] = self.random.choice((None, None, 1.0, 0.0, -0.7, 3.0))
        if self.random.random() < 0.3:
            options["sinks"] = self.numbers(self.heads).to(dtype)
        need = tuple(name for name in STATISTICS if self.random.random() < 0.2)
        return Case((q, k, v), mask, pattern, position, place, options, need)


def _sum(one: Pattern, other: Pattern) -> Any:
    terms = [pattern.added for pattern in (one, other) if pattern.added is not None]
    if not terms:
        return None
    return lambda *pair: sum(term(*pair) for term in terms)

"""What a metric of heads is: two sums over queries, whose quotient is its value."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.lang import Text


@dataclass(frozen=True, eq=False)
class Rows:
    """Attention weights of a block of queries: what a metric is given. R is the block's length.

    Attributes:
        weights: (B, H, R, Lk), 0 where not allowed; rows sum to 1, or less beside a learned sink.
        allowed: (B, H or 1, R, Lk), True where a query may attend.
        counts: (B, R), True for the queries that count: real ones, no padding.
        position: (R,), where each query stands among the keys; None where queries and keys are
            different texts (cross-attention) and distance has no meaning.
        first: (B,), the first real key.
        separators: (B, Lk), True on special tokens such as [SEP]; None where unknown.
        tokens: (B, Lk), the numbers of the keys' tokens; None where unknown.
    """

    weights: Float[Tensor, "b h r lk"]
    allowed: Bool[Tensor, "b #h r lk"]
    counts: Bool[Tensor, "b r"]
    position: Int[Tensor, " r"] | None
    first: Int[Tensor, " b"]
    separators: Bool[Tensor, "b lk"] | None = None
    tokens: Int[Tensor, "b lk"] | None = None

    @property
    def uniform(self) -> "Rows":
        """The same rows of a head that attends to every allowed key alike: the baseline, H = 1."""
        allowed = self.allowed.any(1, keepdim=True)  # (B, 1, R, Lk)
        share = allowed.double() / allowed.sum(-1, keepdim=True).clamp(min=1)
        return replace(self, weights=share, allowed=allowed)

    def queries(self) -> Bool[Tensor, "b #h r"]:
        """The queries that count and see a key: (B, H or 1, R)."""
        return self.counts[:, None] & self.allowed.any(-1)

    def at(self, key: Int[Tensor, "b r"]) -> tuple[Tensor, Tensor]:
        """For each query the weight on one key (B, H, R), and whether it counts and is allowed."""
        inside = (key >= 0) & (key < self.weights.shape[-1])  # (B, R)
        index = key.where(inside, 0)[:, None, :, None]  # (B, 1, R, 1)
        weight = self.weights.gather(-1, index.expand(-1, self.weights.shape[1], -1, -1))[..., 0]
        allowed = self.allowed.gather(-1, index.expand(-1, self.allowed.shape[1], -1, -1))[..., 0]
        counted = allowed & inside[:, None] & self.queries()
        return weight * counted, counted

    @property
    def nothing(self) -> "Sums":
        """What a metric gives that none of these queries can show."""
        return torch.zeros_like(self.weights[..., 0]), torch.zeros_like(self.queries())

    def after_same(self, by: int) -> "Sums":
        """For each query the weight on the keys ``by`` places after other occurrences of its token.

        The first is (B, H, R), the second whether the query counts and has such a key; nothing
        where tokens are unknown, or queries and keys are different texts.
        """
        if self.tokens is None or self.position is None:
            return self.nothing
        keys = torch.arange(self.weights.shape[-1], device=self.weights.device)
        before = torch.where(keys < by, -1, self.tokens.roll(by, -1))  # (B, Lk)
        same = before[:, None] == self.tokens[:, self.position][..., None]  # (B, R, Lk)
        seen = (same & (keys != self.position[:, None] + by))[:, None] & self.allowed
        counted = seen.any(-1) & self.queries()
        return (self.weights * seen).sum(-1) * counted, counted

    def shifted(self, by: int) -> tuple[Tensor, Tensor]:
        """`at` for the key ``by`` places after each query; nothing counts without positions."""
        if self.position is None:
            return self.nothing
        return self.at((self.position + by).expand(self.weights.shape[0], -1))


Sums = tuple[Tensor, Tensor]
"""What is summed over queries, and what it is divided by: each broadcasts to (B, H, R)."""


@dataclass(frozen=True)
class Metric:
    """One measure of a head.

    A head's value is the sum of the first of `sums` over all queries of all texts, divided by the
    sum of the second; NaN where that is 0, because no query could show it.

    Attributes:
        name: one word, as in JSON.
        label: the same for a person, as at the head of a table's column.
        title: what it is, for a person.
        formula: how it is computed, with A the weights, i a query and j a key.
        source: which published variant this is.
        share: whether it is a share of the attention, from 0 to 1, that a head may stand out by.
        sums: the numerator and the denominator for each query.
    """

    name: str
    label: Text
    title: Text
    formula: Text
    source: Text
    share: bool
    sums: Callable[[Rows], Sums]


def total(metric: Metric, rows: Rows) -> tuple[Tensor, Tensor]:
    """Numerator and denominator summed over batch and queries, each (H,) in float64.

    A query that does not count contributes to neither.
    """
    above, below = metric.sums(rows)
    batch, heads, length = rows.weights.shape[:3]
    counts = rows.queries()
    shape = (batch, heads, length)
    above = torch.where(counts, above.double(), 0.0).expand(shape)
    below = torch.where(counts, below.double(), 0.0).expand(shape)
    return above.sum((0, 2)), below.sum((0, 2))

"""How alike heads are: the divergence of what they attend to, and groups of heads that agree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.names import Head, Layer, by_layer
from headwise.heads.sums import MOST_NAMES, Accumulator, RatioEstimate, ratio_sums
from headwise.lang import Text


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of distributions over the last axis, in nats, 0 to log 2.

    Its square root is a distance; this is the divergence itself.

    Args:
        one: (..., n), each summing to 1.
        other: the same.

    Source: Clark et al. 2019, section 6; Lin 1991.

    Example:
        >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).exp()
        tensor(2.)
    """
    middle = (one + other) / 2
    return (_divergence(one, middle) + _divergence(other, middle)) / 2


def distances(weights: Float[Tensor, "h lq lk"], allowed: Tensor | None = None) -> Tensor:
    """The mean divergence between what heads attend to, (H, H), over the queries that see a key.

    Args:
        weights: of the heads of one text, of any layers, (H, Lq, Lk); rows sum to 1.
        allowed: (H or 1, Lq, Lk), where a query may attend; None means everywhere.

    Source: Clark et al. 2019, section 6, without the smoothing, and as a mean: their sum grows
    with the corpus.
    """
    heads, queries, keys = weights.shape
    seen = torch.ones(1, queries, keys, dtype=torch.bool) if allowed is None else allowed
    counts = seen.any(-1).expand(heads, -1)  # (H, Lq)
    both = counts[:, None] & counts[None]
    found = torch.stack([jensen_shannon(row[None], weights) for row in weights])  # (H, H, Lq)
    return (found * both).sum(-1) / both.sum(-1).clamp(min=1)


SMOOTH = 1e-3
"""The share of a uniform head that Clark et al. mix in before they compare heads."""


def clark_distances(weights: Float[Tensor, "h lq lk"]) -> Tensor:
    """The divergence between heads as published, summed over the queries of a text, (H, H).

    Of several texts it is the sum, which grows with the corpus; `distances` is a mean.

    Args:
        weights: of the heads of one text, of any layers, (H, Lq, Lk); rows sum to 1.

    Source: Clark et al. 2019, section 6, and their code: A' = 0.999 A + 0.001 / N.
    """
    smooth = (1 - SMOOTH) * weights + SMOOTH / weights.shape[-1]
    return torch.stack([jensen_shannon(row[None], smooth).sum(-1) for row in smooth])


def groups(distance: Tensor, most: float) -> list[list[int]]:
    """Heads that agree, each group with its heads in order, the groups by their first head.

    Two heads are in one group if no two heads of it are further apart than ``most`` (complete
    linkage): the nearest two groups are joined first.

    Args:
        distance: (H, H), symmetric.
        most: what the heads of a group may differ by at most.

    Raises:
        BadValue: if the distances are no symmetric square.

    Example:
        >>> groups(torch.tensor([[0.0, 0.1, 0.6], [0.1, 0.0, 0.6], [0.6, 0.6, 0.0]]), 0.2)
        [[0, 1], [2]]
    """
    if distance.dim() != 2 or not torch.equal(distance, distance.mT):
        raise BadValue(
            "distance: expected a symmetric (H, H), got {distance_shape}",
            distance_shape=tuple(distance.shape),
        )
    heads = distance.shape[0]
    found = {number: [number] for number in range(heads)}  # by the first head of each
    apart = distance.double().clone().fill_diagonal_(torch.inf)  # of groups: their furthest heads
    while len(found) > 1:
        one, other = divmod(int(apart.argmin()), heads)
        if one == other or apart[one, other] > most:
            break
        found[one] = sorted(found[one] + found.pop(other))
        apart[one] = apart[one].maximum(apart[other])
        apart[:, one] = apart[one]
        apart[other] = apart[:, other] = torch.inf
    return list(found.values())


MOST_CELLS = 1 << 22
"""How many pairs of numbers one text is compared by: of longer ones fewer queries are taken."""


MOST_PAIRS = 1_400_000
"""How many pairs of heads of one part of a model are compared: those of 1600 heads in 40 layers.

Their sums grow with the square of the heads. Of the four times that a run keeps them, in each half
for the model and for its random copy, in three parts of a model, these are 0.8 GB.
"""

NOT_COMPARED = Text(
    "heads are not compared with each other: they are more than {most_pairs:,} "
    "pairs; everything else is measured",
    most_pairs=MOST_PAIRS,
)


def is_comparable(heads: Iterable[Head]) -> bool:
    """Whether the heads of each part of a model are few enough to be compared with each other.

    Args:
        heads: of one part, or of several.
    """
    sizes: dict[str, list[int]] = {}
    for layer, found in by_layer(heads).items():
        sizes.setdefault(layer.part, []).append(len(found))
    return all(
        _pairs(counts) <= MOST_PAIRS and _squares(counts) <= MOST_NAMES for counts in sizes.values()
    )


def _pairs(sizes: Sequence[int]) -> int:
    """How many pairs of heads have sums: of one layer with itself, and with each later one."""
    return (sum(sizes) ** 2 + sum(size * size for size in sizes)) // 2


def _squares(sizes: Sequence[int]) -> int:
    """How many pairs of layers that are."""
    return len(sizes) * (len(sizes) + 1) // 2


@dataclass
class Similarity:
    """How alike every two heads of a part of a model are, over many texts.

    Of a part with more pairs than `MOST_PAIRS` nothing is taken in.

    Two heads that are both near to a uniform one are near to each other too, and say nothing. So
    what counts is which share of their departures from uniform two heads have in common:

        agreement = 1 - JS(h, g) / (JS(h, u) + JS(g, u))

    with u uniform over the allowed keys. It is 1 for heads that do the same, and about 0 for heads
    that depart from uniform independently. Ours; JS is that of Clark et al. 2019, section 6.

    Attributes:
        sums: for every two layers of a part moments (H, H, 6) of the divergence of their heads (x)
            and of the sum of their departures (y), each a mean over queries of a text.
    """

    sums: Accumulator = field(default_factory=Accumulator)

    def add(self, weights: Mapping[Head, Tensor], allowed: Tensor) -> None:
        """Take in one text.

        Args:
            weights: of each head of one part of the model, (Lq, Lk); 0 where not allowed.
            allowed: (Lq, Lk), where each of them may attend.
        """
        if not is_comparable(weights):
            return
        layers = by_layer(weights)
        ordered = [head for heads in layers.values() for head in heads]
        queries = _chosen(allowed, len(ordered))
        if not len(queries):
            return
        rows = torch.stack([weights[head][queries] for head in ordered]).double()  # (H, R, Lk)
        rows = rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        uniform = allowed[queries].to(rows.dtype)
        uniform = uniform / uniform.sum(-1, keepdim=True)
        apart = _pairwise(rows)
        departs = jensen_shannon(rows, uniform).mean(-1)  # (H,)
        found = ratio_sums(apart, departs[:, None] + departs)
        sizes = [len(heads) for heads in layers.values()]
        for one, band in zip(layers, torch.split(found, sizes), strict=True):
            for other, square in zip(layers, torch.split(band, sizes, dim=1), strict=True):
                if one <= other:
                    self.sums.add(f"{one}|{other}", square)

    def merge(self, other: "Similarity") -> None:
        """Take in what was measured elsewhere."""
        self.sums.merge(other.sums)

    def heads(self) -> tuple[Head, ...]:
        """Every head that was compared."""
        return tuple(
            Head(layer, number)
            for layer in self._layers()
            for number in range(len(self.sums[f"{layer}|{layer}"]))
        )

    def share(self, one: Head, other: Head) -> RatioEstimate:
        """The divergence of two heads as a share of their departures: 1 less their agreement."""
        low, high = sorted((one, other))
        return RatioEstimate.of(self.sums[f"{low.layer}|{high.layer}"][low.number, high.number])

    def agreement(self, one: Head, other: Head) -> float:
        """1 - Σ JS(h, g) / Σ (JS(h, u) + JS(g, u)); NaN where both are uniform everywhere."""
        return 1 - self.share(one, other).value

    def pairs(self) -> tuple[tuple[Head, Head], ...]:
        """Every two heads that can be compared: of one part of the model."""
        heads = sorted(self.heads())
        return tuple(
            (one, other)
            for one, other in combinations_with_replacement(heads, 2)
            if one != other and one.layer.part == other.layer.part
        )

    def distances(self, part: str = "") -> tuple[tuple[Head, ...], Tensor]:
        """The heads of a part, and the mean divergence of every two, (H, H), for `groups`."""
        layers = [layer for layer in self._layers() if layer.part == part]
        heads = tuple(head for head in self.heads() if head.layer.part == part)
        whole = torch.zeros(len(heads), len(heads), dtype=torch.float64)
        starts = {layer: heads.index(Head(layer, 0)) for layer in layers}
        for one, other in combinations_with_replacement(layers, 2):
            sums = self.sums[f"{one}|{other}"]
            mean = sums[..., 1] / sums[..., 0].clamp(min=1)
            rows = slice(starts[one], starts[one] + len(mean))
            columns = slice(starts[other], starts[other] + mean.shape[1])
            whole[rows, columns] = mean
            whole[columns, rows] = mean.mT
        return heads, (whole + whole.mT) / 2

    def _layers(self) -> list[Layer]:
        """Every layer that was compared, in order."""
        found = {Head.parse(f"{name.split('|')[0]}H0").layer for name in self.sums}
        return sorted(found)


def _pairwise(rows: Tensor) -> Tensor:
    """The mean divergence of every two of (H, R, Lk), as H((p + q) / 2) - (H(p) + H(q)) / 2."""
    own = _entropy(rows).mean(-1)  # (H,)
    apart = rows.new_zeros(len(rows), len(rows))
    for number, row in enumerate(rows):
        together = _entropy((row + rows[number:]) / 2).mean(-1)
        apart[number, number:] = (together - (own[number] + own[number:]) / 2).clamp(min=0)
    apart.fill_diagonal_(0.0)
    return apart + apart.mT


def _entropy(rows: Tensor) -> Tensor:
    least = torch.finfo(rows.dtype).tiny
    return -(rows * rows.clamp(min=least).log()).sum(-1)


def _chosen(allowed: Tensor, heads: int) -> Tensor:
    """Queries that may attend to two keys or more, evenly spaced where there are too many."""
    seen = (allowed.sum(-1) > 1).nonzero().flatten()
    most = max(1, MOST_CELLS // max(1, heads * heads * allowed.shape[-1]))
    if len(seen) <= most:
        return seen
    return seen[torch.linspace(0, len(seen) - 1, most).long()]


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Σ p log(p / q), where 0 log 0 is 0 and q is 0 only where p is."""
    terms: Tensor = torch.special.xlogy(one, one) - torch.special.xlogy(one, other)
    return terms.sum(-1)

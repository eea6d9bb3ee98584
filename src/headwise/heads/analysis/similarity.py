"""The similarity of heads: the divergence of their attention, and groups of similar heads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.engines.statistics import row_entropy
from headwise.errors import BadValue
from headwise.heads.names import Head, Layer, by_layer
from headwise.heads.sums import MOST_NAMES, RatioEstimate, TextSums, ratio_sums
from headwise.lang import Text


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence over the last axis, in nats, from 0 to log 2.

    The square root of the divergence is a distance.

    Args:
        one: distributions (..., n) over the last axis.
        other: distributions (..., n) over the last axis.

    Source: Clark et al. 2019, section 6; Lin 1991.

    Example:
        >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).exp()
        tensor(2.)
    """
    middle = (one + other) / 2
    return (_divergence(one, middle) + _divergence(other, middle)) / 2


def distances(weights: Float[Tensor, "h lq lk"], allowed: Tensor | None = None) -> Tensor:
    """Return the mean divergence (H, H) between heads over queries that are not fully masked.

    Args:
        weights: the weights of heads of any layers on one text, (H, Lq, Lk); rows sum to 1.
        allowed: (H or 1, Lq, Lk), True where a query may attend; None for everywhere.

    Source: Clark et al. 2019, section 6, without smoothing and as a mean instead of a sum.
    """
    heads, queries, keys = weights.shape
    if allowed is None:
        allowed = torch.ones(1, queries, keys, dtype=torch.bool)
    counts = allowed.any(-1).expand(heads, -1)  # (H, Lq)
    both = counts[:, None] & counts[None]
    divergence = torch.stack([jensen_shannon(row[None], weights) for row in weights])  # (H, H, Lq)
    return (divergence * both).sum(-1) / both.sum(-1).clamp(min=1)


SMOOTH = 1e-3  # the share of a uniform head that Clark et al. 2019 add before comparing heads


def clark_distances(weights: Float[Tensor, "h lq lk"]) -> Tensor:
    """Return the divergence (H, H) between heads as published, summed over the queries of a text.

    Args:
        weights: the weights of heads of any layers on one text, (H, Lq, Lk); rows sum to 1.

    Source: Clark et al. 2019, section 6, and the code of the paper: A' = 0.999 A + 0.001 / N.
    """
    smooth = (1 - SMOOTH) * weights + SMOOTH / weights.shape[-1]
    return torch.stack([jensen_shannon(row[None], smooth).sum(-1) for row in smooth])


def groups(distance: Tensor, most: float) -> list[list[int]]:
    """Group heads by complete linkage: two heads of a group differ by at most ``most``.

    The two nearest groups are merged first. Groups are sorted by their first heads.

    Args:
        distance: (H, H), symmetric.
        most: the largest distance in a group.

    Raises:
        BadValue: if ``distance`` is not symmetric.

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
    members = {number: [number] for number in range(heads)}  # groups by their first head
    apart = distance.double().clone().fill_diagonal_(torch.inf)  # between groups, the largest
    while len(members) > 1:
        one, other = divmod(int(apart.argmin()), heads)
        if one == other or apart[one, other] > most:
            break
        members[one] = sorted(members[one] + members.pop(other))
        apart[one] = apart[one].maximum(apart[other])
        apart[:, one] = apart[one]
        apart[other] = apart[:, other] = torch.inf
    return list(members.values())


MOST_CELLS = 1 << 22  # the most compared pairs of weights of a text; long texts use fewer queries

MOST_PAIRS = 1_400_000
"""The most pairs of heads that are compared in a part of a model: 1600 heads in 40 layers.

A run stores sums for two halves, for the model and its copy, in up to three parts: 0.8 GB.
"""

NOT_COMPARED = Text(
    "heads are not compared with each other, because there are more than {most_pairs:,} pairs",
    most_pairs=MOST_PAIRS,
)


def is_comparable(heads: Iterable[Head]) -> bool:
    """Return whether the heads of each part of a model are few enough to compare pairs."""
    sizes: dict[str, list[int]] = {}
    for layer, own in by_layer(heads).items():
        sizes.setdefault(layer.part, []).append(len(own))
    for counts in sizes.values():
        pairs_of_layers = len(counts) * (len(counts) + 1) // 2
        pairs_of_heads = (sum(counts) ** 2 + sum(count * count for count in counts)) // 2
        if pairs_of_heads > MOST_PAIRS or pairs_of_layers > MOST_NAMES:
            return False
    return True


@dataclass
class Similarity(TextSums):
    """The similarity of all pairs of heads in a part of a model, over many texts.

    A part with more pairs than `MOST_PAIRS` is ignored.

        agreement = 1 - JS(h, g) / (JS(h, u) + JS(g, u))

    with u uniform over the allowed keys. The denominator is needed because the divergence of two
    nearly uniform heads is always small. The agreement is 1 for equal heads, and about 0 for heads
    that differ from uniform independently. It is our measure; JS is that of Clark et al. 2019.

    Attributes:
        sums: for each pair of layers of a part the moments (H, H, 6) of x, the divergence of two
            heads, and y, the sum of their divergences from uniform; means over queries of a text.
    """

    def add(self, weights: Mapping[Head, Tensor], allowed: Tensor) -> None:
        """Add one text.

        Args:
            weights: the attention weights (Lq, Lk) of each head of a part; 0 where not allowed.
            allowed: (Lq, Lk), True where all of these heads may attend.
        """
        if not is_comparable(weights):
            return
        layers = by_layer(weights)
        ordered = [head for heads in layers.values() for head in heads]
        queries = _sampled_queries(allowed, len(ordered))
        if not len(queries):
            return
        rows = torch.stack([weights[head][queries] for head in ordered]).double()  # (H, R, Lk)
        rows = rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        uniform = allowed[queries].to(rows.dtype)
        uniform = uniform / uniform.sum(-1, keepdim=True)
        departures = jensen_shannon(rows, uniform).mean(-1)  # (H,)
        moments = ratio_sums(_pairwise(rows), departures[:, None] + departures)
        sizes = [len(heads) for heads in layers.values()]
        for one, band in zip(layers, torch.split(moments, sizes), strict=True):
            for other, square in zip(layers, torch.split(band, sizes, dim=1), strict=True):
                if one <= other:
                    self.sums.add(f"{one}|{other}", square)

    def heads(self) -> tuple[Head, ...]:
        """Return every head that was compared."""
        sizes = [(layer, len(self.sums[f"{layer}|{layer}"])) for layer in self._layers()]
        return tuple(Head(layer, number) for layer, heads in sizes for number in range(heads))

    def share(self, one: Head, other: Head) -> RatioEstimate:
        """Return 1 - `agreement` of two heads as a ratio over texts."""
        low, high = sorted((one, other))
        return RatioEstimate.of(self.sums[f"{low.layer}|{high.layer}"][low.number, high.number])

    def agreement(self, one: Head, other: Head) -> float:
        """Return 1 - Σ JS(h, g) / Σ (JS(h, u) + JS(g, u)); NaN if both heads are always uniform."""
        return 1 - self.share(one, other).value

    def pairs(self) -> tuple[tuple[Head, Head], ...]:
        """Return all pairs of heads of the same part of the model."""
        pairs = combinations(sorted(self.heads()), 2)
        return tuple(pair for pair in pairs if pair[0].layer.part == pair[1].layer.part)

    def distances(self, part: str = "") -> tuple[tuple[Head, ...], Tensor]:
        """Return the heads of a part and their mean divergences (H, H), for `groups`."""
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
        return sorted({Head.parse(f"{name.split('|')[0]}H0").layer for name in self.sums})


def _pairwise(rows: Tensor) -> Tensor:
    """Return the mean divergences of rows (H, R, Lk), H((p + q) / 2) - (H(p) + H(q)) / 2."""
    own = row_entropy(rows).mean(-1)  # (H,)
    apart = rows.new_zeros(len(rows), len(rows))
    for number, row in enumerate(rows):
        mixed = row_entropy((row + rows[number:]) / 2).mean(-1)
        apart[number, number:] = (mixed - (own[number] + own[number:]) / 2).clamp(min=0)
    apart.fill_diagonal_(0.0)
    return apart + apart.mT


def _sampled_queries(allowed: Tensor, heads: int) -> Tensor:
    """Return queries with at least two allowed keys, evenly spaced if there are too many."""
    queries = (allowed.sum(-1) > 1).nonzero().flatten()
    most = max(1, MOST_CELLS // max(1, heads * heads * allowed.shape[-1]))
    if len(queries) <= most:
        return queries
    return queries[torch.linspace(0, len(queries) - 1, most).long()]


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Return Σ p log(p / q), where 0 log 0 is 0; q may be 0 only where p is 0."""
    terms: Tensor = torch.special.xlogy(one, one) - torch.special.xlogy(one, other)
    return terms.sum(-1)

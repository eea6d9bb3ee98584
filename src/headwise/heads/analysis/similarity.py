"""The similarity of heads: the divergence of their attention, and groups of heads that agree."""

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
    """The mean divergence between heads, (H, H), over the queries that see a key.

    Args:
        weights: of the heads of one text, of any layers, (H, Lq, Lk); rows sum to 1.
        allowed: (H or 1, Lq, Lk), where a query may attend; None for everywhere.

    Source: Clark et al. 2019, section 6, without the smoothing, and as a mean, not a sum.
    """
    heads, queries, keys = weights.shape
    if allowed is None:
        allowed = torch.ones(1, queries, keys, dtype=torch.bool)
    counts = allowed.any(-1).expand(heads, -1)  # (H, Lq)
    both = counts[:, None] & counts[None]
    divergence = torch.stack([jensen_shannon(row[None], weights) for row in weights])  # (H, H, Lq)
    return (divergence * both).sum(-1) / both.sum(-1).clamp(min=1)


SMOOTH = 1e-3  # the share of a uniform head that Clark et al. mix in before they compare heads


def clark_distances(weights: Float[Tensor, "h lq lk"]) -> Tensor:
    """The divergence between heads as published, summed over the queries of a text, (H, H).

    Args:
        weights: of the heads of one text, of any layers, (H, Lq, Lk); rows sum to 1.

    Source: Clark et al. 2019, section 6, and their code: A' = 0.999 A + 0.001 / N.
    """
    smooth = (1 - SMOOTH) * weights + SMOOTH / weights.shape[-1]
    return torch.stack([jensen_shannon(row[None], smooth).sum(-1) for row in smooth])


def groups(distance: Tensor, most: float) -> list[list[int]]:
    """Groups of heads by complete linkage: no two heads of a group differ by more than ``most``.

    The nearest two groups are joined first. Heads are in order, groups in the order of their first
    head.

    Args:
        distance: (H, H), symmetric.
        most: the largest distance in a group.

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
    members = {number: [number] for number in range(heads)}  # by the first head of each group
    apart = distance.double().clone().fill_diagonal_(torch.inf)  # the furthest heads of two groups
    while len(members) > 1:
        one, other = divmod(int(apart.argmin()), heads)
        if one == other or apart[one, other] > most:
            break
        members[one] = sorted(members[one] + members.pop(other))
        apart[one] = apart[one].maximum(apart[other])
        apart[:, one] = apart[one]
        apart[other] = apart[:, other] = torch.inf
    return list(members.values())


MOST_CELLS = 1 << 22  # the most pairs of weights compared in a text; longer ones use fewer queries

MOST_PAIRS = 1_400_000
"""The largest number of pairs of heads compared in one part of a model: 1600 heads in 40 layers.

A run keeps their sums in two halves, for the model and its copy, in up to three parts: 0.8 GB.
"""

NOT_COMPARED = Text(
    "heads are not compared with each other: they are more than {most_pairs:,} "
    "pairs; everything else is measured",
    most_pairs=MOST_PAIRS,
)


def is_comparable(heads: Iterable[Head]) -> bool:
    """Whether the heads of each part of a model are few enough to be compared with each other."""
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
    """The similarity of every two heads of a part of a model, over many texts.

    A part with more pairs than `MOST_PAIRS` is ignored.

        agreement = 1 - JS(h, g) / (JS(h, u) + JS(g, u))

    with u uniform over the allowed keys: two nearly uniform heads are close to each other whatever
    they do. The agreement is 1 for equal heads, and about 0 for heads that depart from uniform
    independently. Ours; JS is that of Clark et al. 2019, section 6.

    Attributes:
        sums: for every two layers of a part the moments (H, H, 6) of the divergence of their heads
            (x) and of the sum of their departures from uniform (y), means over queries of a text.
    """

    def add(self, weights: Mapping[Head, Tensor], allowed: Tensor) -> None:
        """Add one text.

        Args:
            weights: of each head of one part of the model, (Lq, Lk); 0 where not allowed.
            allowed: (Lq, Lk), where all of them may attend.
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
        """Every head that was compared."""
        sizes = [(layer, len(self.sums[f"{layer}|{layer}"])) for layer in self._layers()]
        return tuple(Head(layer, number) for layer, heads in sizes for number in range(heads))

    def share(self, one: Head, other: Head) -> RatioEstimate:
        """The divergence of two heads divided by their departures: 1 - `agreement`."""
        low, high = sorted((one, other))
        return RatioEstimate.of(self.sums[f"{low.layer}|{high.layer}"][low.number, high.number])

    def agreement(self, one: Head, other: Head) -> float:
        """1 - Σ JS(h, g) / Σ (JS(h, u) + JS(g, u)); NaN where both are uniform everywhere."""
        return 1 - self.share(one, other).value

    def pairs(self) -> tuple[tuple[Head, Head], ...]:
        """Every two heads of one part of the model."""
        pairs = combinations(sorted(self.heads()), 2)
        return tuple(pair for pair in pairs if pair[0].layer.part == pair[1].layer.part)

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
        return sorted({Head.parse(f"{name.split('|')[0]}H0").layer for name in self.sums})


def _pairwise(rows: Tensor) -> Tensor:
    """The mean divergence of every two of (H, R, Lk), as H((p + q) / 2) - (H(p) + H(q)) / 2."""
    own = row_entropy(rows).mean(-1)  # (H,)
    apart = rows.new_zeros(len(rows), len(rows))
    for number, row in enumerate(rows):
        mixed = row_entropy((row + rows[number:]) / 2).mean(-1)
        apart[number, number:] = (mixed - (own[number] + own[number:]) / 2).clamp(min=0)
    apart.fill_diagonal_(0.0)
    return apart + apart.mT


def _sampled_queries(allowed: Tensor, heads: int) -> Tensor:
    """Queries that may attend to two keys or more, evenly spaced if there are too many."""
    queries = (allowed.sum(-1) > 1).nonzero().flatten()
    most = max(1, MOST_CELLS // max(1, heads * heads * allowed.shape[-1]))
    if len(queries) <= most:
        return queries
    return queries[torch.linspace(0, len(queries) - 1, most).long()]


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Σ p log(p / q), where 0 log 0 is 0 and q is 0 only where p is."""
    terms: Tensor = torch.special.xlogy(one, one) - torch.special.xlogy(one, other)
    return terms.sum(-1)

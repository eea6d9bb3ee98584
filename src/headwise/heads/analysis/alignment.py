"""Measure the agreement of heads with gold pairs of query and key.

A pair is, for example, a word and its translation, a word and the sound in which it is spoken, or
an atom after and before a reaction.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.names import Head
from headwise.heads.sums import TextSums

Pairs = Collection[tuple[int, int]]  # (query, key), each counted from 0

NAMES = ("right", "weight", "queries", "sure_hits", "possible_hits", "predicted", "sure")
"""The sums of each head, in the order of the tensor."""


@dataclass
class Alignment(TextSums):
    """The agreement of heads with gold pairs: the sums of `NAMES` by the name of the head."""

    def add(
        self,
        weights: Mapping[Head, Tensor],
        sure: Pairs,
        *,
        possible: Pairs = (),
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> None:
        """Add one text.

        Args:
            weights: the attention weights (Lq, Lk) of each head, 0 where not allowed.
            sure: the gold pairs.
            possible: further pairs that do not count as errors.
            queries: (Lq,), True for the queries to align; None for queries with a pair.
            keys: (Lk,), True for the keys that can be predicted, such as the atoms of a formula;
                None for all. The prediction of a head is the key with the largest weight.

        Raises:
            BadValue: if there is no pair, a pair is outside the weights, or a mask has the wrong
                length.
        """
        for head, table in weights.items():
            gold, loose = _marked(sure, table), _marked((*sure, *possible), table)
            aligned = gold.any(-1) if queries is None else _fits(queries, table, 0, "queries")
            candidates = None if keys is None else _fits(keys, table, 1, "keys")
            self.sums.add(str(head), _counted(table, gold, loose, aligned, candidates))

    def heads(self) -> tuple[Head, ...]:
        """Return every head with sums."""
        return tuple(Head.parse(name) for name in self.sums)

    def accuracy(self, head: Head) -> float:
        """Return the share of queries with a gold pair whose prediction is a gold key, or NaN.

        Source: the attention accuracy of Ferrando & Costa-jussà 2021, section 4.
        """
        return self._quotient(head, "right", "queries")

    def mean_weight(self, head: Head) -> float:
        """Return the mean weight of queries with a gold pair on their gold keys.

        Source: the attention on the aligned words of Ghader & Monz 2017, section 4.
        """
        return self._quotient(head, "weight", "queries")

    def error_rate(self, head: Head) -> float:
        """Return AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), A the predictions of the queries.

        Source: Och & Ney 2003, equation 20; S the sure pairs, P the sure and the possible pairs.
        """
        row = dict(zip(NAMES, self.sums[str(head)].tolist(), strict=True))
        below = row["predicted"] + row["sure"]
        hits = row["sure_hits"] + row["possible_hits"]
        return 1 - hits / below if below else float("nan")

    def _quotient(self, head: Head, above: str, below: str) -> float:
        row = self.sums[str(head)]
        return (row[NAMES.index(above)] / row[NAMES.index(below)]).item()


def _marked(pairs: Pairs, table: Tensor) -> Tensor:
    """Return (Lq, Lk), True at the pairs; raise `BadValue` for invalid pairs."""
    marked = torch.zeros(table.shape, dtype=torch.bool, device=table.device)
    inside = all(0 <= i < table.shape[0] and 0 <= j < table.shape[1] for i, j in pairs)
    if not pairs or not inside:
        raise BadValue(
            "pairs: expected pairs (query, key) below {table_shape}, got {num_pairs} pairs, first "
            "{pairs}; count from 0",
            table_shape=tuple(table.shape),
            pairs=sorted(pairs)[:3],
            num_pairs=len(pairs),
        )
    index = torch.tensor(sorted(pairs), device=table.device)
    marked[index[:, 0], index[:, 1]] = True
    return marked


def _fits(mask: Tensor, table: Tensor, axis: int, name: str) -> Tensor:
    if mask.shape != table.shape[axis : axis + 1]:
        raise BadValue(
            "{name}: expected a boolean mask of length {table_shape}, got shape {mask_shape}",
            name=name,
            table_shape=table.shape[axis],
            mask_shape=tuple(mask.shape),
        )
    return mask.bool()


def _counted(
    table: Tensor, gold: Tensor, loose: Tensor, aligned: Tensor, candidates: Tensor | None
) -> Tensor:
    shown = table if candidates is None else table.masked_fill(~candidates, -1.0)
    predicted = shown.argmax(-1, keepdim=True)  # (Lq, 1)
    judged = gold.any(-1) & aligned
    hits = gold.gather(-1, predicted)[:, 0] & aligned
    loosely = loose.gather(-1, predicted)[:, 0] & aligned
    weight = (table * gold).sum(-1)[judged].double()
    counts = ((hits & judged), weight, judged, hits, loosely, aligned, gold)
    return torch.stack([count.sum().double() for count in counts])

"""Sums of metrics for every layer and head. Sums of two texts merge into the sums of both."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.metrics import METRICS, Metric, Rows, total
from headwise.heads.names import Head, Layer


@dataclass
class Sums:
    """Numerators and denominators of one layer, in float64.

    Attributes:
        above, below: (metrics, H).
        uniform_above, uniform_below: (metrics,), the same of a head that attends to all alike.
        queries: how many queries were counted.
    """

    above: Tensor
    below: Tensor
    uniform_above: Tensor
    uniform_below: Tensor
    queries: int

    @classmethod
    def of(cls, rows: Rows) -> "Sums":
        """The sums of one block of queries."""
        heads = [total(metric, rows) for metric in METRICS]
        baseline = rows.uniform
        uniform = [total(metric, baseline) for metric in METRICS]
        return cls(
            torch.stack([above for above, _ in heads]).cpu(),
            torch.stack([below for _, below in heads]).cpu(),
            torch.cat([above for above, _ in uniform]).cpu(),
            torch.cat([below for _, below in uniform]).cpu(),
            int(rows.queries().any(1).sum()),
        )

    def add(self, other: "Sums") -> None:
        """Take in the sums of more queries."""
        if self.above.shape != other.above.shape:
            raise BadValue(
                f"statistics: a layer had {self.above.shape[1]} heads and now has "
                f"{other.above.shape[1]}; keep one Statistics for each model",
                f"statistics：同一层先前有 {self.above.shape[1]} 个头，现在有 "
                f"{other.above.shape[1]} 个；请为每个模型使用各自的 Statistics",
            )
        self.above += other.above
        self.below += other.below
        self.uniform_above += other.uniform_above
        self.uniform_below += other.uniform_below
        self.queries += other.queries


@dataclass
class Statistics:
    """Every metric of every head of a model, over all the text it was shown."""

    layers: dict[Layer, Sums] = field(default_factory=dict)

    def add(self, layer: Layer, rows: Rows) -> None:
        """Take in a block of queries of one layer."""
        self._take(layer, Sums.of(rows))

    def merge(self, other: "Statistics") -> None:
        """Take in the statistics of another text through the same model."""
        for layer, sums in other.layers.items():
            self._take(layer, sums)

    def _take(self, layer: Layer, sums: Sums) -> None:
        if layer in self.layers:
            self.layers[layer].add(sums)
        else:
            self.layers[layer] = Sums(
                sums.above.clone(),
                sums.below.clone(),
                sums.uniform_above.clone(),
                sums.uniform_below.clone(),
                sums.queries,
            )

    def heads(self) -> tuple[Head, ...]:
        """Every head, layer by layer."""
        return tuple(
            Head(layer, number)
            for layer, sums in self.layers.items()
            for number in range(sums.above.shape[1])
        )

    def value(self, metric: Metric, head: Head) -> float:
        """One metric of one head; NaN where no query could show it."""
        sums, row = self.layers[head.layer], METRICS.index(metric)
        return _quotient(sums.above[row, head.number], sums.below[row, head.number])

    def uniform(self, metric: Metric, layer: Layer) -> float:
        """The same metric of a head that attends to every allowed key alike."""
        sums, row = self.layers[layer], METRICS.index(metric)
        return _quotient(sums.uniform_above[row], sums.uniform_below[row])


def _quotient(above: Tensor, below: Tensor) -> float:
    return (above / below).item()

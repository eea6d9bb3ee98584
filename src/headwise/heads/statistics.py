"""Sums of metrics for every layer and head, which can be merged over texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.errors import BadFile, BadType, BadValue
from headwise.heads.metrics import MEASURED, Metric, Rows, totals
from headwise.heads.metrics.distances import PROFILES, Profile, summed
from headwise.heads.names import Head, Layer, none_such

MOST_HEADS = 1 << 16  # the most heads of a layer in a file


@dataclass
class Sums:
    """The numerators and denominators of the metrics of one layer, in float64.

    Attributes:
        above, below: the numerators and denominators of the heads, (metrics, H).
        uniform_above, uniform_below: those of a head that attends equally to all keys, (metrics,).
        profiles: for each name of a profile (4, H, places): numerator and denominator of the heads,
            and numerator and denominator of a head that attends equally to all keys.
        queries: the number of queries that count.
    """

    above: Tensor
    below: Tensor
    uniform_above: Tensor
    uniform_below: Tensor
    profiles: dict[str, Tensor]
    queries: int

    @classmethod
    def of(
        cls, rows: Rows, metrics: Sequence[Metric] = MEASURED, baseline: "Baseline | None" = None
    ) -> "Sums":
        """Return the sums over one block of queries; measure the baseline if it is None."""
        baseline = Baseline.of(rows.uniform, metrics) if baseline is None else baseline
        curves = {}
        for profile in PROFILES:
            own = torch.stack(summed(profile, rows)).cpu()
            curves[profile.name] = torch.cat((own, baseline.curves[profile.name].expand_as(own)))
        queries = int(rows.context.queries.any(1).sum())
        (above, below), uniform = totals(metrics, rows).cpu(), baseline.sums.clone()
        return cls(above, below, uniform[0], uniform[1], curves, queries)

    def add(self, other: "Sums") -> None:
        """Add the sums over more queries."""
        if self.above.shape != other.above.shape:
            raise BadValue(
                "statistics: expected {heads} heads in a layer, got "
                "{new_heads}; use one Statistics for each model",
                heads=self.above.shape[1],
                new_heads=other.above.shape[1],
            )
        tensors = self.tensors()
        for name, more in other.tensors().items():
            tensors[name] += more
        self.queries = int(tensors["queries"])

    def tensors(self) -> dict[str, Tensor]:
        """Return all sums by name."""
        return {
            **{name: getattr(self, name) for name in AXES},
            **{name: self.profiles[profile.name] for name, profile in CURVES.items()},
            "queries": torch.tensor(self.queries),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Sums":
        """Return a copy of sums from `tensors`."""
        return cls(
            **{name: tensors[name].clone() for name in AXES},
            profiles={profile.name: tensors[name].clone() for name, profile in CURVES.items()},
            queries=int(tensors["queries"]),
        )


AXES = {"above": 2, "below": 2, "uniform_above": 1, "uniform_below": 1}  # dimensions per tensor
CURVES = {f"profile.{profile.name}": profile for profile in PROFILES}  # profiles by tensor name


@dataclass(frozen=True, eq=False)
class Baseline:
    """The sums of a uniform head: (2, metrics), and (2, 1, places) by the name of a profile."""

    sums: Tensor
    curves: dict[str, Tensor]

    @classmethod
    def of(cls, uniform: Rows, metrics: Sequence[Metric]) -> "Baseline":
        """Return the baseline from rows of a uniform head."""
        curves = {profile.name: torch.stack(summed(profile, uniform)).cpu() for profile in PROFILES}
        return cls(totals(metrics, uniform)[..., 0].cpu(), curves)


@dataclass
class Statistics:
    """Every metric of every head of a model, over all measured texts.

    Attributes:
        layers: the sums of each layer.
        metrics: the metrics, in the order of the rows of the sums.
    """

    layers: dict[Layer, Sums] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = MEASURED

    def add(self, layer: Layer, rows: Rows, baseline: Baseline | None = None) -> None:
        """Add a block of queries of one layer; measure the baseline if it is None."""
        self._take(layer, Sums.of(rows, self.metrics, baseline))

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the properties of `Rows` that the metrics and profiles read."""
        facts = {fact for metric in self.metrics for fact in metric.reads}
        facts |= {fact for profile in PROFILES for fact in profile.reads}
        return tuple(sorted(facts | {"queries"}))

    def merge(self, other: "Statistics") -> None:
        """Add the statistics of the same model on other texts.

        Raises `BadValue` if the metrics differ, or the number of heads of a layer differs.
        """
        if self.metrics != other.metrics:
            raise BadValue(
                "statistics: expected the metrics {named}, got {other_named}; measure both "
                "with the same metrics",
                named=_named(self.metrics),
                other_named=_named(other.metrics),
            )
        for layer, sums in other.layers.items():
            self._take(layer, sums)

    def _take(self, layer: Layer, sums: Sums) -> None:
        if layer in self.layers:
            self.layers[layer].add(sums)
        else:
            self.layers[layer] = Sums.from_tensors(sums.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """Return all sums by name, such as "decoder.L0/above"; sums over texts can be added.

        `from_tensors` reads the sums back; it needs the same `metrics` in the same order.
        """
        return {
            f"{layer}/{name}": tensor
            for layer, sums in self.layers.items()
            for name, tensor in sums.tensors().items()
        }

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], metrics: tuple[Metric, ...] = MEASURED
    ) -> "Statistics":
        """Return the statistics that `tensors` wrote, with the same metrics.

        Raises `BadFile` if a name, shape, dtype or number is invalid.
        """
        parts: dict[Layer, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            layer, _, field_name = name.rpartition("/")
            parts.setdefault(_layer(layer, name), {})[field_name] = tensor
        layers = {layer: _sums(layer, named, metrics) for layer, named in parts.items()}
        return cls(layers, metrics)

    def heads(self) -> tuple[Head, ...]:
        """Return every head, layer by layer."""
        sizes = {layer: sums.above.shape[1] for layer, sums in self.layers.items()}
        return tuple(Head(layer, number) for layer, size in sizes.items() for number in range(size))

    def value(self, metric: Metric, head: Head) -> float:
        """Return a metric of a head; NaN if the metric is undefined for all queries.

        Raises:
            BadType: if ``head`` is not a `Head`.
            BadValue: if the metric was not measured, or the head does not exist.
        """
        sums, row = self._of(head), self._row(metric)
        return (sums.above[row, head.number] / sums.below[row, head.number]).item()

    def uniform(self, metric: Metric, layer: Layer) -> float:
        """Return a metric of a head that attends equally to all keys; errors as `value`."""
        sums, row = self._of(Head(layer, 0)), self._row(metric)
        return (sums.uniform_above[row] / sums.uniform_below[row]).item()

    def profile(self, profile: Profile, head: Head) -> tuple[float, ...]:
        """Return a profile of a head, a number for each place; NaN and errors as `value`."""
        above, below, _, _ = self._of(head).profiles[profile.name][:, head.number]
        return tuple((above / below).tolist())

    def uniform_profile(self, profile: Profile, layer: Layer) -> tuple[float, ...]:
        """Return a profile of a head that attends equally to all allowed keys."""
        _, _, above, below = self._of(Head(layer, 0)).profiles[profile.name][:, 0]
        return tuple((above / below).tolist())

    def _of(self, head: Head) -> Sums:
        if not isinstance(head, Head):
            raise BadType("head: expected a Head, got {head!r}; use Head.parse('L0H2')", head=head)
        counts = {layer: sums.above.shape[1] for layer, sums in self.layers.items()}
        if not 0 <= head.number < counts.get(head.layer, 0):
            raise none_such(head, counts)
        return self.layers[head.layer]

    def _row(self, metric: Metric) -> int:
        if metric not in self.metrics:
            name = metric.name if isinstance(metric, Metric) else repr(metric)
            named = _named(self.metrics)
            raise BadValue(
                "metric: {name} was not measured; expected one of {named}", name=name, named=named
            )
        return self.metrics.index(metric)


def _named(metrics: Sequence[Metric]) -> str:
    return ", ".join(metric.name for metric in metrics)


def _layer(written: str, name: str) -> Layer:
    try:
        return Head.parse(f"{written}H0").layer
    except BadValue:
        raise _unfit(f"{name[:80]!r}") from None


def _sums(layer: Layer, parts: Mapping[str, Tensor], metrics: Sequence[Metric]) -> Sums:
    """Return the sums of one layer; raise `BadFile` unless they are as from `Sums.tensors`."""
    if set(parts) != {*AXES, *CURVES, "queries"}:
        raise _unfit(f"{layer}: {sorted(parts)[:8]}")
    above, queries = parts["above"], parts["queries"]
    heads = above.shape[1] if above.dim() == 2 else 0
    sizes: tuple[int, ...] = (len(metrics), heads)
    shapes = {name: sizes[:axes] for name, axes in AXES.items()}
    shapes |= {name: (4, heads, len(profile.places)) for name, profile in CURVES.items()}
    for name, shape in shapes.items():
        tensor = parts[name]
        fits = tensor.shape == shape and tensor.dtype == torch.float64
        if not (fits and 0 < heads <= MOST_HEADS and bool(tensor.isfinite().all())):
            raise _unfit(f"{layer}/{name} {tuple(tensor.shape)} {tensor.dtype}")
    if queries.shape != () or queries.dtype != torch.int64 or int(queries) < 0:
        raise _unfit(f"{layer}/queries {tuple(queries.shape)} {queries.dtype}")
    return Sums.from_tensors(parts)


def _unfit(what: str) -> BadFile:
    return BadFile(
        "statistics: expected sums from Statistics.tensors(), got {what}; measure again", what=what
    )

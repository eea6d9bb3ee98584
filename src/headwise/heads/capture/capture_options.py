"""The validated options of `capture`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

from headwise.errors import BadType, BadValue, one_of
from headwise.heads.metrics import EVERY, MEASURED, Metric
from headwise.heads.names import Head, heads_of
from headwise.heads.statistics import Statistics

ALL = "all"


@dataclass(frozen=True)
class CaptureOptions:
    """The options of `headwise.capture`; None for ``heads`` or ``rows`` means all."""

    metrics: tuple[Metric, ...] = MEASURED
    heads: frozenset[Head] | None = frozenset()
    rows: tuple[int, ...] | None = None
    separators: frozenset[int] = frozenset()
    punctuation: frozenset[int] = frozenset()

    @classmethod
    def parse(
        cls,
        want: Collection[str] | None = None,
        heads: Collection[Head | str] | str = (),
        rows: Sequence[int] | None = None,
        separators: Collection[int] = (),
        punctuation: Collection[int] = (),
    ) -> "CaptureOptions":
        """Validate the arguments of `capture`."""
        metrics = _metrics(want)
        chosen = None if heads == ALL else frozenset(heads_of(heads)), _rows(rows)
        special = (_token_ids("separators", separators), _token_ids("punctuation", punctuation))
        return cls(metrics, *chosen, *special)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The names of the properties of `Rows` that the metrics read."""
        return Statistics(metrics=self.metrics).reads


def _metrics(names: Collection[str] | None) -> tuple[Metric, ...]:
    """Return the metrics with these names, in the order of `EVERY`; None means `MEASURED`."""
    if names is None:
        return MEASURED
    if isinstance(names, str):
        raise BadType(
            "want: expected a collection of names, got the string {names!r}; use want=[{names!r}]",
            names=names,
        )
    if not isinstance(names, Collection):
        raise BadType(
            "want: expected a collection of names, got {names_type}",
            names_type=type(names).__name__,
        )
    if not names:
        raise BadValue(
            "want: expected at least one name, got none; want=None measures the default metrics"
        )
    known = tuple(metric.name for metric in EVERY)
    for name in names:
        if name not in known:
            raise one_of("want", name, known)
    return tuple(metric for metric in EVERY if metric.name in names)


def _token_ids(name: str, ids: Any) -> frozenset[int]:
    many = isinstance(ids, Collection) and not isinstance(ids, str)
    for number in ids if many else (ids,):
        if not many or isinstance(number, bool) or not isinstance(number, Integral):
            raise BadType(
                "{name}: expected a collection of token ids (integers), got {value!r}; see "
                "all_special_ids of the tokenizer",
                name=name,
                value=number,
            )
        if int(number) < 0:
            raise BadValue(
                "{name}: expected token ids of at least 0, got {number}", name=name, number=number
            )
    return frozenset(int(number) for number in ids)


def _rows(rows: Sequence[int] | None) -> tuple[int, ...] | None:
    if rows is None:
        return None
    if not isinstance(rows, Collection):
        raise BadType(
            "rows: expected a collection of query indices, got {rows_type}; use rows=[3]",
            rows_type=type(rows).__name__,
        )
    for row in rows:
        if isinstance(row, bool) or not isinstance(row, int) or row < 0:
            raise BadValue(
                "rows: expected query indices of at least 0, got {row!r}; use "
                "rows=range(start, stop)",
                row=row,
            )
    return tuple(sorted(set(rows)))

"""Attention by the distance between query and key."""

import torch

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.heads.metrics.key_context import NEAR
from headwise.lang import Text


def _distance(rows: Rows) -> Sums:
    if rows.context.position is None:
        return rows.nothing
    return rows.distances[0], rows.mass


DISTANCE = Metric(
    name="distance",
    label=Text("distance"),
    title=Text("mean distance of what it attends to, in tokens"),
    formula=Text("Σ_i Σ_j A[i,j] |i - j| / Σ_i Σ_j A[i,j]"),
    source=Text("Vig and Belinkov 2019, section 4.4; |i - j| where keys may come after the query"),
    share=False,
    reads=("distances", "mass"),
    sums=_distance,
)

SIGNED_DISTANCE = Metric(
    name="signed_distance",
    label=Text("direction"),
    title=Text("mean place of what it attends to, in tokens after the query"),
    formula=Text("Σ_i Σ_j A[i,j] (j - i) / Σ_i Σ_j A[i,j]; negative before the query"),
    source=Text("the distance of Vig and Belinkov 2019, section 4.4, with its sign"),
    share=False,
    reads=("distances", "mass"),
    sums=lambda rows: (
        rows.nothing if rows.context.position is None else (rows.distances[1], rows.mass)
    ),
)


def _distance_spread(rows: Rows) -> Sums:
    if rows.context.position is None:
        return rows.nothing
    counted = rows.context.queries
    _, signed, square, _ = rows.distances
    mass = rows.mass.clamp(min=torch.finfo(rows.weights.dtype).tiny)
    variance = square / mass - (signed / mass).square()
    return variance.clamp(min=0).sqrt() * counted, counted


DISTANCE_SPREAD = Metric(
    name="distance_spread",
    label=Text("spread"),
    title=Text("spread of what it attends to, in tokens"),
    formula=Text("mean_i sqrt(Σ_j A[i,j] (j - m)²), m = Σ_j A[i,j] j, each row divided by its sum"),
    source=Text("the standard deviation of each row; ours, beside the mean distance"),
    share=False,
    reads=("distances", "mass"),
    sums=_distance_spread,
)


def _diagonality(rows: Rows) -> Sums:
    if rows.context.position is None:
        return rows.nothing
    furthest = rows.context.furthest  # (B, H or 1, R)
    counted = (furthest > 0) & rows.context.queries
    away = rows.distances[0] / furthest.clamp(min=1)
    return (rows.mass - away) * counted, rows.mass * counted


DIAGONALITY = Metric(
    name="diagonality",
    label=Text("diagonality"),
    title=Text("closeness to the diagonal, 1 on it"),
    formula=Text(
        "Σ_i Σ_j A[i,j] (1 - |i - j| / d(i)) / Σ_i Σ_j A[i,j], d(i) the furthest allowed |i - j|"
    ),
    source=Text("cumulative diagonality of Shim et al. 2022, ∫ C(r) dr, with r a share of d(i)"),
    share=False,
    reads=("distances", "furthest", "mass"),
    sums=_diagonality,
)

REACH = 4

"""How many tokens to each side are around a query."""


def _local(rows: Rows) -> Sums:
    if rows.context.position is None:
        return rows.nothing
    around = rows.near[..., NEAR - REACH : NEAR + REACH + 1]
    return around.sum(-1), rows.mass


LOCAL = Metric(
    name="local",
    label=Text("local"),
    title=Text("share within four tokens"),
    formula=Text("Σ_i Σ_{|i-j| ≤ 4} A[i,j] / Σ_i Σ_j A[i,j]"),
    source=Text("what the long-range score of attention-atlas (|i - j| ≥ 5) leaves, as a share"),
    share=True,
    reads=("single", "mass"),
    sums=_local,
)


def _far(rows: Rows) -> Sums:
    if rows.context.position is None:
        return rows.nothing
    words = rows.context.near_words
    beside = (rows.near * words).sum(-1)
    many = rows.context.sets["plain"] - (rows.context.near & words).sum(-1)
    counted = (many > 0) & rows.context.queries
    return (rows.on("plain")[0] - beside).clamp(min=0) * counted, counted


FAR = Metric(
    name="far",
    label=Text("far"),
    title=Text("share on words more than 16 tokens away"),
    formula=Text(
        "mean_i Σ_{|i-j| > 16} A[i,j], j neither first nor special, for queries that have one"
    ),
    source=Text("ours: sinks and separators, which lie far from most queries, are left out"),
    share=True,
    reads=("single", "near_words", "sets"),
    sums=_far,
)

"""Metrics of attention by distance: mean distance, neighbouring tokens, profiles by distance."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.heads.metrics.key_context import EARLY, NEAR
from headwise.heads.metrics.metric import Metric, Rows, Sums, averaged, with_positions
from headwise.lang import Text

DISTANCE = Metric(
    name="distance",
    label=Text("distance"),
    title=Text("mean attention distance, in tokens"),
    formula=Text("Σ_i Σ_j A[i,j] |i - j| / Σ_i Σ_j A[i,j]"),
    source=Text("Vig and Belinkov 2019, section 4.4; |i - j| if keys may be after the query"),
    reads=("distances", "mass"),
    sums=with_positions(lambda rows: (rows.distances[0], rows.mass)),
)

SIGNED_DISTANCE = Metric(
    name="signed_distance",
    label=Text("direction"),
    title=Text("mean signed attention distance, in tokens"),
    formula=Text("Σ_i Σ_j A[i,j] (j - i) / Σ_i Σ_j A[i,j]; negative for keys before the query"),
    source=Text("the distance of Vig and Belinkov 2019, section 4.4, with a sign"),
    reads=("distances", "mass"),
    sums=with_positions(lambda rows: (rows.distances[1], rows.mass)),
)


@with_positions
def _distance_spread(rows: Rows) -> Sums:
    _, signed, square, _ = rows.distances
    mass = rows.mass.clamp(min=torch.finfo(rows.weights.dtype).tiny)
    variance = square / mass - (signed / mass).square()
    return averaged(variance.clamp(min=0).sqrt(), rows.context.queries)


DISTANCE_SPREAD = Metric(
    name="distance_spread",
    label=Text("spread"),
    title=Text("standard deviation of the attended positions, in tokens"),
    formula=Text("mean_i sqrt(Σ_j A[i,j] (j - m)²), m = Σ_j A[i,j] j, each row divided by its sum"),
    source=Text("our metric: the standard deviation of each row of weights"),
    reads=("distances", "mass"),
    sums=_distance_spread,
)


@with_positions
def _diagonality(rows: Rows) -> Sums:
    furthest = rows.context.furthest  # (B, H or 1, R)
    counted = (furthest > 0) & rows.context.queries
    away = rows.distances[0] / furthest.clamp(min=1)
    return (rows.mass - away) * counted, rows.mass * counted


DIAGONALITY = Metric(
    name="diagonality",
    label=Text("diagonality"),
    title=Text("closeness to the diagonal; 1 on the diagonal"),
    formula=Text(
        "Σ_i Σ_j A[i,j] (1 - |i - j| / d(i)) / Σ_i Σ_j A[i,j], d(i) the furthest allowed |i - j|"
    ),
    source=Text("cumulative diagonality of Shim et al. 2022, ∫ C(r) dr, r as a fraction of d(i)"),
    reads=("distances", "furthest", "mass"),
    sums=_diagonality,
)

REACH = 4  # the largest distance of a local key

LOCAL = Metric(
    name="local",
    label=Text("local"),
    title=Text("share on tokens at a distance of at most 4"),
    formula=Text("Σ_i Σ_{|i-j| ≤ 4} A[i,j] / Σ_i Σ_j A[i,j]"),
    source=Text("1 minus the long-range share (|i - j| ≥ 5) of attention-atlas"),
    share=True,
    reads=("single", "mass"),
    sums=with_positions(
        lambda rows: (rows.near[..., NEAR - REACH : NEAR + REACH + 1].sum(-1), rows.mass)
    ),
)


@with_positions
def _far(rows: Rows) -> Sums:
    words = rows.context.near_words
    beside = (rows.near * words).sum(-1)
    far_words = rows.context.sets["plain"] - (rows.context.near & words).sum(-1)
    counted = (far_words > 0) & rows.context.queries
    return averaged((rows.on("plain")[0] - beside).clamp(min=0), counted)


FAR = Metric(
    name="far",
    label=Text("far"),
    title=Text("share on words more than 16 tokens away"),
    formula=Text(
        "mean_i Σ_{|i-j| > 16} A[i,j], j neither first nor special, for the queries with such a j"
    ),
    source=Text("our metric, without sinks and separators, which are far from most queries"),
    share=True,
    reads=("single", "near_words", "sets"),
    sums=_far,
)

PREVIOUS = Metric(
    name="previous",
    label=Text("previous"),
    title=Text("share on the previous token"),
    formula=Text("mean_i A[i, i-1], over the queries whose previous token is allowed"),
    source=Text("Clark et al. 2019, section 3.1; mean over N - 1 queries, over N in their code"),
    share=True,
    reads=("single",),
    sums=lambda rows: rows.shifted(-1),
)

NEXT = Metric(
    name="next",
    label=Text("next"),
    title=Text("share on the next token"),
    formula=Text("mean_i A[i, i+1], over the queries whose next token is allowed"),
    source=Text("Clark et al. 2019, section 3.1; mean over N - 1 queries, over N in their code"),
    share=True,
    reads=("single",),
    sums=lambda rows: rows.shifted(1),
)

SELF = Metric(
    name="self",
    label=Text("self"),
    title=Text("share on the token itself"),
    formula=Text("mean_i A[i, i], over the queries that may attend to themselves"),
    source=Text("Clark et al. 2019, section 3.1"),
    share=True,
    reads=("single",),
    sums=lambda rows: rows.shifted(0),
)


def _heaviest_at(offset: int) -> Callable[[Rows], Sums]:
    def sums(rows: Rows) -> Sums:
        if rows.context.position is None:
            return rows.nothing
        counted = rows.shifted(offset)[1]
        _, key = rows.most
        return (key == rows.context.position + offset) & counted, counted

    return sums


MOSTLY_PREVIOUS = Metric(
    name="mostly_previous",
    label=Text("mostly previous"),
    title=Text("share of queries with the largest weight on the previous token"),
    formula=Text("share of queries with argmax_j A[i,j] = i - 1, of those that may attend to it"),
    source=Text("Voita et al. 2019, section 4.1; positional heads have at least 0.9"),
    reads=("single", "most"),
    sums=_heaviest_at(-1),
)

MOSTLY_NEXT = Metric(
    name="mostly_next",
    label=Text("mostly next"),
    title=Text("share of queries with the largest weight on the next token"),
    formula=Text("share of queries with argmax_j A[i,j] = i + 1, of those that may attend to it"),
    source=Text("Voita et al. 2019, section 4.1; positional heads have at least 0.9"),
    reads=("single", "most"),
    sums=_heaviest_at(1),
)


@dataclass(frozen=True)
class Profile:
    """A curve that is measured for each head, such as its attention by distance.

    Attributes:
        name, title, formula, source, reads: as in `Metric`.
        places: the labels of the points: offsets, or numbers of keys.
        sums: the numerator (H, places) and denominator (H or 1, places), summed over queries.
    """

    name: str
    title: Text
    formula: Text
    source: Text
    places: tuple[str, ...]
    reads: tuple[str, ...]
    sums: Callable[[Rows], Sums]


def _by_distance(rows: Rows) -> Sums:
    near, counted = rows.near, rows.context.queries
    mass = torch.where(counted, rows.mass, 0.0).double()
    if not near.shape[-1]:  # without positions
        zeros = mass.new_zeros(mass.shape[1], 2 * NEAR + 3)
        return zeros, zeros[:1]
    near = torch.where(counted[..., None], near, 0.0)
    before = torch.where(counted, rows.distances[3], 0.0).double()
    around = [part.sum(-1, dtype=torch.float64) for part in (near[..., :NEAR], near[..., NEAR:])]
    behind = (before - around[0]).clamp(min=0).sum((0, 2))  # (H,)
    ahead = (mass - before - around[1]).clamp(min=0).sum((0, 2))
    beside = near.sum((0, 2), dtype=torch.float64)  # (H, 2 NEAR + 1)
    above = torch.cat((behind[:, None], beside, ahead[:, None]), -1)
    return above, mass.sum((0, 2))[:, None].expand_as(above)


def _received(rows: Rows) -> Sums:
    above, below = rows.received, rows.context.received
    return above.sum((0, 2), dtype=torch.float64), below.sum((0, 2), dtype=torch.float64)


BY_DISTANCE = Profile(
    name="distance",
    title=Text("share of the attention at each distance"),
    formula=Text(
        "Σ_i A[i, i+d] / Σ_i Σ_j A[i,j] for d = -16 … 16, and the sums for d < -16 and d > 16"
    ),
    source=Text("the distance of Vig and Belinkov 2019, section 4.4, without averaging"),
    places=("< -16", *(f"{d:+d}" if d else "0" for d in range(-NEAR, NEAR + 1)), "> +16"),
    reads=("single", "mass", "distances"),
    sums=_by_distance,
)

RECEIVED = Profile(
    name="received",
    title=Text("attention to each of the first 64 keys"),
    formula=Text("α_k = mean_i A[i, f+k] over the queries f ≤ i < f + 64 that may attend to f+k"),
    source=Text("Gu et al. 2025 (ICLR), importance of key k, T = 64; > 0.3 is a sink"),
    places=tuple(str(k) for k in range(EARLY)),
    reads=("received",),
    sums=_received,
)

PROFILES = (BY_DISTANCE, RECEIVED)  # all profiles


def summed(profile: Profile, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the numerator and the denominator, (H, places) each in float64."""
    above, below = profile.sums(rows)
    return above.double(), below.double().expand_as(above)

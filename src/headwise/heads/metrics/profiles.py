"""What a head does by place: the attention at each distance, and what each of the first keys gets.

A profile is to a curve what a metric is to a number: two sums over queries for each of its places.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.heads.metrics.key_context import EARLY, NEAR
from headwise.heads.metrics.rows import Rows, Sums
from headwise.lang import Text


@dataclass(frozen=True)
class Profile:
    """One curve of a head.

    Attributes:
        name: one word, as in the tensors of a saved run.
        title: what it is, for a person.
        formula: how it is computed.
        source: which published variant this is.
        places: what each point stands for, for a person: an offset, a key's number.
        reads: the facts of `Rows` and of its `KeyContext` that ``sums`` looks at.
        sums: numerator (H, places) and denominator (H or 1, places), summed over queries.
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
    if not near.shape[-1]:
        wide = 2 * NEAR + 3
        return mass.new_zeros(mass.shape[1], wide), mass.new_zeros(1, wide)
    near = torch.where(counted[..., None], near, 0.0)
    before = torch.where(counted, rows.distances[3], 0.0).double()
    around = [part.sum(-1, dtype=torch.float64) for part in (near[..., :NEAR], near[..., NEAR:])]
    behind = (before - around[0]).clamp(min=0).sum((0, 2))  # (H,)
    ahead = (mass - before - around[1]).clamp(min=0).sum((0, 2))
    beside = near.sum((0, 2), dtype=torch.float64)  # (H, 2 NEAR + 1)
    above = torch.cat((behind[:, None], beside, ahead[:, None]), -1)
    return above, mass.sum((0, 2))[:, None].expand_as(above)


def _received(rows: Rows) -> Sums:
    numbers = rows.received, rows.context.received
    above, below = (number.sum((0, 2), dtype=torch.float64) for number in numbers)
    return above, below


BY_DISTANCE = Profile(
    name="distance",
    title=Text("share of its attention at each distance"),
    formula=Text(
        "Σ_i A[i, i+d] / Σ_i Σ_j A[i,j] for d = -16 … 16, and all further before and after"
    ),
    source=Text("the distance of Vig and Belinkov 2019, section 4.4, not averaged"),
    places=("< -16", *(f"{d:+d}" if d else "0" for d in range(-NEAR, NEAR + 1)), "> +16"),
    reads=("single", "mass", "distances"),
    sums=_by_distance,
)

RECEIVED = Profile(
    name="received",
    title=Text("attention that each of the first 64 keys receives"),
    formula=Text("α_k = mean_i A[i, f+k] over the queries f ≤ i < f + 64 that may attend to f+k"),
    source=Text("Gu et al. 2025 (ICLR), importance of key k, T = 64; a sink where it is above 0.3"),
    places=tuple(str(k) for k in range(EARLY)),
    reads=("received",),
    sums=_received,
)

PROFILES = (BY_DISTANCE, RECEIVED)
"""Every profile there is."""


def summed(profile: Profile, rows: Rows) -> tuple[Tensor, Tensor]:
    """Numerator and denominator, (H, places) each in float64."""
    above, below = profile.sums(rows)
    return above.double(), below.double().expand_as(above)

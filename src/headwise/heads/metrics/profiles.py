"""What a head does by place: the attention at each distance, and what each of the first keys gets.

A profile is to a curve what a metric is to a number: two sums over queries for each of its places.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.heads.metrics.rows import NEAR, Rows, Sums
from headwise.lang import Text

EARLY = 64
"""T: how many of the first keys, and of the first queries, `RECEIVED` is measured on."""


@dataclass(frozen=True)
class Profile:
    """One curve of a head.

    Attributes:
        name: one word, as in the tensors of a saved run.
        title: what it is, for a person.
        formula: how it is computed.
        source: which published variant this is.
        places: what each point stands for, for a person: an offset, a key's number.
        sums: numerator (H, places) and denominator (H or 1, places), summed over queries.
    """

    name: str
    title: Text
    formula: Text
    source: Text
    places: tuple[str, ...]
    sums: Callable[[Rows], Sums]


def _by_distance(rows: Rows) -> Sums:
    near, _ = rows.near
    counted = rows.queries()
    mass = torch.where(counted, rows.mass, 0.0).double()
    if not near.shape[-1]:
        wide = 2 * NEAR + 3
        return mass.new_zeros(mass.shape[1], wide), mass.new_zeros(1, wide)
    near = torch.where(counted[..., None], near, 0.0).double()
    before = torch.where(counted, rows.distances[3], 0.0).double()
    behind = (before - near[..., :NEAR].sum(-1)).clamp(min=0)
    ahead = (mass - before - near[..., NEAR:].sum(-1)).clamp(min=0)
    above = torch.cat((behind[..., None], near, ahead[..., None]), -1).sum((0, 2))
    return above, mass.sum((0, 2))[:, None].expand_as(above)


def _received(rows: Rows) -> Sums:
    heads, wide = rows.weights.shape[1], EARLY
    none = rows.weights.new_zeros(heads, wide, dtype=torch.float64), torch.zeros(1, wide).double()
    if rows.position is None:
        return none
    early = rows.position - rows.first[:, None] < EARLY  # (B, R)
    early &= rows.position >= rows.first[:, None]
    if not bool(early.any()):
        return none
    some = early.any(0).nonzero().flatten()  # the rows that are early in any text
    key = rows.first[:, None] + torch.arange(wide, device=early.device)  # (B, T)
    inside = (key >= 0) & (key < rows.weights.shape[-1])
    index = key.where(inside, 0)[:, None, None]
    counted = (rows.queries() & early[:, None])[:, :, some, None]
    tables = rows.weights[:, :, some], rows.allowed[:, :, some]
    weights, allowed = (
        each.gather(-1, index.expand(*each.shape[:3], -1)) & inside[:, None, None]
        if each.dtype == torch.bool
        else each.gather(-1, index.expand(*each.shape[:3], -1)).double()
        for each in tables
    )
    offered = allowed & counted
    return (weights * offered).sum((0, 2)), offered.sum((0, 2)).double()


BY_DISTANCE = Profile(
    name="distance",
    title=Text("share of its attention at each distance", "在各距离上的注意力份额"),
    formula=Text(
        "Σ_i A[i, i+d] / Σ_i Σ_j A[i,j] for d = -16 … 16, and all further before and after",
        "Σ_i A[i, i+d] / Σ_i Σ_j A[i,j]，d = -16 … 16，以及更远的前方与后方之和",
    ),
    source=Text(
        "the distance of Vig and Belinkov 2019, section 4.4, not averaged",
        "Vig 与 Belinkov 2019 第 4.4 节的距离，不取平均",
    ),
    places=("< -16", *(f"{d:+d}" if d else "0" for d in range(-NEAR, NEAR + 1)), "> +16"),
    sums=_by_distance,
)

RECEIVED = Profile(
    name="received",
    title=Text("attention that each of the first 64 keys receives", "前 64 个键各自得到的注意力"),
    formula=Text(
        "α_k = mean_i A[i, f+k] over the queries f ≤ i < f + 64 that may attend to f+k",
        "α_k = mean_i A[i, f+k]，f ≤ i < f + 64 且可关注 f+k",
    ),
    source=Text(
        "Gu et al. 2025 (ICLR), importance of key k, T = 64; a sink where it is above 0.3",
        "Gu 等 2025（ICLR），键 k 的重要性，T = 64；大于 0.3 为汇",
    ),
    places=tuple(str(k) for k in range(EARLY)),
    sums=_received,
)

PROFILES = (BY_DISTANCE, RECEIVED)
"""Every profile there is."""


def summed(profile: Profile, rows: Rows) -> tuple[Tensor, Tensor]:
    """Numerator and denominator, (H, places) each in float64."""
    above, below = profile.sums(rows)
    return above.double(), below.double().expand_as(above)

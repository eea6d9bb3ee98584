"""What a person states about a target, which is then held and not searched for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MaskTrue = Literal["attend", "blocked"]
Axes = Literal["batch-first", "length-first"]


@dataclass(frozen=True)
class Stated:
    """The conventions that a person states.

    Attributes:
        mask_true: what True or 1 in a mask means; None where it is found by trial.
        layout: whether inputs are (B, L, E) or (L, B, E); None where it is found by trial.
        kv_heads: G, the key/value heads; None where it is found by trial.
        causal: whether the target hides the future by itself; False where it is found by trial.
        arguments: arguments of the constructor, by name.
    """

    mask_true: MaskTrue | None = None
    layout: Axes | None = None
    kv_heads: int | None = None
    causal: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)


NOTHING = Stated()

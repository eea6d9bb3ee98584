"""The classes that `torch.load(..., weights_only=True)` may create when it loads a saved module.

Objects of these classes contain numbers, tensors and each other; creating one runs no code from the
file. A mask built from a user's function is not in the list.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from headwise.masks import Mask
from headwise.masks.mask_mod import FromMaskMod
from headwise.nn.cache_state import SegmentMemory
from headwise.nn.multihead_attention import MultiheadAttention
from headwise.nn.submodules import GlobalProjections, LogitScale, OutputGate, UnitNorm
from headwise.positions import POSITIONS, Frequencies

MODULES = (
    *(MultiheadAttention, SegmentMemory, GlobalProjections, LogitScale, OutputGate, UnitNorm),
    *(nn.Linear, nn.RMSNorm, nn.LayerNorm),
)


def _subclasses(kind: type) -> Iterator[type]:
    """Yield a class of headwise and all its subclasses."""
    if kind.__module__.startswith("headwise."):
        yield kind
        children: list[type] = type.__subclasses__(kind)
        for child in children:
            yield from _subclasses(child)


SAFE_GLOBALS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    *MODULES,
    *POSITIONS,
    *_subclasses(Frequencies),
    *(kind for kind in _subclasses(Mask) if kind is not FromMaskMod),
]
"""Registered with `torch.serialization.add_safe_globals` when `headwise.nn` is imported."""

torch.serialization.add_safe_globals(SAFE_GLOBALS)

"""Masks: which query may attend to which key. One mask, one file."""

from headwise.masks.appended import appended
from headwise.masks.base import Mask, Tile
from headwise.masks.causal import causal
from headwise.masks.from_tensor import from_tensor
from headwise.masks.full import full
from headwise.masks.padding import padding
from headwise.masks.window import window

MASKS = (appended, causal, from_tensor, full, padding, window)
"""Every mask there is; each stands in the file of its name."""

__all__ = [
    "MASKS",
    "Mask",
    "Tile",
    "appended",
    "causal",
    "from_tensor",
    "full",
    "padding",
    "window",
]

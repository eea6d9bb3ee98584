"""Masks: which query may attend to which key. One mask, one file."""

from headwise.masks.appended import appended
from headwise.masks.base import Mask, Tile
from headwise.masks.block_sparse import block_sparse
from headwise.masks.causal import causal
from headwise.masks.dilated import dilated
from headwise.masks.documents import documents
from headwise.masks.every import every
from headwise.masks.fixed import fixed
from headwise.masks.from_tensor import from_tensor
from headwise.masks.full import full
from headwise.masks.global_tokens import global_tokens
from headwise.masks.lsh import lsh
from headwise.masks.padding import padding
from headwise.masks.per_head import per_head
from headwise.masks.prefix import prefix
from headwise.masks.random_blocks import random_blocks
from headwise.masks.strided import strided
from headwise.masks.window import window

MASKS = (
    appended,
    block_sparse,
    causal,
    dilated,
    documents,
    every,
    fixed,
    from_tensor,
    full,
    global_tokens,
    lsh,
    padding,
    per_head,
    prefix,
    random_blocks,
    strided,
    window,
)
"""Every mask there is; each stands in the file of its name."""

__all__ = [
    "MASKS",
    "Mask",
    "Tile",
    "appended",
    "block_sparse",
    "causal",
    "dilated",
    "documents",
    "every",
    "fixed",
    "from_tensor",
    "full",
    "global_tokens",
    "lsh",
    "padding",
    "per_head",
    "prefix",
    "random_blocks",
    "strided",
    "window",
]

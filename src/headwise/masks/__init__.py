"""Masks: which query may attend to which key; `patterns` has a file for each kind."""

from headwise.masks.mask import Mask, Tile
from headwise.masks.patterns.block_sparse import block_sparse, random_blocks
from headwise.masks.patterns.by_distance import causal, dilated, full, window
from headwise.masks.patterns.by_length import documents, padding, prefix
from headwise.masks.patterns.composed import appended, per_head
from headwise.masks.patterns.from_tensor import from_tensor
from headwise.masks.patterns.global_tokens import global_tokens
from headwise.masks.patterns.lsh import lsh
from headwise.masks.patterns.sparse_transformer import every, fixed, strided

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

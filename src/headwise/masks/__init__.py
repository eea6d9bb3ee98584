"""Masks: which query may attend to which key. `patterns` has one file for each kind of mask."""

from collections.abc import Callable

from headwise.lang import Text
from headwise.masks.mask import Mask, Tile
from headwise.masks.mask_mod import from_mask_mod
from headwise.masks.patterns.block_sparse import block_sparse, random_blocks
from headwise.masks.patterns.by_coordinates import chunked, window2d
from headwise.masks.patterns.by_distance import causal, dilated, full, window
from headwise.masks.patterns.by_length import documents, padding, prefix
from headwise.masks.patterns.composed import appended, per_head
from headwise.masks.patterns.from_tensor import from_tensor
from headwise.masks.patterns.global_tokens import global_tokens
from headwise.masks.patterns.lsh import lsh
from headwise.masks.patterns.sparse_transformer import every, fixed, strided
from headwise.masks.patterns.tree import tree

EXAMPLES = {
    "appended(causal(), 1)": Text("Keys appended to the sequence, to which every query attends."),
    "block_sparse([[True, False], [True, True]], 4)": Text(
        "Each block of queries attends to the blocks of keys that a layout allows."
    ),
    "causal()": Text("No query attends to a later key."),
    "chunked(3)": Text("Chunks of a fixed length; a query attends to its own chunk (Llama 4)."),
    "dilated(1, 1, step=2)": Text("A window with gaps."),
    "documents([3, 5])": Text("Documents packed into one sequence; none attends to another."),
    "every(3)": Text("Keys whose distance is a multiple of a step."),
    "fixed(4, 1)": Text(
        "The query's block and the last keys of earlier blocks; causal (Sparse Transformer)."
    ),
    "from_tensor([[True, False], [True, True]])": Text("A mask given by a tensor, pair by pair."),
    "full()": Text("Every query attends to every key."),
    "global_tokens([0])": Text("Chosen tokens attend to all tokens, and all tokens to them."),
    "lsh(1, chunk=2, seed=0)": Text(
        "Keys whose direction is close to the query's; drawn for random q and k (Reformer)."
    ),
    "padding([5])": Text("Keys beyond a length are padding; no query attends to them."),
    "per_head([causal(), window(1, 1)])": Text("One mask per head; the first is drawn."),
    "prefix(3)": Text("Causal, except that every query attends to the whole prefix."),
    "random_blocks(2, 1, seed=0)": Text("Blocks of keys chosen at random (BigBird)."),
    "strided(3)": Text("The last keys, then keys at a fixed stride; causal (Sparse Transformer)."),
    "tree([-1, 0, 0, 1])": Text(
        "A tree of draft tokens, which attend to the text and their ancestors (SpecInfer)."
    ),
    "window(2, 1)": Text("Keys near the query."),
    "window2d(1, 1, width=4)": Text("Keys near the query on a grid of rows and columns."),
}
"""An example expression of every mask, with a description."""

MASKS: tuple[Callable[..., Mask], ...] = tuple(
    globals()[expression.partition("(")[0]] for expression in EXAMPLES
)

__all__ = [
    "EXAMPLES",
    "MASKS",
    "Mask",
    "Tile",
    "appended",
    "block_sparse",
    "causal",
    "chunked",
    "dilated",
    "documents",
    "every",
    "fixed",
    "from_mask_mod",
    "from_tensor",
    "full",
    "global_tokens",
    "lsh",
    "padding",
    "per_head",
    "prefix",
    "random_blocks",
    "strided",
    "tree",
    "window",
    "window2d",
]

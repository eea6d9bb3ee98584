"""headwise: multi-head attention you can read, prove, run and see.

``import headwise`` does not load torch, so the command line starts quickly. Torch is loaded when
one of the names below is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headwise.renamed import install

if TYPE_CHECKING:
    from headwise.attention import attend as attend
    from headwise.call import Result as Result
    from headwise.errors import EngineRefused as EngineRefused
    from headwise.errors import HeadwiseError as HeadwiseError
    from headwise.heads.ablation import ablate as ablate
    from headwise.heads.ablation import prune as prune
    from headwise.heads.capture import capture as capture
    from headwise.masks import Mask as Mask
    from headwise.masks import block_sparse as block_sparse
    from headwise.masks import causal as causal
    from headwise.masks import chunked as chunked
    from headwise.masks import dilated as dilated
    from headwise.masks import documents as documents
    from headwise.masks import every as every
    from headwise.masks import fixed as fixed
    from headwise.masks import from_mask_mod as from_mask_mod
    from headwise.masks import from_tensor as from_tensor
    from headwise.masks import full as full
    from headwise.masks import global_tokens as global_tokens
    from headwise.masks import lsh as lsh
    from headwise.masks import padding as padding
    from headwise.masks import per_head as per_head
    from headwise.masks import prefix as prefix
    from headwise.masks import random_blocks as random_blocks
    from headwise.masks import strided as strided
    from headwise.masks import tree as tree
    from headwise.masks import window as window
    from headwise.masks import window2d as window2d
    from headwise.nn import MultiheadAttention as MultiheadAttention
    from headwise.nn import SegmentMemory as SegmentMemory
    from headwise.nn import convert as convert
    from headwise.planning import Plan as Plan
    from headwise.planning import plan as plan
    from headwise.positions import ALiBi as ALiBi
    from headwise.positions import Learned as Learned
    from headwise.positions import NoPosition as NoPosition
    from headwise.positions import Position as Position
    from headwise.positions import Rotary as Rotary
    from headwise.positions import Shaw as Shaw
    from headwise.positions import Sinusoidal as Sinusoidal
    from headwise.positions import T5Bias as T5Bias
    from headwise.positions import TransformerXL as TransformerXL

install()

__version__ = "0.1.0"

_NAMES = {
    "headwise.attention": "attend",
    "headwise.call": "Result",
    "headwise.errors": "EngineRefused HeadwiseError",
    "headwise.heads.ablation": "ablate prune",
    "headwise.heads.capture": "capture",
    "headwise.masks": (
        "Mask block_sparse causal chunked dilated documents every fixed from_mask_mod from_tensor "
        "full global_tokens lsh padding per_head prefix random_blocks strided tree window window2d"
    ),
    "headwise.nn": "MultiheadAttention SegmentMemory convert",
    "headwise.planning": "Plan plan",
    "headwise.positions": (
        "ALiBi Learned NoPosition Position Rotary Shaw Sinusoidal T5Bias TransformerXL"
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each public name."""

_PACKAGES = ("check", "engines", "explain", "heads", "masks", "nn", "plots", "positions", "verify")
"""Packages that are imported at their first use, as in ``headwise.nn.UnitNorm()``."""

__all__ = [
    "ALiBi",
    "EngineRefused",
    "HeadwiseError",
    "Learned",
    "Mask",
    "MultiheadAttention",
    "NoPosition",
    "Plan",
    "Position",
    "Result",
    "Rotary",
    "SegmentMemory",
    "Shaw",
    "Sinusoidal",
    "T5Bias",
    "TransformerXL",
    "ablate",
    "attend",
    "block_sparse",
    "capture",
    "causal",
    "chunked",
    "convert",
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
    "plan",
    "prefix",
    "prune",
    "random_blocks",
    "strided",
    "tree",
    "window",
    "window2d",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"headwise.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # later lookups do not call this function
    return value


def __dir__() -> list[str]:
    return [*__all__, *_PACKAGES, "__version__"]

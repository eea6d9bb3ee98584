"""headwise: multi-head attention you can read, prove, run and see.

The names below load torch the first time one of them is used; ``import headwise`` alone loads
nothing heavy, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headwise.renamed import install

if TYPE_CHECKING:
    from headwise.attention import attend
    from headwise.call import Result
    from headwise.errors import EngineRefused, HeadwiseError
    from headwise.heads.ablation import ablate, prune
    from headwise.heads.capture import capture
    from headwise.masks import (
        Mask,
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
    from headwise.nn import MultiheadAttention, SegmentMemory, convert
    from headwise.planning import Plan, plan
    from headwise.positions import (
        ALiBi,
        Learned,
        NoPosition,
        Position,
        Rotary,
        Shaw,
        Sinusoidal,
        T5Bias,
        TransformerXL,
    )

install()

__version__ = "0.1.0"

_NAMES = {
    "headwise.attention": "attend",
    "headwise.call": "Result",
    "headwise.errors": "EngineRefused HeadwiseError",
    "headwise.heads.ablation": "ablate prune",
    "headwise.heads.capture": "capture",
    "headwise.masks": (
        "Mask block_sparse causal dilated documents every fixed from_tensor "
        "full global_tokens lsh padding per_head prefix random_blocks strided window"
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
"""Imported when they are first used, as in ``headwise.nn.UnitNorm()``."""

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
    "convert",
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
    "plan",
    "prefix",
    "prune",
    "random_blocks",
    "strided",
    "window",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"headwise.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return [*__all__, *_PACKAGES, "__version__"]

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
    from headwise.heads.ablation import ablate, prune
    from headwise.heads.capture import capture
    from headwise.masks import (
        Mask,
        block_sparse,
        causal,
        dilated,
        documents,
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

_HOME = {
    "ALiBi": "headwise.positions",
    "Learned": "headwise.positions",
    "Mask": "headwise.masks",
    "MultiheadAttention": "headwise.nn",
    "NoPosition": "headwise.positions",
    "Plan": "headwise.planning",
    "Position": "headwise.positions",
    "Result": "headwise.call",
    "Rotary": "headwise.positions",
    "SegmentMemory": "headwise.nn",
    "Shaw": "headwise.positions",
    "Sinusoidal": "headwise.positions",
    "T5Bias": "headwise.positions",
    "TransformerXL": "headwise.positions",
    "ablate": "headwise.heads.ablation",
    "attend": "headwise.attention",
    "block_sparse": "headwise.masks",
    "capture": "headwise.heads.capture",
    "causal": "headwise.masks",
    "convert": "headwise.nn",
    "dilated": "headwise.masks",
    "documents": "headwise.masks",
    "fixed": "headwise.masks",
    "from_tensor": "headwise.masks",
    "full": "headwise.masks",
    "global_tokens": "headwise.masks",
    "lsh": "headwise.masks",
    "padding": "headwise.masks",
    "per_head": "headwise.masks",
    "plan": "headwise.planning",
    "prefix": "headwise.masks",
    "prune": "headwise.heads.ablation",
    "random_blocks": "headwise.masks",
    "strided": "headwise.masks",
    "window": "headwise.masks",
}

__all__ = [
    "ALiBi",
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
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return __all__

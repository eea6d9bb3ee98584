"""Attention whose cost follows the pattern, not Lq Lk.

The mask says which tiles it leaves empty; bands become overlapping views of the keys and go to the
fused kernel as one batch, other tiles are gathered, and parts that share queries are merged by
their logsumexp. Forward and backward, nothing of size (Lq, Lk) ever being written.

    layers              a mask taken apart: `bands`, `lines` and `tiles`, each giving parts
    parts               blocks of queries and keys; `rows` says which
    scores              what the scores of a part get: mask and bias
    forward, backward   over all parts; `blocks` and `kernel` compute one
    function, operator  the doors for autograd and for torch.compile
    reasons             when it cannot run, and when it has nothing to win
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result
from headwise.engines.tiled import kernel
from headwise.engines.tiled.encoding import encode, known
from headwise.engines.tiled.function import Setting, tiled
from headwise.engines.tiled.operator import operator
from headwise.engines.tiled.reasons import pays, why_not
from headwise.positions import Stage

NAME = "tiled"

ALIGNED = 16
"""Numbers of which a row has a multiple, so that all rows begin alike in memory."""


def run(call: Call) -> Result:
    """Attention a part at a time; see the package."""
    q, k = call.position.content(call.q, call.k, call.frame)
    q, k, v, asked = (_packed(t) for t in (q, k, call.v, call.q))
    width = v.shape[3]
    if kernel.fused(q) and Stage.VALUES not in call.position.stages:
        q, k, v = _even(q, k, v)
    if torch.compiler.is_compiling():
        output, logsumexp = operator(q, k, v, *encode(call.mask), call.frame.offset, call.scale)
    else:
        setting = Setting(call.mask, call.position, call.scale, call.frame)
        output, logsumexp = tiled(setting, q, k, v, asked, *_learned(call))
    return Result(output[..., :width], logsumexp=logsumexp if "logsumexp" in call.need else None)


def _learned(call: Call) -> list[Tensor]:
    """Tensors beside q, k and v that want a gradient."""
    held = encode(call.mask)[1] if known(call.mask) else []
    return [t for t in (*call.position.parameters(), *held) if t.requires_grad]


def _packed(rows: Tensor) -> Tensor:
    """With last stride 1, as the kernel needs it."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _even(*tensors: Tensor) -> list[Tensor]:
    """With one last size, a multiple of `ALIGNED`: zeros add nothing to a product.

    The fused kernel has one size for D and Dv, and rounds alike only rows that are aligned alike:
    the answer of a sample must not depend on where in the batch it stands.
    """
    width = max(t.shape[3] for t in tensors)
    width = -(-width // ALIGNED) * ALIGNED
    return [t if t.shape[3] == width else F.pad(t, (0, width - t.shape[3])) for t in tensors]


__all__ = ["NAME", "pays", "run", "why_not"]

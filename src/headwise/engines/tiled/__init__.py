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


def run(call: Call) -> Result:
    """Attention a part at a time; see the package."""
    q, k = call.position.content(call.q, call.k, call.frame)
    q, k, v, asked = (_packed(t) for t in (q, k, call.v, call.q))
    width = v.shape[3]
    if kernel.fused(q) and Stage.VALUES not in call.position.stages:
        q, k, v = _same_width(q, k, v)
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


def _same_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With D equal to Dv: the fused kernel knows one size. Zeros add nothing to a product."""
    missing = v.shape[3] - q.shape[3]
    if missing > 0:
        return F.pad(q, (0, missing)), F.pad(k, (0, missing)), v
    return q, k, F.pad(v, (0, -missing)) if missing else v


__all__ = ["NAME", "pays", "run", "why_not"]

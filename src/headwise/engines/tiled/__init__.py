"""Attention whose cost follows the pattern, not Lq Lk.

The mask says which tiles it leaves empty; bands become overlapping views of the keys and go to the
fused kernel as one batch, other tiles are gathered, and parts that share queries are merged by
their logsumexp. Forward and backward, nothing of size (Lq, Lk) ever being written.

    layers   a mask taken apart: bands, lines and tiles, each with its parts
    parts    blocks of queries and keys; `rows` says which
    scores   what a part's scores get: mask and bias
    forward, backward   over the parts; `blocks` and `kernel` compute one
    function, operator  the doors for autograd and for torch.compile
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result
from headwise.engines.tiled import kernel
from headwise.engines.tiled.function import Setting, Tiled
from headwise.lang import Text
from headwise.masks import Mask
from headwise.positions import Stage

NAME = "tiled"


def why_not(call: Call) -> list[Text]:
    """Every reason why this engine cannot run the call."""
    reasons = []
    if "weights" in call.need:
        reasons.append(
            Text(
                "it never holds the weights, which take Lq x Lk", "它从不保存大小为 Lq x Lk 的权重"
            )
        )
    if call.dropout:
        reasons.append(Text("it has no dropout", "它不支持 dropout"))
    if 0 in (*call.q.shape, *call.k.shape, *call.v.shape):
        reasons.append(Text("a size is 0", "有一个大小为 0"))
    return reasons


def run(call: Call) -> Result:
    """Attention a part at a time; see the package."""
    q, k = call.position.content(call.q, call.k, call.frame)
    q, k, v, asked = (_packed(t) for t in (q, k, call.v, call.q))
    width = v.shape[3]
    if kernel.fused(q) and Stage.VALUES not in call.position.stages:
        q, k, v = _same_width(q, k, v)
    setting = Setting(call.mask, call.position, call.scale, call.frame)
    learned = [t for t in call.position.parameters() if t.requires_grad]
    output, logsumexp = Tiled.apply(setting, q, k, v, asked, *learned)
    return Result(output[..., :width], logsumexp=logsumexp if "logsumexp" in call.need else None)


def _packed(rows: Tensor) -> Tensor:
    """With last stride 1, as the kernel needs it."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _same_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With D equal to Dv: the fused kernel knows one size. Zeros add nothing to a product."""
    missing = v.shape[3] - q.shape[3]
    if missing > 0:
        return F.pad(q, (0, missing)), F.pad(k, (0, missing)), v
    return q, k, F.pad(v, (0, -missing)) if missing else v

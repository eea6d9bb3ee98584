"""PyTorch's fused kernels for scaled dot-product attention.

Through `torch.nn.functional.scaled_dot_product_attention`; and on a CPU, where that has no second
derivative and hides the logsumexp, through a `function` of our own around the same kernel.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result, softmax_dtype
from headwise.engines.derivatives import no_rule, transformed
from headwise.engines.hidden import without_hidden
from headwise.engines.sdpa.function import Setting, fused
from headwise.engines.sinks import widened
from headwise.engines.statistics import not_returned
from headwise.engines.tiled import kernel
from headwise.lang import Text
from headwise.masks import causal, full
from headwise.positions import Stage

NAME = "sdpa"


def why_not(call: Call) -> list[Text]:
    """Every reason why this engine cannot run the call."""
    own = _own(call)
    reasons = not_returned(call.need, ("logsumexp",) if own else ())
    if 0 in (*call.q.shape, *call.k.shape, *call.v.shape):
        reasons.append(Text("a size is 0"))
    if Stage.VALUES in call.position.stages:
        name = type(call.position).__name__
        reasons.append(Text("{name} adds to the values", name=name))
    if call.biased and call.q.dtype in (torch.float16, torch.bfloat16):
        kind = call.q.dtype
        reasons.append(Text("it would round the bias to {kind}", kind=kind))
    if call.sinks is not None and not own:
        reasons.append(
            Text("it has sinks on a CPU only, without dropout, torch.compile or a learned bias")
        )
    if transformed(call):
        reasons.append(no_rule())
    return reasons


def run(call: Call) -> Result:
    """Attention in O(L) memory beside the mask, where PyTorch has a fused kernel for it."""
    if without_mask(call):
        return _result(call, call.k, call.v, None)
    allowed = call.allowed()  # (B or 1, H or 1, Lq, Lk)
    return _result(call, *without_hidden(call, allowed), allowed)


def without_mask(call: Call) -> bool:
    """Whether the kernel needs no mask: everything may attend, or it knows the triangle itself.

    It hides by -inf before it scales, so that a scale of 0 makes NaN of the triangle and a negative
    one lets everything through.
    """
    frame = call.frame
    square = frame.queries == frame.keys and not frame.offset and call.scale > 0
    return not call.biased and (call.mask == full() or (square and call.mask == causal()))


def _own(call: Call) -> bool:
    """Whether the kernel is called by our own function, and not by PyTorch's."""
    if torch.compiler.is_compiling() or call.dropout or not kernel.fused(call.q):
        return False
    return 0 not in (*call.q.shape, *call.k.shape, *call.v.shape) and not call.learns()


def _result(call: Call, k: Tensor, v: Tensor, allowed: Tensor | None) -> Result:
    """Attention to keys without hidden numbers; no mask means full, or a square's triangle."""
    q, k = call.position.content(call.q, k, call.frame)
    if _own(call):
        return _by_ourselves(call, (q, k, v), allowed)
    blind = None if allowed is None else ~allowed.any(-1, keepdim=True)
    output = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=_mask(call, allowed, blind),
        dropout_p=call.dropout,
        is_causal=allowed is None and call.mask == causal(),
        scale=call.scale,
        enable_gqa=call.group > 1,
    )
    return Result(output if blind is None else output.masked_fill(blind, 0.0))


def _by_ourselves(
    call: Call, rows: tuple[Tensor, Tensor, Tensor], allowed: Tensor | None
) -> Result:
    """The same by our own function; autocast lowers q, k and v as PyTorch's lowers them."""
    q, k, v = (kernel.packed(_lowered(t)) for t in rows)
    width, kind = v.shape[3], v.dtype
    q, k, v = widened(call, q, k, v)
    if q.shape[3] != width:  # the kernel has one size for both
        q, k, v = kernel.even(q, k, v)
    added, blind = None, None
    if allowed is not None:
        blind = ~allowed.any(-1)  # (B or 1, H or 1, Lq)
        bias, wide = call.bias(), softmax_dtype(q.dtype)
        zero = torch.zeros((), dtype=wide, device=q.device)
        added = torch.where(allowed, zero if bias is None else bias.to(wide), -torch.inf)
    setting = Setting(call.scale, triangle=allowed is None and call.mask == causal())
    output, logsumexp = fused(setting, q, k, v, added, blind, call.sinks)
    sums = logsumexp if "logsumexp" in call.need else None
    return Result(output[..., :width].to(kind), logsumexp=sums)


def _lowered(rows: Tensor) -> Tensor:
    """In the dtype of autocast where that is on; float64 it leaves alone."""
    kind = rows.device.type
    if not torch.is_autocast_enabled(kind) or rows.dtype == torch.float64:
        return rows
    return rows.to(torch.get_autocast_dtype(kind))


def _mask(call: Call, allowed: Tensor | None, blind: Tensor | None) -> Tensor | None:
    """Booleans, or the bias in q's own dtype with -inf: the kernel is wrong for any other."""
    if allowed is None or blind is None:
        return None
    bias, shown = call.bias(), allowed | blind
    return shown if bias is None else torch.where(shown, bias.to(call.q.dtype), -torch.inf)


__all__ = ["NAME", "run", "why_not", "without_mask"]

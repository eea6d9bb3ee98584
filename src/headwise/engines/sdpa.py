"""`torch.nn.functional.scaled_dot_product_attention`, PyTorch's fused kernels."""

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result
from headwise.engines.hidden import without_hidden
from headwise.engines.statistics import not_returned
from headwise.lang import Text
from headwise.masks import causal, full
from headwise.positions import Stage

NAME = "sdpa"


def why_not(call: Call) -> list[Text]:
    """Every reason why this engine cannot run the call."""
    reasons = not_returned(call.need, ())
    if 0 in (*call.q.shape, *call.k.shape, *call.v.shape):
        reasons.append(Text("a size is 0", "有一个大小为 0"))
    if Stage.VALUES in call.position.stages:
        name = type(call.position).__name__
        reasons.append(Text(f"{name} adds to the values", f"{name} 会加到值上"))
    if call.biased and call.q.dtype in (torch.float16, torch.bfloat16):
        kind = call.q.dtype
        reasons.append(Text(f"it would round the bias to {kind}", f"它会把偏置舍入为 {kind}"))
    return reasons


def run(call: Call) -> Result:
    """Attention in O(L) memory beside the mask, where PyTorch has a fused kernel for it."""
    frame = call.frame
    square = frame.queries == frame.keys and not frame.offset
    if not call.biased and (call.mask == full() or (square and call.mask == causal())):
        return Result(_sdpa(call, call.k, call.v, is_causal=call.mask == causal()))
    allowed = call.allowed()  # (B or 1, H or 1, Lq, Lk)
    blind = ~allowed.any(-1, keepdim=True)
    k, v = without_hidden(call, allowed)
    output = _sdpa(call, k, v, attn_mask=_mask(call, allowed | blind))
    return Result(output.masked_fill(blind, 0.0))


def _mask(call: Call, allowed: Tensor) -> Tensor:
    """Booleans, or the bias in q's own dtype with -inf: the kernel is wrong for any other."""
    bias = call.bias()
    if bias is None:
        return allowed
    return torch.where(allowed, bias.to(call.q.dtype), -torch.inf)


def _sdpa(
    call: Call, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    q, k = call.position.content(call.q, k, call.frame)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=call.dropout,
        is_causal=is_causal,
        scale=call.scale,
        enable_gqa=call.group > 1,
    )

"""PyTorch's fused kernels for scaled dot-product attention.

The engine calls `torch.nn.functional.scaled_dot_product_attention`. On a CPU, where that function
has no second derivative, logsumexp or sinks, it calls the same kernel through `FusedAttention`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result, is_tracing, softmax_dtype
from headwise.engines import kernel
from headwise.engines.autograd_transforms import AttentionFunction, Tensors, no_transform_rule
from headwise.engines.eager import zero_masked_kv
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import apply_sinks, not_returned, widen_for_sinks
from headwise.lang import Text
from headwise.masks import causal, full
from headwise.positions import Stage

NAME = "sdpa"

HALF = (torch.float16, torch.bfloat16)


def why_not(call: Call) -> Iterator[Text]:
    """Yield every reason why this engine cannot run the call."""
    if call.need:
        yield from not_returned(call.need, ("logsumexp",) if _own_function(call) else ())
    if call.empty:
        yield Text("a size is 0")
    if Stage.VALUES in call.position.stages:
        yield Text("{name} adds to the values", name=type(call.position).__name__)
    if call.q.dtype in HALF and call.biased:
        yield Text("it would round the bias to {dtype}", dtype=call.q.dtype)
    if call.softcap is not None:
        yield Text("PyTorch's kernel has no soft cap")
    if call.score_mod is not None:
        yield Text("PyTorch's kernel takes no score_mod")
    if call.sinks is not None and not _own_function(call):
        yield Text("it supports sinks on a CPU only, without dropout, compiler or learned bias")
    yield from no_transform_rule(call)


def worthwhile(call: Call) -> bool:
    """Return True: this engine is faster than those after it in `ENGINES`."""
    del call
    return True


def run(call: Call) -> Result:
    """Compute attention in O(L) memory plus the mask, where PyTorch has a fused kernel."""
    if without_mask(call):
        return _result(call, call.k, call.v, None)
    allowed = call.allowed()  # (B or 1, H or 1, Lq, Lk)
    k, v = zero_masked_kv(allowed.any(-2), call.k, call.v)
    return _result(call, k, v, allowed)


def without_mask(call: Call) -> bool:
    """Return whether the kernel needs no mask tensor: the mask is full or square and causal.

    PyTorch's kernel masks with -inf before it scales. With ``is_causal``, a scale of 0 therefore
    gives NaN, and a negative scale allows every key.
    """
    if call.biased:
        return False
    if call.mask == full():
        return True
    square = call.shape.queries == call.shape.keys and not call.shape.offset
    return square and call.scale > 0 and call.mask == causal()


def _own_function(call: Call) -> bool:
    recorded = torch.compiler.is_compiling() or is_tracing()
    if recorded or call.dropout or not kernel.fused(call.q):
        return False
    return not call.empty and not call.bias_requires_grad()


def _result(call: Call, k: Tensor, v: Tensor, allowed: Tensor | None) -> Result:
    """Attend to k and v; ``allowed`` is None for a full mask or a square causal mask."""
    q, k = call.position.content(call.q, k, call.shape)
    triangle = allowed is None and call.mask == causal()
    if _own_function(call) and not _function_suffices(call, q, k, v, allowed):
        return _by_own_function(call, (q, k, v), allowed, triangle)
    attn_mask, fully_masked = None, None
    if allowed is not None:
        fully_masked = ~allowed.any(-1, keepdim=True)
        bias, attn_mask = call.bias(), allowed | fully_masked
        if bias is not None:  # in the dtype of q: the kernel is wrong for any other dtype
            attn_mask = torch.where(attn_mask, bias.to(call.q.dtype), -torch.inf)
    output = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=call.dropout,
        is_causal=triangle,
        scale=call.scale,
        enable_gqa=call.grouped,
    )
    return Result(output if fully_masked is None else output.masked_fill(fully_masked, 0.0))


def _function_suffices(call: Call, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> bool:
    """Return whether PyTorch's function gives the same result with less overhead."""
    plain = allowed is None and not call.need and call.sinks is None and call.group == 1
    learned = q.requires_grad or k.requires_grad or v.requires_grad
    if not plain or (learned and torch.is_grad_enabled()):
        return False
    width = q.shape[3]
    even = width == v.shape[3] and width % kernel.ALIGNED == 0
    return even and q.stride(3) == k.stride(3) == v.stride(3) == 1


def _by_own_function(
    call: Call, qkv: tuple[Tensor, Tensor, Tensor], allowed: Tensor | None, triangle: bool
) -> Result:
    """Run `FusedAttention`; under autocast, in the dtype that PyTorch's function uses."""
    q, k, v = qkv
    if torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64:
        q, k, v = (rows.to(torch.get_autocast_dtype(q.device.type)) for rows in qkv)
    q, k, v = kernel.packed(q), kernel.packed(k), kernel.packed(v)
    width, dtype = v.shape[3], v.dtype
    if call.sinks is not None:
        q, k, v = widen_for_sinks(call, q, k, v)
    if q.shape[3] != width:  # the kernel has one size for D and Dv
        q, k, v = kernel.even(q, k, v)
    added, fully_masked = None, None
    if allowed is not None:
        fully_masked = ~allowed.any(-1)  # (B or 1, H or 1, Lq)
        added = kernel.masked_bias(allowed, call.bias(), softmax_dtype(q.dtype))
    function = FusedAttention(call.scale, triangle)
    output, logsumexp = function((q, k, v, call.sinks, added, fully_masked))
    if output.shape[3] != width or output.dtype != dtype:
        output = output[..., :width].to(dtype)
    return Result(output, logsumexp=logsumexp if "logsumexp" in call.need else None)


@dataclass(frozen=True)
class FusedAttention(AttentionFunction):
    """The kernel as a function of q, k, v, the sinks or None, and two mask tensors or None.

    The first mask tensor is added to the scaled scores in the softmax dtype (B or 1, H or 1, Lq,
    Lk), without a gradient; the second is True for fully masked rows (B or 1, H or 1, Lq).

    Attributes:
        scale: the factor on the scores.
        triangle: whether query i attends to keys 0 to i only.
    """

    scale: float
    triangle: bool

    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        q, k, v, sinks, added, fully_masked = tensors
        output, sums = kernel.fused_forward(q, k, v, added, self.scale, triangle=self.triangle)
        if fully_masked is not None:
            sums = sums.masked_fill(fully_masked, -torch.inf)
        return apply_sinks(output, sums, sinks)

    def plain(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        q, k, v, sinks, added, fully_masked = tensors
        if self.triangle:
            shape, wide = (1, 1, q.shape[2], k.shape[2]), softmax_dtype(q.dtype)
            added = torch.full(shape, -torch.inf, dtype=wide, device=q.device).triu(1)
        scores = kernel.plain_scores(q, k, added, self.scale)
        weights, sums = kernel.plain_softmax(scores, fully_masked)
        output = kernel.grouped_matmul(weights, v.to(weights.dtype))
        output, sums = apply_sinks(output, sums, sinks)
        return output.to(v.dtype), sums

    def has_backward(self, q: Tensor, v: Tensor) -> bool:
        return kernel.suits(q, v)

    def backward(self, tensors: Tensors, given: BackwardInputs, needed: Sequence[bool]) -> Tensors:
        q, k, v, _, added, _ = tensors
        width, sums = q.shape[3], given.logsumexp
        finite = sums.masked_fill(sums == -torch.inf, torch.inf)  # so that the weights are 0 there
        own = BackwardInputs(kernel.packed(given.grad), given.output, finite)
        if given.grad_sums is not None:
            own, (q, k, v) = _with_grad_sums(own, given.grad_sums, (q, k, v))
        gradients = kernel.fused_backward(own, q, k, v, added, self.scale, triangle=self.triangle)
        return (*(rows[..., :width] for rows in gradients), None, None)


def _with_grad_sums(
    given: BackwardInputs, grad_sums: Tensor, rows: Sequence[Tensor]
) -> tuple[BackwardInputs, list[Tensor]]:
    """Express the gradient of the logsumexp by a wider output.

    The kernel computes dS = P (dO Vᵀ - Δ) with Δ = rowsum(dO O); here Δ - dL must replace Δ. One
    extra column has 1 in dO, -dL in O and 0 in V; the columns that fill up the width are 0.
    """
    wide, width = softmax_dtype(given.output.dtype), given.output.shape[3] + kernel.ALIGNED
    more = F.pad(torch.ones_like(grad_sums)[..., None], (0, kernel.ALIGNED - 1))
    grad = torch.cat((given.grad.to(wide), more), -1)
    output = torch.cat((given.output.to(wide), -more * grad_sums[..., None]), -1)
    widened = [kernel.widened(t.to(wide), width) for t in rows]
    return BackwardInputs(grad, output, given.logsumexp), widened

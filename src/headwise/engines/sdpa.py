"""PyTorch's fused kernels for scaled dot-product attention.

Through `torch.nn.functional.scaled_dot_product_attention`; or on a CPU, where that function has no
second derivative, no logsumexp and no sinks, through `FusedAttention` around the same kernel.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result, softmax_dtype
from headwise.engines import kernel
from headwise.engines.autograd_transforms import (
    DifferentiableFunction,
    differentiable_gradients,
    no_transform_rule,
    transformed,
    without_autocast,
)
from headwise.engines.eager import zero_masked_kv
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import apply_sinks, not_returned, sinks_gradient, widen_for_sinks
from headwise.lang import Text
from headwise.masks import causal, full
from headwise.positions import Stage

NAME = "sdpa"

HALF = (torch.float16, torch.bfloat16)

Gradients = tuple[Tensor | None, ...]


def why_not(call: Call) -> Iterator[Text]:
    """Every reason why this engine cannot run the call."""
    if call.need:
        yield from not_returned(call.need, ("logsumexp",) if _own_function(call) else ())
    if call.empty:
        yield Text("a size is 0")
    if Stage.VALUES in call.position.stages:
        yield Text("{name} adds to the values", name=type(call.position).__name__)
    if call.q.dtype in HALF and call.biased:
        yield Text("it would round the bias to {dtype}", dtype=call.q.dtype)
    if call.sinks is not None and not _own_function(call):
        yield Text("it has sinks on a CPU only, without dropout, torch.compile or a learned bias")
    if transformed(call):
        yield no_transform_rule()


def worthwhile(call: Call) -> bool:
    """Always: it is faster than the engines after it."""
    del call
    return True


def run(call: Call) -> Result:
    """Attention in O(L) memory beside the mask, where PyTorch has a fused kernel for it."""
    if without_mask(call):
        return _result(call, call.k, call.v, None)
    allowed = call.allowed()  # (B or 1, H or 1, Lq, Lk)
    return _result(call, *zero_masked_kv(call, allowed), allowed)


def without_mask(call: Call) -> bool:
    """Whether the kernel needs no mask tensor: the mask is full, or a square causal one.

    PyTorch's kernel masks with -inf before it scales, so that with ``is_causal`` a scale of 0 gives
    NaN and a negative one allows every key.
    """
    if call.biased:
        return False
    if call.mask == full():
        return True
    shape = call.shape
    square = shape.queries == shape.keys and not shape.offset and call.scale > 0
    return square and call.mask == causal()


def _own_function(call: Call) -> bool:
    """Whether `FusedAttention` can call the kernel."""
    if torch.compiler.is_compiling() or call.dropout or not kernel.fused(call.q):
        return False
    return not call.empty and not call.bias_requires_grad()


def _result(call: Call, k: Tensor, v: Tensor, allowed: Tensor | None) -> Result:
    """Attention to k and v; ``allowed`` is None for a full mask or a square causal one."""
    q, k = call.position.content(call.q, k, call.shape)
    triangle = allowed is None and call.mask == causal()
    if _own_function(call) and not _function_suffices(call, q, k, v, allowed):
        return _by_own_function(call, (q, k, v), allowed, triangle)
    fully_masked = None if allowed is None else ~allowed.any(-1, keepdim=True)
    output = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=_attn_mask(call, allowed, fully_masked),
        dropout_p=call.dropout,
        is_causal=triangle,
        scale=call.scale,
        enable_gqa=call.grouped,
    )
    return Result(output if fully_masked is None else output.masked_fill(fully_masked, 0.0))


def _function_suffices(call: Call, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> bool:
    """Whether PyTorch's function gives the same by the same kernel, with less overhead."""
    plain = allowed is None and not call.need and call.sinks is None and call.group == 1
    learned = q.requires_grad or k.requires_grad or v.requires_grad
    if not plain or (learned and torch.is_grad_enabled()):
        return False
    width = q.shape[3]
    even = width == v.shape[3] and width % kernel.ALIGNED == 0
    return even and q.stride(3) == k.stride(3) == v.stride(3) == 1


def _attn_mask(call: Call, allowed: Tensor | None, fully_masked: Tensor | None) -> Tensor | None:
    """Booleans, or the bias in q's dtype with -inf: the kernel is wrong for any other dtype."""
    if allowed is None or fully_masked is None:
        return None
    bias, shown = call.bias(), allowed | fully_masked
    return shown if bias is None else torch.where(shown, bias.to(call.q.dtype), -torch.inf)


def _by_own_function(
    call: Call, qkv: tuple[Tensor, Tensor, Tensor], allowed: Tensor | None, triangle: bool
) -> Result:
    """Attention by `FusedAttention`, under autocast in the dtype that PyTorch's function uses."""
    q, k, v = qkv
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
    q, k, v = kernel.packed(q), kernel.packed(k), kernel.packed(v)
    width, dtype = v.shape[3], v.dtype
    if call.sinks is not None:
        q, k, v = widen_for_sinks(call, q, k, v)
    if q.shape[3] != width:  # the kernel has one size for D and Dv
        q, k, v = kernel.even(q, k, v)
    added, fully_masked = None, None
    if allowed is not None:
        fully_masked = ~allowed.any(-1)  # (B or 1, H or 1, Lq)
        bias, wide = call.bias(), softmax_dtype(q.dtype)
        zero = torch.zeros((), dtype=wide, device=q.device)
        added = torch.where(allowed, zero if bias is None else bias.to(wide), -torch.inf)
    setting = KernelSetting(call.scale, triangle)
    output, logsumexp = fused_attention(setting, q, k, v, added, fully_masked, call.sinks)
    if output.shape[3] != width or output.dtype != dtype:
        output = output[..., :width].to(dtype)
    return Result(output, logsumexp=logsumexp if "logsumexp" in call.need else None)


def _autocast(rows: Tensor) -> Tensor:
    """In the dtype of autocast, which leaves float64 alone."""
    if rows.dtype == torch.float64:
        return rows
    return rows.to(torch.get_autocast_dtype(rows.device.type))


class KernelSetting(NamedTuple):
    """The factor on the scores, and whether query i sees keys 0 to i only."""

    scale: float
    triangle: bool


class FusedAttention(torch.autograd.Function):
    """The kernel as a function of (setting, q, k, v, added, fully_masked, sinks).

    The last three may be None. It returns output and logsumexp; autocast is disabled inside.
    """

    @staticmethod
    def forward(
        ctx: Any, setting: KernelSetting, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        added, fully_masked, sinks = rest
        with without_autocast(q):
            output, sums = kernel.fused_forward(
                q, k, v, added, setting.scale, triangle=setting.triangle
            )
            if fully_masked is not None:
                sums = sums.masked_fill(fully_masked, -torch.inf)
            if sinks is not None:
                output, sums = apply_sinks(output, sums, sinks)
        ctx.setting = setting
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *rest, output, sums)
        return output, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        *inputs, output, sums = ctx.saved_tensors
        with without_autocast(output):
            if torch.is_grad_enabled() or not kernel.suits(inputs[0], inputs[2]):
                needs_grad, function = ctx.needs_input_grad[1:], _with_scores(ctx.setting)
                return (None, *differentiable_gradients(function, inputs, needs_grad, gradients))
            return (None, *_gradients(ctx.setting, inputs, (output, sums), gradients))


def fused_attention(
    setting: KernelSetting, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq), -inf on rows without key and sink.

    Args:
        setting: of the function.
        q: the queries; q, k and v have last stride 1.
        k: the keys.
        v: the values.
        rest: what is added to the scaled scores in the softmax dtype (B or 1, H or 1, Lq, Lk),
            without a gradient; which rows are fully masked (B or 1, H or 1, Lq); the sinks (H,).
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = FusedAttention.apply
    return apply(setting, q, k, v, *rest)


def _gradients(
    setting: KernelSetting,
    inputs: list[Tensor | None],
    results: tuple[Tensor, Tensor],
    gradients: Gradients,
) -> Gradients:
    """The gradients of the tensors of `FusedAttention`, by the fused backward."""
    q, k, v = cast("list[Tensor]", inputs[:3])
    (added, _, sinks), (output, sums), (grad, grad_sums) = inputs[3:], results, gradients
    grad = torch.zeros_like(output) if grad is None else kernel.packed(grad)
    finite = sums.masked_fill(sums == -torch.inf, torch.inf)  # there the weights are 0
    given, rows = BackwardInputs(grad, output, finite), (q, k, v)
    if grad_sums is not None:
        given, rows = _with_grad_sums(given, grad_sums, rows)
    found = kernel.backward(given, *rows, added, setting.scale, triangle=setting.triangle)
    own = (d[..., : t.shape[3]].to(t.dtype) for d, t in zip(found, (q, k, v), strict=True))
    of_sinks = None
    if sinks is not None:
        of_sinks = sinks_gradient(sinks, grad, output, sums, grad_sums)
    return (*own, None, None, of_sinks)


def _with_grad_sums(
    given: BackwardInputs, grad_sums: Tensor, rows: tuple[Tensor, Tensor, Tensor]
) -> tuple[BackwardInputs, tuple[Tensor, Tensor, Tensor]]:
    """The gradient of the logsumexp expressed by a wider output.

    The kernel computes dS = P (dO Vᵀ - Δ) with Δ = rowsum(dO O), and Δ - dL is wanted in its place.
    One more column has 1 in dO, -dL in O and 0 in V; the others that fill up the width have 0.
    """
    wide, width = softmax_dtype(given.output.dtype), given.output.shape[3] + kernel.ALIGNED
    q, k, v = (kernel.widened(t.to(wide), width) for t in rows)
    more = F.pad(torch.ones_like(grad_sums)[..., None], (0, kernel.ALIGNED - 1))
    grad = torch.cat((given.grad.to(wide), more), -1)
    output = torch.cat((given.output.to(wide), -more * grad_sums[..., None]), -1)
    return BackwardInputs(grad, output, given.logsumexp), (q, k, v)


def _with_scores(setting: KernelSetting) -> DifferentiableFunction:
    """The same function with the scores written out, for derivatives of the backward."""

    def function(inputs: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        q, k, v = cast("list[Tensor]", inputs[:3])
        added, fully_masked, sinks = inputs[3:]
        mask = kernel.causal_bias(q, k) if setting.triangle else added
        scores = kernel.plain_scores(q, k, mask, setting.scale)
        return kernel.plain_results(scores, fully_masked, v, sinks)

    return function


__all__ = ["NAME", "run", "why_not", "without_mask", "worthwhile"]

"""PyTorch's fused kernels for scaled dot-product attention.

Through `torch.nn.functional.scaled_dot_product_attention`; and on a CPU, where that has no second
derivative and hides the logsumexp, through a `function` of our own around the same kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import Call, Result, softmax_dtype
from headwise.engines import kernel
from headwise.engines.autograd_transforms import gradients_by, no_transform_rule, transformed
from headwise.engines.eager import zero_masked_kv
from headwise.engines.kernel import BackwardInputs
from headwise.engines.sinks import apply_sinks, sinks_gradient, widen_for_sinks
from headwise.engines.statistics import not_returned
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
        reasons.append(no_transform_rule())
    return reasons


def run(call: Call) -> Result:
    """Attention in O(L) memory beside the mask, where PyTorch has a fused kernel for it."""
    if without_mask(call):
        return _result(call, call.k, call.v, None)
    allowed = call.allowed()  # (B or 1, H or 1, Lq, Lk)
    return _result(call, *zero_masked_kv(call, allowed), allowed)


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
    q, k, v = widen_for_sinks(call, q, k, v)
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


Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Setting:
    """What is no tensor: the factor on the scores, and whether query i sees keys 0 to i only."""

    scale: float
    triangle: bool


class Fused(torch.autograd.Function):
    """Output and logsumexp of (setting, q, k, v, added, blind, sinks), the last three or None.

    Autocast is off inside: the tensors are computed with as they come.
    """

    @staticmethod
    def forward(
        ctx: Any, setting: Setting, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        added, blind, sinks = rest
        scale, triangle = setting.scale, setting.triangle
        with torch.autocast(q.device.type, enabled=False):
            output, sums = kernel.fused_forward(q, k, v, added, scale, triangle=triangle)
            if blind is not None:
                sums = sums.masked_fill(blind, -torch.inf)
            if sinks is not None:
                output, sums = apply_sinks(output, sums, sinks)
        ctx.setting = setting
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *rest, output, sums)
        return output, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        *inputs, output, sums = ctx.saved_tensors
        with torch.autocast(output.device.type, enabled=False):
            if torch.is_grad_enabled() or not kernel.suits(inputs[0], inputs[2]):
                wanted = ctx.needs_input_grad[1:]
                return (None, *gradients_by(_plainly(ctx.setting), inputs, wanted, gradients))
            return (None, *_gradients(ctx.setting, inputs, (output, sums), gradients))


def fused(
    setting: Setting, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq), -inf where there is nothing to sum.

    Args:
        setting: how.
        q: the queries; q, k and v have last stride 1.
        k: the keys.
        v: the values.
        rest: what is added to the scaled scores in the softmax dtype (B or 1, H or 1, Lq, Lk),
            without a gradient; which rows see no key (B or 1, H or 1, Lq); and the sinks (H,).
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = Fused.apply
    return apply(setting, q, k, v, *rest)


def _gradients(
    setting: Setting,
    inputs: list[Tensor | None],
    results: tuple[Tensor, Tensor],
    gradients: Gradients,
) -> Gradients:
    """The gradients of q, k, v, nothing, nothing and the sinks, by the fused backward."""
    q, k, v = cast("list[Tensor]", inputs[:3])
    (added, _, sinks), (output, sums), (grad, grad_sums) = inputs[3:], results, gradients
    grad = torch.zeros_like(output) if grad is None else kernel.packed(grad)
    seen = sums.masked_fill(sums == -torch.inf, torch.inf)  # there the weights are 0
    given, rows = BackwardInputs(grad, output, seen), (q, k, v)
    if grad_sums is not None:
        given, rows = _with_sums(given, grad_sums, rows)
    found = kernel.backward(given, *rows, added, setting.scale, triangle=setting.triangle)
    own = (d[..., : t.shape[3]].to(t.dtype) for d, t in zip(found, (q, k, v), strict=True))
    of_sinks = None
    if sinks is not None:
        of_sinks = sinks_gradient(sinks, grad, output, sums, grad_sums)
    return (*own, None, None, of_sinks)


def _with_sums(
    given: BackwardInputs, grad_sums: Tensor, rows: tuple[Tensor, Tensor, Tensor]
) -> tuple[BackwardInputs, tuple[Tensor, Tensor, Tensor]]:
    """The same gradients and those of the logsumexp, as gradients of a wider output alone.

    The kernel computes dS = P (dO Vᵀ - Δ) with Δ = rowsum(dO O), and Δ - dL is wanted in its place.
    One more column has 1 in dO, -dL in O and 0 in V; the others that fill up the width have 0.
    """
    wide, width = softmax_dtype(given.output.dtype), given.output.shape[3] + kernel.ALIGNED
    q, k, v = (kernel.widened(t.to(wide), width) for t in rows)
    more = F.pad(torch.ones_like(grad_sums)[..., None], (0, kernel.ALIGNED - 1))
    grad = torch.cat((given.grad.to(wide), more), -1)
    output = torch.cat((given.output.to(wide), -more * grad_sums[..., None]), -1)
    return BackwardInputs(grad, output, given.logsumexp), (q, k, v)


def _plainly(setting: Setting) -> Callable[[list[Tensor | None]], tuple[Tensor, Tensor]]:
    """The same function with the scores written out, for derivatives of the backward."""

    def plain(inputs: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        q, k, v = cast("list[Tensor]", inputs[:3])
        added, blind, sinks = inputs[3:]
        mask = kernel.below(q, k) if setting.triangle else added
        scores = kernel.plain_scores(q, k, mask, setting.scale)
        return kernel.plain_results(scores, blind, v, sinks)

    return plain

"""PyTorch's fused CPU kernel as a function of our own: with logsumexp, sinks, second derivatives.

`torch.nn.functional.scaled_dot_product_attention` has none of the three where it calls the kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import softmax_dtype
from headwise.engines import sinks as sinking
from headwise.engines.derivatives import again
from headwise.engines.tiled import kernel
from headwise.engines.tiled.kernel import Given

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
                output, sums = sinking.sunk(output, sums, sinks)
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
                return (None, *again(_plainly(ctx.setting), inputs, wanted, gradients))
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
    given, rows = Given(grad, output, seen), (q, k, v)
    if grad_sums is not None:
        given, rows = _with_sums(given, grad_sums, rows)
    found = kernel.backward(given, *rows, added, setting.scale, triangle=setting.triangle)
    own = (d[..., : t.shape[3]].to(t.dtype) for d, t in zip(found, (q, k, v), strict=True))
    of_sinks = None
    if sinks is not None:
        of_sinks = sinking.gradient(sinks, grad, output, sums, grad_sums)
    return (*own, None, None, of_sinks)


def _with_sums(
    given: Given, grad_sums: Tensor, rows: tuple[Tensor, Tensor, Tensor]
) -> tuple[Given, tuple[Tensor, Tensor, Tensor]]:
    """The same gradients and those of the logsumexp, as gradients of a wider output alone.

    The kernel computes dS = P (dO Vᵀ - Δ) with Δ = rowsum(dO O), and Δ - dL is wanted in its place.
    One more column has 1 in dO, -dL in O and 0 in V; the others that fill up the width have 0.
    """
    wide, width = softmax_dtype(given.output.dtype), given.output.shape[3] + kernel.ALIGNED
    q, k, v = (kernel.widened(t.to(wide), width) for t in rows)
    more = F.pad(torch.ones_like(grad_sums)[..., None], (0, kernel.ALIGNED - 1))
    grad = torch.cat((given.grad.to(wide), more), -1)
    output = torch.cat((given.output.to(wide), -more * grad_sums[..., None]), -1)
    return Given(grad, output, given.logsumexp), (q, k, v)


def _plainly(setting: Setting) -> Callable[[list[Tensor | None]], tuple[Tensor, Tensor]]:
    """The same function with the scores written out, for derivatives of the backward."""

    def plain(inputs: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        q, k, v = cast("list[Tensor]", inputs[:3])
        added, blind, sinks = inputs[3:]
        mask = kernel.below(q, k) if setting.triangle else added
        scores = kernel.plain_scores(q, k, mask, setting.scale)
        return kernel.plain_results(scores, blind, v, sinks)

    return plain

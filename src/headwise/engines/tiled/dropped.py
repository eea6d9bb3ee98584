"""Dropout with a backward of its own, for what is neither biased nor has sinks.

With P the weights over all keys and M = 1/(1-p) where a pair is kept, 0 elsewhere,

    O = (M P) V      dS = P (M dO Vᵀ - Δ)      Δ = rowsum(dO O)

A backward that is told the logsumexp over all keys takes Δ from the output that it is given. Over
the kept pairs, given dO/(1-p) and an output of 0, it gives P M dO Vᵀ and the gradient of V; over
all pairs, given dO, O and values of 0, it gives the rest, -P Δ. Where no query sees more than one
key the two cancel, and both are 0.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines.derivatives import again
from headwise.engines.dropping import Keep, numbered, share_kept
from headwise.engines.tiled import kernel
from headwise.engines.tiled.backward import backward, lonely
from headwise.engines.tiled.dense import dense
from headwise.engines.tiled.forward import forward
from headwise.engines.tiled.function import Gradients, Setting
from headwise.engines.tiled.kernel import Given
from headwise.engines.tiled.visible import without_hidden
from headwise.engines.tiled.work import Work
from headwise.positions import Stage


def plain(call: Call) -> bool:
    """Whether a call is of the kind that this file differentiates."""
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    beside = call.mask.biased or acts or call.sinks is not None
    return not beside and call.dropout < 1 and "logsumexp" not in call.need


def forward_dropped(work: Work, keep: Keep) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv), and the logsumexp (B, H, Lq) over all keys."""
    _, whole = forward(work)
    output, some = forward(replace(work, mask=work.mask & keep))
    return (output * share_kept(some, whole, keep.dropout)).to(output.dtype), whole


def backward_dropped(
    work: Work, keep: Keep, given: Given, grad_logsumexp: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, in the softmax dtype.

    Args:
        work: the attention, without what `plain` excludes.
        keep: which pairs are kept.
        given: what `forward_dropped` gave, and the gradient of its output.
        grad_logsumexp: (B, H, Lq), or None.
    """
    work, grad = without_hidden(work), given.grad / (1 - keep.dropout)
    products = Given(grad, torch.zeros_like(given.output), given.logsumexp)
    kept = backward(replace(work, mask=work.mask & keep), products, alone=lonely(work))
    silent = replace(work, v=torch.zeros_like(work.v))
    every = backward(silent, given, grad_logsumexp)
    return kept.q + every.q, kept.k + every.k, kept.v


class Dropped(torch.autograd.Function):
    """The output of (setting, which pairs are kept, q, k, v, q as asked)."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, keep: Keep, *tensors: Tensor) -> Tensor:
        with torch.autocast(tensors[0].device.type, enabled=False):
            output, whole = forward_dropped(setting.work(tensors), keep)
        ctx.setting, ctx.keep = setting, keep
        ctx.save_for_backward(*tensors, output, whole)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        *tensors, output, whole = ctx.saved_tensors
        setting, keep = ctx.setting, ctx.keep
        with torch.autocast(setting.frame.device.type, enabled=False):
            if torch.is_grad_enabled():
                return (None, None, *_twice(setting, keep, tensors, ctx, gradients))
            given = Given(gradients[0].contiguous(), output, whole)
            found = backward_dropped(setting.work(tensors), keep, given)
        own = (each.to(tensor.dtype) for each, tensor in zip(found, tensors, strict=False))
        return (None, None, *own, None)


def dropped(call: Call) -> Result:
    """The output of a call that is `plain`."""
    q, k = call.position.content(call.q, call.k, call.frame)
    q, k, v, asked = (kernel.packed(t) for t in (q, k, call.v, call.q))
    width = v.shape[3]
    if kernel.fused(q):
        q, k, v = kernel.even(q, k, v)
    setting = Setting(call.mask, call.position, call.scale, call.frame)
    apply: Callable[..., Tensor] = Dropped.apply
    output = apply(setting, Keep(call.dropout, numbered()), q, k, v, asked)
    return Result(output[..., :width].to(call.v.dtype))


def _twice(
    setting: Setting, keep: Keep, tensors: list[Tensor], ctx: Any, gradients: tuple[Tensor, ...]
) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again, with the scores written out."""

    def written(given: list[Tensor | None]) -> tuple[Tensor]:
        work: Work = without_hidden(setting.work([each for each in given if each is not None]))
        _, whole = dense(work)
        output, some = dense(replace(work, mask=work.mask & keep))
        return ((output * share_kept(some, whole, keep.dropout)).to(output.dtype),)

    return again(written, tensors, ctx.needs_input_grad[2:], gradients, [])

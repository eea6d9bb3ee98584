"""The engine as functions of autograd, with their own backward, and derivatives of that.

With dropout, P the weights over all keys and M = 1/(1-p) where a pair is kept, 0 elsewhere,

    O = (M P) V      dS = P (M dO Vᵀ - Δ)      Δ = rowsum(dO O)

A backward given the logsumexp over all keys takes Δ from the output it is given. Over the kept
pairs, given dO/(1-p) and an output of 0, it gives P M dO Vᵀ and the gradient of V; over all pairs,
given dO, O and values of 0, it gives the rest, -P Δ. Where no query sees more than one key the two
cancel, and both are 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines import kernel
from headwise.engines.autograd_transforms import differentiable_gradients
from headwise.engines.dropout import Keep, draw_call_seed, kept_share
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import sinks_gradient
from headwise.engines.tiled.backward import backward, single_key
from headwise.engines.tiled.forward import dense, forward
from headwise.engines.tiled.problem import GradientBuffers, Problem, zero_masked_kv
from headwise.masks import Mask
from headwise.positions import Position, Stage
from headwise.positions.position import ClippedKeyValues
from headwise.positions.relative_terms import RelativeTerms
from headwise.shapes import AttentionShape

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class TiledSetting:
    """The parameters of an attention that are no tensors.

    Attributes:
        mask, position, scale, shape: as in `Problem`.
        relative: which of the position's `RelativeTerms` are among the tensors.
        reach: the distance from which clipped keys and values, among the tensors, replace k and v;
            None without them.
        sinks: whether sinks are among the tensors.
    """

    mask: Mask
    position: Position
    scale: float
    shape: AttentionShape
    relative: tuple[bool, ...] = (False, False, False)
    reach: int | None = None
    sinks: bool = False

    @property
    def count(self) -> int:
        """How many of the tensors are those of the `Problem`."""
        return 4 + sum(self.relative) + (0 if self.reach is None else 4) + self.sinks

    def problem(self, tensors: Sequence[Tensor]) -> Problem:
        """The problem of q, k, v, the raw queries and the optional tensors."""
        q, k, v, raw_queries, *more = tensors[: self.count]
        relative = RelativeTerms(*(more.pop(0) if there else None for there in self.relative))
        sinks = more.pop() if self.sinks else None
        far = None
        if self.reach is not None:
            far = ClippedKeyValues(self.reach, (more[0], more[1]), (more[2], more[3]))
        fixed = self.mask, self.position, self.scale, self.shape
        known = relative if any(self.relative) else None
        return Problem(q, k, v, raw_queries, *fixed, known, far, sinks)

    def gradients(self, buffers: GradientBuffers) -> list[Tensor | None]:
        """The gradients of those tensors but the sinks, in order."""
        known = [gradient for gradient in buffers.relative if gradient is not None]
        return [buffers.q, buffers.k, buffers.v, buffers.raw_queries, *known, *buffers.far]


class TiledAttention(torch.autograd.Function):
    """Output and logsumexp of (setting, the tensors of a `Problem`, the tensors of the bias).

    Autocast is off inside: the tensors are computed with as they come, the bias in float32.
    """

    @staticmethod
    def forward(ctx: Any, setting: TiledSetting, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(tensors[0].device.type, enabled=False):
            output, logsumexp = forward(setting.problem(tensors))
        ctx.setting = setting
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output, logsumexp)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        with torch.autocast(ctx.setting.shape.device.type, enabled=False):
            return TiledAttention._backward(ctx, gradients)

    @staticmethod
    def _backward(ctx: Any, gradients: tuple[Tensor | None, ...]) -> Gradients:
        *tensors, output, logsumexp = ctx.saved_tensors
        wanted, setting = ctx.needs_input_grad[1:], ctx.setting
        if torch.is_grad_enabled():
            return (None, *_twice(setting, tensors, wanted, gradients))
        grad, grad_sums = gradients
        given = BackwardInputs(
            torch.zeros_like(output) if grad is None else grad.contiguous(), output, logsumexp
        )
        problem, rest = zero_masked_kv(setting.problem(tensors)), setting.count
        learned = [t for t, want in zip(tensors[rest:], wanted[rest:], strict=True) if want]
        buffers = backward(problem, given, grad_sums, learned)
        others = iter(buffers.learned)
        every = setting.gradients(buffers)
        if problem.sinks is not None:
            results = given.grad, given.output, given.logsumexp
            every.append(sinks_gradient(problem.sinks, *results, grad_sums))
        own = zip(every, tensors[:rest], strict=True)
        found = [
            None if gradient is None else gradient.to(tensor.dtype) for gradient, tensor in own
        ]
        return (None, *found, *(next(others) if want else None for want in wanted[rest:]))


def tiled(setting: TiledSetting, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq).

    Args:
        setting: mask, position, scale and shape.
        tensors: those of `TiledSetting.problem`: rotated q and k, v, the raw queries, ...; then
            the other tensors that the bias, or what is added to the values, depends on.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = TiledAttention.apply
    return apply(setting, *tensors)


def _twice(
    setting: TiledSetting,
    tensors: list[Tensor],
    wanted: tuple[bool, ...],
    gradients: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """The gradients through a function with the scores written out, differentiable again."""

    def plain(given: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        return dense(
            zero_masked_kv(
                setting.problem([gradient for gradient in given if gradient is not None])
            )
        )

    held, learned = tensors[: setting.count], tensors[setting.count :]
    return differentiable_gradients(plain, held, wanted, gradients, learned)


def is_plain(call: Call) -> bool:
    """Whether `DroppedAttention` can run a call: no bias, no sinks, only the output."""
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    beside = call.mask.biased or acts or call.sinks is not None
    return not beside and call.dropout < 1 and "logsumexp" not in call.need


def forward_dropped(problem: Problem, keep: Keep) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv), and the logsumexp (B, H, Lq) over all keys."""
    _, whole = forward(problem)
    output, some = forward(replace(problem, mask=problem.mask & keep))
    return (output * kept_share(some, whole, keep.dropout)).to(output.dtype), whole


def backward_dropped(
    problem: Problem, keep: Keep, given: BackwardInputs, grad_logsumexp: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, in the softmax dtype.

    Args:
        problem: the attention, of a call that `is_plain`.
        keep: which pairs are kept.
        given: what `forward_dropped` gave, and the gradient of its output.
        grad_logsumexp: (B, H, Lq), or None.
    """
    problem, grad = zero_masked_kv(problem), given.grad / (1 - keep.dropout)
    products = BackwardInputs(grad, torch.zeros_like(given.output), given.logsumexp)
    kept = backward(
        replace(problem, mask=problem.mask & keep), products, constant_weights=single_key(problem)
    )
    silent = replace(problem, v=torch.zeros_like(problem.v))
    every = backward(silent, given, grad_logsumexp)
    return kept.q + every.q, kept.k + every.k, kept.v


class DroppedAttention(torch.autograd.Function):
    """The output of (setting, kept pairs, q, k, v, the raw queries)."""

    @staticmethod
    def forward(ctx: Any, setting: TiledSetting, keep: Keep, *tensors: Tensor) -> Tensor:
        with torch.autocast(tensors[0].device.type, enabled=False):
            output, whole = forward_dropped(setting.problem(tensors), keep)
        ctx.setting, ctx.keep = setting, keep
        ctx.save_for_backward(*tensors, output, whole)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        *tensors, output, whole = ctx.saved_tensors
        setting, keep = ctx.setting, ctx.keep
        with torch.autocast(setting.shape.device.type, enabled=False):
            if torch.is_grad_enabled():
                return (None, None, *_twice_dropped(setting, keep, tensors, ctx, gradients))
            given = BackwardInputs(gradients[0].contiguous(), output, whole)
            found = backward_dropped(setting.problem(tensors), keep, given)
        own = (gradient.to(tensor.dtype) for gradient, tensor in zip(found, tensors, strict=False))
        return (None, None, *own, None)


def dropped(call: Call) -> Result:
    """The output of a call that `is_plain`."""
    q, k = call.position.content(call.q, call.k, call.shape)
    q, k, v, raw_queries = (kernel.packed(t) for t in (q, k, call.v, call.q))
    width = v.shape[3]
    if kernel.fused(q):
        q, k, v = kernel.even(q, k, v)
    setting = TiledSetting(call.mask, call.position, call.scale, call.shape)
    apply: Callable[..., Tensor] = DroppedAttention.apply
    output = apply(setting, Keep(call.dropout, draw_call_seed()), q, k, v, raw_queries)
    return Result(output[..., :width].to(call.v.dtype))


def _twice_dropped(
    setting: TiledSetting,
    keep: Keep,
    tensors: list[Tensor],
    ctx: Any,
    gradients: tuple[Tensor, ...],
) -> list[Tensor | None]:
    """The gradients through a function with the scores written out, differentiable again."""

    def written(given: list[Tensor | None]) -> tuple[Tensor]:
        problem: Problem = zero_masked_kv(
            setting.problem([gradient for gradient in given if gradient is not None])
        )
        _, whole = dense(problem)
        output, some = dense(replace(problem, mask=problem.mask & keep))
        return ((output * kept_share(some, whole, keep.dropout)).to(output.dtype),)

    return differentiable_gradients(written, tensors, ctx.needs_input_grad[2:], gradients, [])

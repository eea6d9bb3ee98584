"""The engine as operators that `torch.compile` and `torch.export` carry as one node."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines.sinks import gradient
from headwise.engines.tiled.backward import backward
from headwise.engines.tiled.encoding import decode
from headwise.engines.tiled.forward import forward
from headwise.engines.tiled.kernel import Given
from headwise.engines.tiled.visible import without_hidden
from headwise.engines.tiled.work import Work
from headwise.positions import NoPosition
from headwise.shapes import Frame


@torch.library.custom_op("headwise::tiled", mutates_args=())
def operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq) under a mask given by `encoding.encode`."""
    work = _work(q, k, v, numbers, tensors, offset, scale)
    return forward(replace(work, sinks=sinks))


@torch.library.custom_op("headwise::tiled_backward", mutates_args=())
def operator_backward(
    results: Sequence[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; ``results`` are gradient, output and logsumexp."""
    work = without_hidden(_work(q, k, v, numbers, tensors, offset, scale))
    grad, output, logsumexp = results
    sums = backward(work, Given(grad.contiguous(), output, logsumexp))
    return sums.q.to(q.dtype), sums.k.to(k.dtype), sums.v.to(v.dtype)


@operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    del k, numbers, tensors, offset, scale, sinks
    rows = q.shape[:3]
    return v.new_empty(*rows, v.shape[3]), q.new_empty(rows, dtype=softmax_dtype(q.dtype))


@operator_backward.register_fake
def _(
    results: Sequence[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    del results, numbers, tensors, offset, scale
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, numbers, tensors, offset, scale, sinks = inputs
    ctx.save_for_backward(*output, q, k, v, sinks, *tensors)
    ctx.mark_non_differentiable(output[1])
    ctx.setting = numbers, offset, scale


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    output, logsumexp, q, k, v, sinks, *tensors = ctx.saved_tensors
    numbers, offset, scale = ctx.setting
    of_sinks = None if sinks is None else gradient(sinks, grad, output, logsumexp, None)
    found = operator_backward([grad, output, logsumexp], q, k, v, numbers, tensors, offset, scale)
    return (*found, None, [None] * len(tensors), None, None, of_sinks)


operator.register_autograd(_gradients, setup_context=_remember)


def _work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
) -> Work:
    frame = Frame(q.shape[0], q.shape[1], q.shape[2], k.shape[2], offset, q.device)
    return Work(q, k, v, q, decode(numbers, tensors), NoPosition(), scale, frame)

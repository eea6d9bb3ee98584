"""The engine as operators that `torch.compile` and `torch.export` carry as one node.

Beside q, k and v the operators take what `encoding.encode` writes: a mask, and where there is more,
a position, the raw queries and the pairs that dropout keeps, or None for any of them. The relative
terms of a position are computed inside.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.call import softmax_dtype
from headwise.engines import kernel
from headwise.engines.dropout import Keep
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import sinks_gradient
from headwise.engines.tiled.autograd import backward_dropped, forward_dropped
from headwise.engines.tiled.backward import backward
from headwise.engines.tiled.encoding import decode
from headwise.engines.tiled.forward import forward
from headwise.engines.tiled.problem import Problem, clipped_terms, relative_terms, zero_masked_kv
from headwise.positions import NoPosition
from headwise.shapes import AttentionShape


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
    """Output (B, H, Lq, Dv) and logsumexp (B, H, Lq) under what `numbers` and `tensors` write.

    With dropout the logsumexp is that of all keys.
    """
    with torch.autocast(q.device.type, enabled=False):
        problem, keep = _read(q, k, v, numbers, tensors, offset, scale)
        problem = replace(problem, sinks=sinks)
        return forward(problem) if keep is None else forward_dropped(problem, keep)


@torch.library.custom_op("headwise::tiled_backward", mutates_args=())
def operator_backward(
    known: Sequence[Tensor],
    perhaps: Sequence[Tensor | None],
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
    wanted: Sequence[bool],
) -> list[Tensor]:
    """The gradients that are wanted of q, k, v and the tensors, in that order.

    Args:
        known: q, k, v, the output and the logsumexp.
        perhaps: the gradients of output and logsumexp, None for 0; the sinks.
        numbers: as for `operator`.
        tensors: as for `operator`.
        offset: as for `operator`.
        scale: as for `operator`.
        wanted: for q, k, v and each of the tensors.
    """
    *qkv, output, logsumexp = known
    grad, grad_sums, sinks = perhaps
    full = torch.zeros_like(output) if grad is None else grad.contiguous()
    given = BackwardInputs(full, output, logsumexp)
    with _recorded(), torch.autocast(output.device.type, enabled=False):
        pairs = zip((*qkv, *tensors), wanted, strict=True)
        leaves = [tensor.detach().requires_grad_(want) for tensor, want in pairs]
        q, k, v, *held = leaves
        with torch.enable_grad():
            problem, keep = _read(q, k, v, numbers, held, offset, scale)
        problem = replace(problem, sinks=sinks)
        with torch.no_grad():
            if keep is None:
                parts = _gradients(problem, given, grad_sums, held)
            else:
                found = backward_dropped(problem, keep, given, grad_sums)
                parts = list(zip((q, k, v), found, strict=True))
        return _leaf_gradients(parts, [tensor for tensor in leaves if tensor.requires_grad])


Part = tuple[Tensor | None, Tensor | None]
"""A tensor of an attention and its gradient; None where there is none."""


def _gradients(
    problem: Problem, given: BackwardInputs, grad_sums: Tensor | None, held: Sequence[Tensor]
) -> list[Part]:
    """The tensors of an attention with their gradients."""
    learned = [
        tensor for tensor in held if tensor.requires_grad and tensor is not problem.raw_queries
    ]
    buffers = backward(zero_masked_kv(problem), given, grad_sums, learned)
    far = () if problem.far is None else (*problem.far.keys, *problem.far.values)
    tensors = (
        problem.q,
        problem.k,
        problem.v,
        problem.raw_queries,
        *(problem.relative or ()),
        *far,
        *learned,
    )
    relative = () if problem.relative is None else buffers.relative
    found = (
        buffers.q,
        buffers.k,
        buffers.v,
        buffers.raw_queries,
        *relative,
        *buffers.far,
        *buffers.learned,
    )
    return list(zip(tensors, found, strict=True))


def _leaf_gradients(parts: Sequence[Part], leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the leaves that those tensors were computed from."""
    known = [(x, tensor) for x, tensor in parts if x is not None and tensor is not None]
    moved = [(x, tensor.to(x.dtype)) for x, tensor in known if x.requires_grad]
    outputs, gradients = zip(*moved, strict=True)
    found = torch.autograd.grad(outputs, leaves, gradients)
    return [_laid_out(tensor, leaf) for tensor, leaf in zip(found, leaves, strict=True)]


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient with the strides of `torch.empty_like`, which the compiler relies on."""
    place = torch.empty_like(like)
    return gradient if gradient.stride() == place.stride() else place.copy_(gradient)


@contextmanager
def _recorded() -> Iterator[None]:
    """Autograd enabled inside an operator, which runs below it."""
    key = torch._C.DispatchKey.AutogradFunctionality
    with torch._C._SetExcludeDispatchKeyGuard(key, False):
        yield


def _read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
) -> tuple[Problem, Keep | None]:
    """The problem that is encoded, without sinks, and the pairs that dropout keeps."""
    mask, others = decode(numbers, tensors)
    position, raw_queries, keep = others or (None, None, None)
    position, raw_queries = position or NoPosition(), q if raw_queries is None else raw_queries
    shape = AttentionShape(q.shape[0], q.shape[1], q.shape[2], k.shape[2], offset, q.device)
    relative = relative_terms(position, raw_queries, shape, scale)
    known = relative if any(tensor is not None for tensor in relative) else None
    far = clipped_terms(position, mask, shape, k[..., : raw_queries.shape[3]], v)
    if far is not None:  # its keys as wide as k, which may have been widened for the kernel
        behind, ahead = (kernel.widened(keys, k.shape[3]) for keys in far.keys)
        far = replace(far, keys=(behind, ahead))
    return Problem(q, k, v, raw_queries, mask, position, scale, shape, known, far), keep


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
    known: Sequence[Tensor],
    perhaps: Sequence[Tensor | None],
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
    wanted: Sequence[bool],
) -> list[Tensor]:
    del perhaps, numbers, offset, scale
    pairs = zip((*known[:3], *tensors), wanted, strict=True)
    return [torch.empty_like(tensor) for tensor, want in pairs if want]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, numbers, tensors, offset, scale, sinks = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, sinks, *tensors)
    ctx.setting = numbers, offset, scale


def _backward(ctx: Any, grad: Tensor | None, grad_sums: Tensor | None) -> tuple[Any, ...]:
    saved, (numbers, offset, scale) = ctx.saved_tensors, ctx.setting
    known, sinks, tensors = list(saved[:5]), saved[5], list(saved[6:])
    wanted = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[4]]
    found: list[Tensor] = []
    if any(wanted):
        perhaps = [grad, grad_sums, sinks]
        found = operator_backward(known, perhaps, numbers, tensors, offset, scale, wanted)
    gradients = iter(found)
    q, k, v, *others = (next(gradients) if want else None for want in wanted)
    of_sinks = None
    if sinks is not None and ctx.needs_input_grad[7]:
        output, logsumexp = known[3:]
        full = torch.zeros_like(output) if grad is None else grad
        of_sinks = sinks_gradient(sinks, full, output, logsumexp, grad_sums)
    return q, k, v, None, others, None, None, of_sinks


operator.register_autograd(_backward, setup_context=_setup_context)

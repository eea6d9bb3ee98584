"""The engine as operators that `torch.compile` and `torch.export` keep as one node.

Besides q, k and v, the operators take the output of `encoding.encode` for a mask and, if needed, a
position, the unrotated queries, the dropout mask and the soft cap, any of which may be None. The
relative terms of a position are computed inside.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from headwise.call import softmax_dtype
from headwise.engines import kernel
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import sinks_gradient
from headwise.engines.tiled.backward import backward
from headwise.engines.tiled.encoding import decode
from headwise.engines.tiled.forward import SIDE, forward
from headwise.engines.tiled.problem import Problem, clipped_terms, relative_terms
from headwise.positions import NoPosition
from headwise.score_functions import score_function
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
    """Return output (B, H, Lq, Dv) and logsumexp (B, H, Lq) for an encoded mask and position.

    With dropout, the logsumexp is over all keys.
    """
    with torch.autocast(q.device.type, enabled=False):
        return forward(_decoded((q, k, v), sinks, numbers, tensors, offset, scale))


@torch.library.custom_op("headwise::tiled_backward", mutates_args=())
def operator_backward(
    saved: Sequence[Tensor],
    optional: Sequence[Tensor | None],
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
    needs_grad: Sequence[bool],
) -> list[Tensor]:
    """Return the gradients of q, k, v and the tensors, in that order, where needed.

    ``saved`` holds q, k, v, the output and the logsumexp. ``optional`` holds the gradients of
    output and logsumexp, None for 0, and the sinks.
    """
    *qkv, output, logsumexp = saved
    grad, grad_sums, sinks = optional
    full = torch.zeros_like(output) if grad is None else grad
    given = BackwardInputs(full, output, logsumexp, grad_sums)
    autograd = torch._C.DispatchKey.AutogradFunctionality  # disabled inside an operator
    enabled = torch._C._SetExcludeDispatchKeyGuard(autograd, False)
    with enabled, torch.autocast(output.device.type, enabled=False):
        inputs = zip((*qkv, *tensors), needs_grad, strict=True)
        leaves = [tensor.detach().requires_grad_(need) for tensor, need in inputs]
        with torch.enable_grad():
            problem = _decoded(leaves[:3], sinks, numbers, leaves[3:], offset, scale)
        learned = [t for t in leaves[3:] if t.requires_grad and t is not problem.raw_queries]
        with torch.no_grad():
            buffers = backward(problem, given, learned)
            pairs = zip((*problem.tensors, *learned), buffers.all, strict=True)
            moved = [
                (tensor, gradient.to(tensor.dtype))
                for tensor, gradient in pairs
                if tensor is not None and gradient is not None and tensor.requires_grad
            ]
        needed = [leaf for leaf in leaves if leaf.requires_grad]
        outputs, gradients = zip(*moved, strict=True)
        results = torch.autograd.grad(outputs, needed, gradients)
        return [_laid_out(x, leaf) for x, leaf in zip(results, needed, strict=True)]


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """Return the gradient with the strides of `torch.empty_like`, which the compiler expects."""
    place = torch.empty_like(like)
    return gradient if gradient.stride() == place.stride() else place.copy_(gradient)


def _decoded(
    qkv: Sequence[Tensor],
    sinks: Tensor | None,
    numbers: Sequence[int],
    tensors: Sequence[Tensor],
    offset: int,
    scale: float,
) -> Problem:
    """Build the problem from q, k, v and the encoded mask, position, queries and dropout mask."""
    (q, k, v), (mask, others) = qkv, decode(numbers, tensors)
    position, raw_queries, keep, softcap = (*others, *(None,) * 4)[:4]
    position, raw_queries = position or NoPosition(), q if raw_queries is None else raw_queries
    shape = AttentionShape(q.shape[0], q.shape[1], q.shape[2], k.shape[2], offset, q.device)
    relative = relative_terms(position, raw_queries, shape, scale)
    function, far = score_function(softcap, None, offset), None
    if function is None:
        far = clipped_terms(position, mask, shape, k[..., : raw_queries.shape[3]], v)
    if far is not None:  # pad its keys to the width of k, which may be padded for the kernel
        behind, ahead = (kernel.widened(keys, k.shape[3]) for keys in far.keys)
        far = replace(far, keys=(behind, ahead))
    fixed = mask, position, scale, shape
    return Problem(q, k, v, raw_queries, *fixed, relative, far, sinks, keep, function)


@operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    del k, others
    rows = q.shape[:3]
    return v.new_empty(*rows, v.shape[3]), q.new_empty(rows, dtype=softmax_dtype(q.dtype))


@operator_backward.register_fake
def _(*inputs: Any) -> list[Tensor]:
    saved, _, _, tensors, _, _, needs_grad = inputs
    pairs = zip((*saved[:3], *tensors), needs_grad, strict=True)
    return [torch.empty_like(tensor) for tensor, need in pairs if need]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, numbers, tensors, offset, scale, sinks = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, sinks, *tensors)
    ctx.setting = numbers, offset, scale


def _backward(ctx: Any, grad: Tensor | None, grad_sums: Tensor | None) -> tuple[Any, ...]:
    numbers, offset, scale = ctx.setting
    q, k, v, output, logsumexp, sinks, *tensors = ctx.saved_tensors  # a checkpoint allows one read
    needs_grad = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[4]]
    gradients: Iterator[Tensor] = iter(())
    if any(needs_grad):
        optional = [grad, grad_sums, sinks]
        setting = numbers, tensors, offset, scale, needs_grad
        saved = [q, k, v, output, logsumexp]
        gradients = iter(operator_backward(saved, optional, *setting))
    grads = [next(gradients) if need else None for need in needs_grad]
    of_sinks = None
    if ctx.needs_input_grad[7]:
        full = torch.zeros_like(output) if grad is None else grad
        of_sinks = sinks_gradient(sinks, full, output, logsumexp, grad_sums)
    return *grads[:3], None, grads[3:], None, None, of_sinks


operator.register_autograd(_backward, setup_context=_setup_context)


def _pairs(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> int:
    """Return the pairs of one head that the parts hold, if the mask's values are known."""
    numbers, tensors, offset, scale, *_ = settings
    problem = _decoded((q, k, v), None, numbers, tensors, offset, scale)
    return sum(part.pairs for part in problem.parts(SIDE))


@register_flop_formula(torch.ops.headwise.tiled, get_raw=True)
def _forward_flops(*given: Any, out_val: object = None) -> int:  # noqa: ARG001
    q, _, v = given[:3]
    return int(2 * q.shape[0] * q.shape[1] * _pairs(*given) * (q.shape[3] + v.shape[3]))


@register_flop_formula(torch.ops.headwise.tiled_backward, get_raw=True)
def _backward_flops(
    saved: Any,
    optional: object,  # noqa: ARG001
    *settings: Any,
    out_val: object = None,  # noqa: ARG001
) -> int:
    q, k, v = saved[:3]
    width = 3 * q.shape[3] + 2 * v.shape[3]
    return int(2 * q.shape[0] * q.shape[1] * _pairs(q, k, v, *settings) * width)

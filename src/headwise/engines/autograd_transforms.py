"""Higher derivatives and torch.func transforms, for engines with a backward of their own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from headwise.call import Call
from headwise.lang import Text
from headwise.positions import Position

DifferentiableFunction = Callable[[list[Tensor | None]], Sequence[Tensor]]
"""An engine's function, written with operations that can be differentiated to any order."""


def transformed(call: Call) -> bool:
    """Whether a call runs under torch.func or forward-mode differentiation, unless compiling."""
    if torch.compiler.is_compiling():
        return False
    return under_functorch() or _has_tangents(call)


def under_functorch() -> bool:
    """Whether a torch.func transform is active."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def no_transform_rule() -> Text:
    """The reason of an engine against a call that is `transformed`."""
    return Text("it has no rule for torch.func transforms and forward-mode derivatives")


def _has_tangents(call: Call) -> bool:
    """Whether an input is a dual tensor; there is none outside `forward_ad.dual_level`."""
    if getattr(forward_ad, "_current_level", 0) < 0:
        return False
    unpack: Callable[[Tensor], tuple[Tensor, Tensor | None]] = forward_ad.unpack_dual
    return any(unpack(tensor)[1] is not None for tensor in _inputs(call))


def batched_mask(call: Call) -> bool:
    """Whether `torch.func.vmap` maps over what the mask holds, so that nothing can depend on it."""
    if torch.compiler.is_compiling() or not under_functorch():
        return False
    return any(torch._C._functorch.is_batchedtensor(tensor) for tensor in call.mask.tensors())


def _inputs(call: Call) -> Iterator[Tensor]:
    """Every tensor that the output depends on."""
    yield from (call.q, call.k, call.v, *call.position.parameters(), *call.mask.tensors())
    if call.sinks is not None:
        yield call.sinks


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which operations on the tensor's device keep the dtype of their inputs."""
    kind = tensor.device.type
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def with_frozen_tensors(position: Position) -> Position:
    """A copy of a position that holds the present parameters and buffers.

    A backward that evaluates the position again must see the tensors of the forward, although
    `torch.func.functional_call` has put the original ones back by then.
    """
    frozen: Position = _frozen(position)
    return frozen


def _frozen(module: Any) -> Any:
    if not (module._parameters or module._buffers or module._modules):
        return module
    copy = module.__new__(type(module))
    copy.__dict__ = dict(module.__dict__)
    for name in ("_parameters", "_buffers"):
        copy.__dict__[name] = dict(copy.__dict__[name])
    copy.__dict__["_modules"] = {
        name: child if child is None else _frozen(child) for name, child in module._modules.items()
    }
    return copy


def differentiable_gradients(
    function: DifferentiableFunction,
    inputs: Sequence[Tensor | None],
    needs_grad: Sequence[bool],
    grad_outputs: Sequence[Tensor | None],
    captured: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """The gradients of a function, differentiable again where gradients are enabled.

    Args:
        function: gives the outputs from the inputs.
        inputs: of the function.
        needs_grad: which of the inputs and of ``captured`` need a gradient; the others get None.
        grad_outputs: the gradients of the outputs, None for 0.
        captured: leaves that the function reads without taking them as inputs.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        pairs = zip(inputs, needs_grad, strict=False)
        leaves = [x if x is None else _leaf(x, need, create_graph) for x, need in pairs]
        outputs = zip(function(leaves), grad_outputs, strict=True)
        roots = [(x, grad) for x, grad in outputs if grad is not None and x.requires_grad]
    every = (*leaves, *captured)
    sources = [x for x, need in zip(every, needs_grad, strict=True) if need and x is not None]
    if not roots or not sources:
        return [None for _ in every]
    tensors, grads = zip(*roots, strict=True)
    gradients = iter(
        torch.autograd.grad(tensors, sources, grads, create_graph=create_graph, allow_unused=True)
    )
    return [next(gradients) if need else None for need in needs_grad]


def _leaf(tensor: Tensor, needs_grad: bool, create_graph: bool) -> Tensor:
    """The tensor itself in the graph, or a leaf of its own where no graph is kept."""
    if create_graph:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_(needs_grad)

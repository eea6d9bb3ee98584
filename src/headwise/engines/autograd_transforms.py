"""Higher derivatives and torch.func transforms for engines that define their own backward pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from headwise.call import Call
from headwise.engines.kernel import BackwardInputs
from headwise.engines.statistics import sinks_gradient
from headwise.lang import Text

Tensors = Sequence[Any]  # tensors or None

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def transformed(call: Call) -> bool:
    """Return whether a call runs under torch.func or forward-mode autograd, if not compiling."""
    if torch.compiler.is_compiling():
        return False
    return under_functorch() or _has_tangents(call)


def under_functorch() -> bool:
    """Return whether a torch.func transform is active."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def no_transform_rule(call: Call, *, compiling: bool = False) -> Iterator[Text]:
    """Yield a reason if a torch.func transform is active, while ``compiling`` too."""
    if transformed(call) or (compiling and under_functorch()):
        yield Text("it does not support torch.func transforms and forward-mode autograd")


def needs_grad(call: Call) -> bool:
    """Return whether any result may need a gradient."""
    sinks = () if call.sinks is None else (call.sinks,)
    tensors = (call.q, call.k, call.v, *sinks, *call.position.parameters())
    learned = any(tensor.requires_grad for tensor in tensors)
    if not torch.is_grad_enabled():
        return False
    return learned or call.bias_requires_grad() or call.score_mod_requires_grad()


def _has_tangents(call: Call) -> bool:
    """Return whether an input is a dual tensor, which exists only in `forward_ad.dual_level`."""
    if getattr(forward_ad, "_current_level", 0) < 0:
        return False
    unpack: Callable[[Tensor], tuple[Tensor, Tensor | None]] = forward_ad.unpack_dual
    return any(unpack(tensor)[1] is not None for tensor in _inputs(call))


def batched_mask(call: Call) -> bool:
    """Return whether `torch.func.vmap` maps over a mask tensor, so that its values are unknown."""
    if torch.compiler.is_compiling() or not under_functorch():
        return False
    return any(torch._C._functorch.is_batchedtensor(tensor) for tensor in call.mask.tensors())


def _inputs(call: Call) -> Iterator[Tensor]:
    yield from (call.q, call.k, call.v, *call.position.parameters(), *call.mask.tensors())
    if call.sinks is not None:
        yield call.sinks


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which operations on this device keep the dtype of their inputs."""
    kind = tensor.device.type
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def with_frozen_tensors(module: AnyModule) -> AnyModule:
    """Return a copy of a module that keeps its current parameters and buffers.

    A backward pass that evaluates a position again needs the tensors of the forward pass, but
    `torch.func.functional_call` has restored the original tensors by then.
    """
    if not (module._parameters or module._buffers or module._modules):
        return module
    copy = module.__new__(type(module))
    copy.__dict__ = dict(module.__dict__)
    for name in ("_parameters", "_buffers"):
        copy.__dict__[name] = dict(copy.__dict__[name])
    copy.__dict__["_modules"] = {
        name: child if child is None else with_frozen_tensors(child)
        for name, child in module._modules.items()
    }
    return copy


class AttentionFunction(ABC):
    """An attention with its own backward pass, as a function of tensors.

    The tensors are q (B, H, Lq, D), k, v, the sinks or None, and further tensors or None. The
    results are the output (B, H, Lq, Dv) and the logsumexp (B, H, Lq). Autocast is disabled inside.
    """

    @abstractmethod
    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Return the output and the logsumexp."""

    @abstractmethod
    def plain(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Return the same results by operations that are differentiable to any order."""

    @abstractmethod
    def backward(self, tensors: Tensors, given: BackwardInputs, needed: Sequence[bool]) -> Tensors:
        """Return the gradients of all tensors but the sinks, in any dtype, where ``needed``.

        The logsumexp in ``given`` is -inf where a query is fully masked and has no sink.
        """

    def has_backward(self, q: Tensor, v: Tensor) -> bool:
        """Return whether `backward` is exact for these tensors; if not, `plain` is used."""
        return True

    def __call__(self, tensors: Tensors, captured: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return the output and the logsumexp, differentiable to any order.

        The function also reads the ``captured`` tensors, which get gradients too.
        """
        apply: Callable[..., tuple[Tensor, Tensor]] = _OwnBackward.apply
        return apply(self, len(tensors), *tensors, *captured)


class _OwnBackward(torch.autograd.Function):
    """Autograd function that runs an `AttentionFunction` on its first ``count`` tensors."""

    @staticmethod
    def forward(
        ctx: Any, function: AttentionFunction, count: int, q: Tensor, *others: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(q):
            results = function.forward((q, *others))
        ctx.function, ctx.count = function, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, *others, *results)
        return results

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_sums: Tensor | None) -> tuple[Any, ...]:
        *tensors, output, sums = ctx.saved_tensors
        q, _, v, sinks, *_ = tensors
        function, needs_grad = ctx.function, ctx.needs_input_grad[2:]
        with without_autocast(output):
            if torch.is_grad_enabled() or not function.has_backward(q, v):
                return (None, None, *_through_plain(ctx, tensors, (grad, grad_sums)))
            grad = torch.zeros_like(output) if grad is None else grad
            given = BackwardInputs(grad, output, sums, grad_sums)
            gradients = list(function.backward(tensors, given, needs_grad))
            gradients.insert(3, sinks_gradient(sinks, grad, output, sums, grad_sums))
        pairs = zip(gradients, tensors, strict=True)
        return (None, None, *(None if x is None else x.to(tensor.dtype) for x, tensor in pairs))


def _through_plain(ctx: Any, tensors: Tensors, grad_outputs: Tensors) -> Tensors:
    """Return the gradients through `plain`, differentiable again if gradients are enabled."""
    create_graph, needs_grad = torch.is_grad_enabled(), ctx.needs_input_grad[2:]
    inputs, captured = list(tensors[: ctx.count]), tensors[ctx.count :]
    with torch.enable_grad():
        for i, x in enumerate(inputs):
            if x is not None:
                leaf = x.view_as(x) if create_graph else x.detach().requires_grad_(needs_grad[i])
                inputs[i] = leaf
        outputs = zip(ctx.function.plain(inputs), grad_outputs, strict=True)
        roots = [(x, grad) for x, grad in outputs if grad is not None and x.requires_grad]
    pairs = zip((*inputs, *captured), needs_grad, strict=True)
    sources = [x for x, need in pairs if need and x is not None]
    if not roots or not sources:
        return [None for _ in needs_grad]
    tensors, grads = zip(*roots, strict=True)
    gradients = iter(
        torch.autograd.grad(tensors, sources, grads, create_graph=create_graph, allow_unused=True)
    )
    return [next(gradients) if need else None for need in needs_grad]

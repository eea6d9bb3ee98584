"""Higher derivatives and torch.func transforms, for engines with a backward of their own."""

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

Tensors = Sequence[Any]  # tensors, of which some may be None

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def transformed(call: Call) -> bool:
    """Whether a call runs under torch.func or forward-mode differentiation, unless compiling."""
    if torch.compiler.is_compiling():
        return False
    return under_functorch() or _has_tangents(call)


def under_functorch() -> bool:
    """Whether a torch.func transform is active."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def no_transform_rule(call: Call, *, compiling: bool = False) -> Iterator[Text]:
    """The reason against a call under a transform, while ``compiling`` too, of such an engine."""
    if transformed(call) or (compiling and under_functorch()):
        yield Text("it has no rule for torch.func transforms and forward-mode derivatives")


def needs_grad(call: Call) -> bool:
    """Whether a result may need a gradient."""
    sinks = () if call.sinks is None else (call.sinks,)
    tensors = (call.q, call.k, call.v, *sinks, *call.position.parameters())
    learned = any(tensor.requires_grad for tensor in tensors)
    if not torch.is_grad_enabled():
        return False
    return learned or call.bias_requires_grad() or call.score_mod_requires_grad()


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
    yield from (call.q, call.k, call.v, *call.position.parameters(), *call.mask.tensors())
    if call.sinks is not None:
        yield call.sinks


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which operations on the tensor's device keep the dtype of their inputs."""
    kind = tensor.device.type
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def with_frozen_tensors(module: AnyModule) -> AnyModule:
    """A copy of a module, such as a position, that holds the present parameters and buffers.

    A backward that evaluates a position again must see the tensors of the forward, although
    `torch.func.functional_call` has put the original ones back by then.
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
    """An attention with a backward of its own, as a function of tensors.

    The tensors are q (B, H, Lq, D), k, v, the sinks or None, and others or None. The results are
    the output (B, H, Lq, Dv) and the logsumexp (B, H, Lq). Autocast is disabled inside.
    """

    @abstractmethod
    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """The results."""

    @abstractmethod
    def plain(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """The results by operations that can be differentiated to any order."""

    @abstractmethod
    def backward(self, tensors: Tensors, given: BackwardInputs, needed: Sequence[bool]) -> Tensors:
        """The gradients of all tensors but the sinks, in any dtype, where ``needed``.

        The logsumexp that is given is -inf where fully masked without a sink.
        """

    def has_backward(self, q: Tensor, v: Tensor) -> bool:
        """Whether `backward` is exact for these tensors; otherwise `plain` is differentiated."""
        return True

    def __call__(self, tensors: Tensors, captured: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """The results, differentiable to any order.

        The function reads the captured tensors by itself; they need a gradient too.
        """
        apply: Callable[..., tuple[Tensor, Tensor]] = _OwnBackward.apply
        return apply(self, len(tensors), *tensors, *captured)


class _OwnBackward(torch.autograd.Function):
    """An `AttentionFunction` of its first ``count`` tensors, for autograd."""

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
    """The gradients through `plain`, differentiable again where gradients are enabled."""
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

"""Somebody's attention, made callable: one job in, one outcome out."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol, get_args

from torch import Tensor, nn
from torch.func import functional_call

from headwise.errors import BadValue
from headwise.verify import steps
from headwise.verify.adapter import not_recognised
from headwise.verify.binding import Binding, Layout, bind
from headwise.verify.calling import Form, Signature, forms_for, parameters_of, read_signature
from headwise.verify.jobs import Job, Weights, self_job
from headwise.verify.making import HEADS, make, takes_dropout
from headwise.verify.pipeline import at_job
from headwise.verify.reach import attends, reached, surrounded
from headwise.verify.running import Tell, guarded, silent
from headwise.verify.subject import Outcome

Masks = Mapping[str, Tensor]
"""The mask arguments of one call, by name."""


class Runner(Protocol):
    """A target before anything is known of its conventions."""

    @property
    def signature(self) -> Signature:
        """How it takes its tensors."""
        ...

    @property
    def variants(self) -> tuple["Runner", ...]:
        """Other readings of the same target, the likely one first: itself."""
        ...

    @property
    def lacks(self) -> frozenset[str]:
        """The weights it does not have."""
        ...

    @property
    def groups(self) -> int | None:
        """Its key/value heads, or None for as many as heads."""
        ...

    @property
    def forms(self) -> tuple[Form, ...]:
        """Every form its mask could have, the likely ones first."""
        ...

    @property
    def drops(self) -> bool:
        """Whether dropout can be asked for."""
        ...

    @property
    def tell(self) -> Tell:
        """Told of every call before it is made."""
        ...

    def run(self, job: Job, masks: Masks) -> Outcome:
        """One call with the job's weights."""
        ...


@dataclass(frozen=True, eq=False)
class ModuleRunner:
    """A class of modules, or one instance, whose parameters were recognised.

    Attributes:
        make: gives the module for a dropout probability.
        signature: of its forward.
        binding: where its projections stand.
        drops: whether it can be made with dropout.
        sequence_first: whether it takes (L, B, E).
        turnable: whether (L, B, E) is worth a try.
        tell: told of every call before it is made.
        given: other arguments of every call.
        reached: where the attention stands in the module that was asked for; empty if it is it.
    """

    make: Callable[[float], nn.Module]
    signature: Signature
    binding: Binding
    drops: bool
    sequence_first: bool = False
    turnable: bool = False
    tell: Tell = silent
    given: Mapping[str, object] = field(default_factory=dict)
    reached: str = ""

    @property
    def lacks(self) -> frozenset[str]:
        return self.binding.lacks

    @property
    def groups(self) -> int | None:
        return self.binding.groups

    @property
    def forms(self) -> tuple[Form, ...]:
        return forms_for(self.signature)

    @property
    def variants(self) -> tuple[Runner, ...]:
        bindings = [self.binding, *([self.binding.straight()] if self.binding.raw else [])]
        if self.binding.packed:
            bindings = [replace(b, layout=how) for how in get_args(Layout) for b in bindings]
        orders = [False, True] if self.turnable else [False]
        return tuple(
            replace(self, binding=binding, sequence_first=order)
            for order in orders
            for binding in bindings
        )

    def run(self, job: Job, masks: Masks) -> Outcome:
        module = self.make(job.dropout).train(job.training)
        inputs = _copied(job)
        if self.sequence_first:
            turned = inputs[0].transpose(0, 1)
            inputs = (turned,) * 3 if job.alike else tuple(x.transpose(0, 1) for x in inputs)  # type: ignore[assignment]
        head_dim = job.weights.q.shape[0] // job.heads
        arguments = self.signature.arguments(*inputs) | dict(masks)
        arguments |= self.signature.unturned(inputs[0], head_dim) | dict(self.given)
        before = _versions(arguments)
        laid = self.binding.lay(job.weights, job.heads)
        result = guarded(lambda: functional_call(module, laid, (), arguments), arguments, self.tell)
        wrote = _written(arguments, before)
        return replace(outcome(result, job, self.sequence_first), wrote=wrote)


@dataclass(frozen=True, eq=False)
class FunctionRunner:
    """A function of q, k, v (B, H, L, D); the projections around it are the right ones."""

    function: Callable[..., object]
    signature: Signature
    lacks: frozenset[str] = frozenset()
    groups: int | None = None
    drops: bool = False
    tell: Tell = silent
    given: Mapping[str, object] = field(default_factory=dict)

    @property
    def forms(self) -> tuple[Form, ...]:
        return forms_for(self.signature)

    @property
    def variants(self) -> tuple[Runner, ...]:
        return (self,)

    def run(self, job: Job, masks: Masks) -> Outcome:
        at = at_job(job)
        parts = steps.project(at, job.query, job.key, job.value)
        counts = (job.heads, job.groups, job.groups)
        q, k, v = (
            steps.split(at, x, n) for x, n in zip(parts, counts, strict=True)
        )  # (B, H, L, D)
        arguments = self.signature.arguments(q, k, v) | dict(masks) | dict(self.given)
        before = _versions(arguments)
        result = guarded(lambda: self.function(**arguments), arguments, self.tell)
        found, wrote = _tensors(result), _written(arguments, before)
        shape = (*q.shape[:3], v.shape[3])
        heads = next((t for t in found if tuple(t.shape) == shape), None)
        if heads is None:
            raise _no_output(result, found, shape)
        output = steps.output(at, steps.merge(at, heads))
        return Outcome(output, _weights([t for t in found if t is not heads], job), wrote)


@dataclass(frozen=True, eq=False)
class AdapterRunner:
    """A function of x, weights, heads and mask: what the user writes where nothing else helps."""

    function: Callable[..., object]
    signature: Signature = field(
        default=Signature((("x", "x"),), ("mask",), needs_mask=False, extras={})
    )
    lacks: frozenset[str] = frozenset()
    groups: int | None = None
    drops: bool = False
    forms: tuple[Form, ...] = (Form("mask", "b h q k", "may"),)
    tell: Tell = silent

    @property
    def variants(self) -> tuple[Runner, ...]:
        return (self,)

    def run(self, job: Job, masks: Masks) -> Outcome:
        given = {"x": _copied(job)[0], "mask": masks.get("mask")}
        before = _versions(given)
        result = guarded(
            lambda: self.function(given["x"], job.weights, job.heads, given["mask"]),
            given,
            self.tell,
        )
        return replace(outcome(result, job), wrote=_written(given, before))


def runner(target: object, name: str, embed_dim: int, heads: int, tell: Tell = silent) -> Runner:
    """What a loaded target is, by looking at it.

    Args:
        target: a class of modules, a module, or a function.
        name: how messages call it.
        embed_dim: E.
        heads: H.
        tell: told of every call before it is made.

    Raises:
        BadFile: if it is not recognised; the message shows the adapter to write.
        BadValue: if embed_dim is no multiple of heads.
    """
    if heads < 1 or embed_dim < 1 or embed_dim % heads:
        raise BadValue(
            f"embed_dim: expected a multiple of heads, got {embed_dim} with {heads} heads; "
            f"use --embed-dim {max(heads, 1) * 5}",
            f"embed_dim：应为头数的整数倍，收到 {embed_dim} 和 {heads} 个头；"
            f"请用 --embed-dim {max(heads, 1) * 5}",
        )
    weights = self_job(embed_dim, heads).weights
    if isinstance(target, type) and issubclass(target, nn.Module):
        return replace(_of_class(target, name, weights, heads), tell=tell)
    if isinstance(target, nn.Module):
        return replace(_of_instance(target, name, weights, heads), tell=tell)
    if isinstance(target, type) or not callable(target):
        raise not_recognised(
            f"{name} is neither a torch.nn.Module nor a function",
            f"{name} 既不是 torch.nn.Module 也不是函数",
        )
    if [p.name for p in parameters_of(target, name)][1:2] == ["weights"]:
        return AdapterRunner(target, tell=tell)
    signature = read_signature(target, name)
    if len(signature.tensors) != 3:
        raise not_recognised(
            f"the function {name} takes {len(signature.tensors)} tensors, expected q, k, v",
            f"函数 {name} 接受 {len(signature.tensors)} 个张量，应为 q、k、v",
        )
    return FunctionRunner(target, signature, tell=tell)


def _of_class(cls: type[nn.Module], name: str, weights: Weights, heads: int) -> ModuleRunner:
    embed_dim = weights.q.shape[1]

    @cache
    def made(dropout: float) -> nn.Module:
        return make(cls, embed_dim, heads, dropout)

    known = "batch_first" in inspect.signature(cls).parameters
    return _of_module(made, name, weights, heads, drops=takes_dropout(cls), turnable=not known)


def _of_instance(module: nn.Module, name: str, weights: Weights, heads: int) -> ModuleRunner:
    own = next((getattr(module, word) for word in HEADS if hasattr(module, word)), heads)
    if own != heads:
        raise BadValue(
            f"heads: {name} was made with {own} heads, got {heads}; use --heads {own}",
            f"heads：{name} 有 {own} 个头，收到 {heads}；请用 --heads {own}",
        )
    return _of_module(lambda _p: module, name, weights, heads, drops=False, turnable=True)


def _of_module(
    made: Callable[[float], nn.Module],
    name: str,
    weights: Weights,
    heads: int,
    *,
    drops: bool,
    turnable: bool,
) -> ModuleRunner:
    """The module, or the one attention inside of it where it is a layer around one."""
    module, path = made(0.0), ""
    if surrounded(module) or not attends(module, weights, heads):
        path = reached(module, weights, heads)
    module = module.get_submodule(path)
    binding = bind(module, weights, heads)
    where = f"{name}.{path}.forward" if path else f"{name}.forward"
    return ModuleRunner(
        make=lambda p: made(p).get_submodule(path),
        signature=read_signature(module.forward, where),
        binding=binding,
        drops=drops,
        turnable=turnable,
        reached=path,
    )


def _copied(job: Job) -> tuple[Tensor, Tensor, Tensor]:
    """The job's inputs for somebody who may write into them; one tensor stays one tensor."""
    query = job.query.clone()
    key = query if job.key is job.query else job.key.clone()
    value = key if job.value is job.key else job.value.clone()
    return query, key, value


def outcome(result: object, job: Job, sequence_first: bool = False) -> Outcome:
    """Output and weights among whatever was returned."""
    found = _tensors(result)
    shape = tuple(job.query.shape)
    if sequence_first:
        found = [t.transpose(0, 1) if t.dim() == 3 else t for t in found]
    output = next((t for t in found if tuple(t.shape) == shape), None)
    if output is None:
        raise _no_output(result, found, shape)
    return Outcome(output, _weights([t for t in found if t is not output], job))


def _weights(found: list[Tensor], job: Job) -> Tensor | None:
    shape = (job.query.shape[0], job.heads, job.query.shape[1], job.key.shape[1])
    return next((t for t in found if tuple(t.shape) == shape), None)


def _tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return [tensor for each in result for tensor in _tensors(each)]
    return []


def _no_output(result: object, found: list[Tensor], shape: tuple[int, ...]) -> Exception:
    got = ", ".join(str(tuple(t.shape)) for t in found) or _kind(result)
    return ValueError(f"returned {got}, expected an output of shape {shape}, a tensor")


def _kind(result: object) -> str:
    """None, or the type as a person writes it: numpy.ndarray."""
    module, name = type(result).__module__, type(result).__qualname__
    return "None" if result is None else name if module == "builtins" else f"{module}.{name}"


def _versions(arguments: Mapping[str, object]) -> dict[str, int]:
    """How often each tensor was written to."""
    return {name: t._version for name, t in arguments.items() if isinstance(t, Tensor)}


def _written(arguments: Mapping[str, object], before: Mapping[str, int]) -> tuple[str, ...]:
    """The tensors that were written to since."""
    now = _versions(arguments)
    return tuple(name for name in before if now[name] != before[name])

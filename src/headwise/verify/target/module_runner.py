"""A user's module as a runner: its projections are located and replaced by the job's."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.verify.oracle.jobs import Job, Outcome, Weights, copied, self_job
from headwise.verify.target import NotRecognised, not_recognised, one_line
from headwise.verify.target.construct import (
    HEADS,
    bypassed,
    find_attention,
    in_dtype,
    is_attention,
    make,
    norms,
    takes_dropout,
    wrap_known_module,
)
from headwise.verify.target.conventions import CallLog, Masks, Runner, no_log, outcome, watched
from headwise.verify.target.parameter_names import Binding, Layout, bind
from headwise.verify.target.parameter_probe import probe
from headwise.verify.target.signature import Signature, read_signature


@dataclass(frozen=True, eq=False)
class ModuleRunner(Runner):
    """A class of modules, or one instance, whose parameters were recognised.

    Attributes:
        make: returns the module for a dropout probability.
        binding: the parameters that hold its projections.
        sequence_first: whether it takes (L, B, E).
        either_axis_order: whether (L, B, E) has to be tried.
        options: other arguments of every call.
        reached: the path of the attention inside the target; empty if the target is the attention.
        others: other interpretations of its parameters.
        probed: whether its parameters were identified by their effect, not by their names.
        norms: the norms around the attention in the same module, which are bypassed.
        residual: whether its input is added to its output; it is subtracted again.
        cls: the class that `make` constructs; None for an instance.
    """

    make: Callable[[float], nn.Module]
    signature: Signature
    binding: Binding
    drops: bool = False
    sequence_first: bool = False
    either_axis_order: bool = False
    log: CallLog = no_log
    options: Mapping[str, object] = field(default_factory=dict)
    reached: str = ""
    others: tuple[Binding, ...] = ()
    probed: bool = False
    norms: tuple[str, ...] = ()
    residual: bool = False
    cls: type[nn.Module] | None = None

    @property
    def lacks(self) -> frozenset[str]:
        return self.binding.lacks

    @property
    def groups(self) -> int | None:
        return self.binding.groups

    @property
    def variants(self) -> tuple[Runner, ...]:
        read = (self.binding, *self.others)
        guessed = [b for b in read if any(slot.transposed for slot in b.slots)]
        bindings = [*read, *(binding.untransposed() for binding in guessed)]
        if self.binding.packed:
            bindings = [replace(b, layout=how) for how in get_args(Layout) for b in bindings]
        orders = [False, True] if self.either_axis_order else [False]
        added = [True, False] if self.norms else [False]
        return tuple(
            replace(self, binding=binding, sequence_first=order, residual=residual)
            for residual, order, binding in product(added, orders, bindings)
        )

    def run(self, job: Job, masks: Masks) -> Outcome:
        module = in_dtype(self.make(job.dropout), job.query.dtype).train(job.training)
        return self.called(module, self.binding.lay(job.weights, job.heads), job, masks)

    def called(
        self, module: nn.Module, parameters: dict[str, Tensor], job: Job, masks: Masks
    ) -> Outcome:
        """One call of a module with these parameters."""
        inputs = job.inputs(copied)
        if self.sequence_first:
            first = inputs[0].transpose(0, 1)
            inputs = (first,) * 3 if job.alike else tuple(x.transpose(0, 1) for x in inputs)  # type: ignore[assignment]
        angles = self.signature.zero_angles(inputs[0], job.head_dim)
        arguments = self.signature.arguments(*inputs) | dict(masks) | angles | dict(self.options)
        call = partial(functional_call, module, parameters, (), arguments)
        with bypassed(module, self.norms):
            result, wrote = watched(call, arguments, self.log, job.rng_seed)
        own = outcome(result, job, self.sequence_first)
        output = own.output - job.query if self.residual else own.output
        return replace(own, output=output, wrote=wrote)


def of_class(cls: type[nn.Module], name: str, weights: Weights, heads: int) -> ModuleRunner:
    """A runner of a class of modules, constructed for the sizes of the weights."""
    embed_dim = weights.q.shape[1]

    @cache
    def instance(dropout: float) -> nn.Module:
        return sized(make(cls, embed_dim, heads, dropout), name, embed_dim)

    either = "batch_first" not in inspect.signature(cls).parameters
    drops = takes_dropout(cls)
    found = _of_module(instance, name, weights, heads, drops=drops, either_order=either)
    return replace(found, cls=cls)


def sized(module: nn.Module, name: str, embed_dim: int) -> nn.Module:
    """Initialize lazy parameters, such as those of `nn.LazyLinear`, by one call.

    Raises:
        NotRecognised: if the call raises.
    """
    if not any(isinstance(item, UninitializedParameter) for item in module.parameters()):
        return module
    x = torch.zeros(1, 3, embed_dim)
    signature = read_signature(module.forward, f"{name}.forward")
    try:
        with torch.no_grad():
            module(**signature.arguments(x, x, x), **dict.fromkeys(signature.masks))
    except Exception as error:
        message = one_line(error)
        reason = Text(
            "{name} has uninitialized parameters, and its first call raises {error}",
            name=name,
            error=message,
        )
        raise not_recognised(reason) from error
    return module


def of_instance(module: nn.Module, name: str, weights: Weights, heads: int) -> ModuleRunner:
    """A runner of a module instance.

    Raises:
        BadValue: if it has another number of heads.
    """
    own = next((getattr(module, word) for word in HEADS if hasattr(module, word)), heads)
    if own != heads:
        raise BadValue(
            "heads: {name} has {own} heads, got {heads}; use --heads {own}",
            name=name,
            own=own,
            heads=heads,
        )
    sized(module, name, weights.q.shape[1])
    return _of_module(lambda _p: module, name, weights, heads, drops=False, either_order=True)


def _of_module(
    instance: Callable[[float], nn.Module],
    name: str,
    weights: Weights,
    heads: int,
    *,
    drops: bool,
    either_order: bool,
) -> ModuleRunner:
    module, path = instance(0.0), ""
    if norms(module) or not is_attention(module, weights, heads):
        path = find_attention(module, weights, heads)
    module = wrap_known_module(module.get_submodule(path))
    bypass = norms(module)
    blank = ModuleRunner(
        make=lambda p: wrap_known_module(instance(p).get_submodule(path)),
        signature=Signature((), (), needs_mask=False, extras={}),
        binding=Binding({}),
        drops=drops,
        either_axis_order=either_order,
        reached=path,
        norms=bypass,
        residual=bool(bypass),
    )
    where = f"{name}.{path}.forward" if path else f"{name}.forward"
    bindings: tuple[Binding, ...]
    try:
        bindings = (bind(module, weights, heads),)
    except NotRecognised:
        blank = replace(blank, signature=read_signature(module.forward, where), probed=True)
        bindings = _probed(blank, module, weights, heads)
        if not bindings:
            raise
    signature = read_signature(module.forward, where)
    return replace(blank, signature=signature, binding=bindings[0], others=bindings[1:])


def _probed(
    blank: ModuleRunner, module: nn.Module, weights: Weights, heads: int
) -> tuple[Binding, ...]:
    """The bindings of a module whose parameter names are not recognised."""
    job = self_job(weights.q.shape[1], heads)
    neutral: list[Masks] = [] if blank.signature.needs_mask else [{}]
    encoded = ((form.argument, form.encode(job.allowed)) for form in blank.forms)
    neutral += [{argument: mask} for argument, mask in encoded if mask is not None]
    module.eval()
    for masks in neutral:

        def give(parameters: Mapping[str, Tensor], masks: Masks = masks) -> Tensor:
            return blank.called(module, dict(parameters), job, masks).output

        bindings = probe(module, give, weights, heads)
        if bindings:
            return bindings
    return ()

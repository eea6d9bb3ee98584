"""A user's module as a runner: its projections are found, one job gives one outcome."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.verify.oracle.jobs import Job, Outcome, Weights, self_job
from headwise.verify.target import NotRecognised, not_recognised, one_line
from headwise.verify.target.construct import (
    HEADS,
    bypassed,
    find_attention,
    has_outer_norms,
    in_dtype,
    is_attention,
    make,
    norms,
    takes_dropout,
    wrap_known_module,
)
from headwise.verify.target.conventions import (
    CallLog,
    Masks,
    Runner,
    copied,
    guarded,
    no_log,
    outcome,
    versions,
    written,
)
from headwise.verify.target.parameter_names import Binding, Layout, bind
from headwise.verify.target.parameter_probe import probe
from headwise.verify.target.signature import MaskForm, Signature, forms_for, read_signature


@dataclass(frozen=True, eq=False)
class ModuleRunner:
    """A class of modules, or one instance, whose parameters were recognised.

    Attributes:
        make: gives the module for a dropout probability.
        signature: of its forward.
        binding: where its projections stand.
        drops: whether it can be made with dropout.
        sequence_first: whether it takes (L, B, E).
        either_axis_order: whether (L, B, E) is worth a try.
        log: called with a description of every call before it is made.
        given: other arguments of every call.
        reached: where the attention stands in the module that was asked for; empty if it is it.
        others: other readings of its parameters.
        norms: the norms around the attention in the same module, which are set aside.
        residual: whether its input is added to its output, which is taken off again.
        probed: whether its parameters were told apart by what moves, since no name told.
    """

    make: Callable[[float], nn.Module]
    signature: Signature
    binding: Binding
    drops: bool
    differentiable: bool = True
    sequence_first: bool = False
    either_axis_order: bool = False
    log: CallLog = no_log
    given: Mapping[str, object] = field(default_factory=dict)
    reached: str = ""
    others: tuple[Binding, ...] = ()
    probed: bool = False
    norms: tuple[str, ...] = ()
    residual: bool = False

    @property
    def lacks(self) -> frozenset[str]:
        return self.binding.lacks

    @property
    def groups(self) -> int | None:
        return self.binding.groups

    @property
    def forms(self) -> tuple[MaskForm, ...]:
        return forms_for(self.signature)

    @property
    def variants(self) -> tuple[Runner, ...]:
        read = (self.binding, *self.others)
        bindings = [*read, *(item.untransposed() for item in read if item.orientation_guessed)]
        if self.binding.packed:
            bindings = [replace(b, layout=how) for how in get_args(Layout) for b in bindings]
        orders = [False, True] if self.either_axis_order else [False]
        added = [True, False] if self.norms else [False]
        return tuple(
            replace(self, binding=binding, sequence_first=order, residual=residual)
            for residual in added
            for order in orders
            for binding in bindings
        )

    def run(self, job: Job, masks: Masks) -> Outcome:
        module = in_dtype(self.make(job.dropout), job.query.dtype).train(job.training)
        return self.called(module, self.binding.lay(job.weights, job.heads), job, masks)

    def called(
        self, module: nn.Module, laid: Mapping[str, Tensor], job: Job, masks: Masks
    ) -> Outcome:
        """One call of a module with these parameters."""
        inputs = copied(job)
        if self.sequence_first:
            turned = inputs[0].transpose(0, 1)
            inputs = (turned,) * 3 if job.alike else tuple(x.transpose(0, 1) for x in inputs)  # type: ignore[assignment]
        head_dim = job.weights.q.shape[0] // job.heads
        arguments = self.signature.arguments(*inputs) | dict(masks)
        arguments |= self.signature.zero_angles(inputs[0], head_dim) | dict(self.given)
        before = versions(arguments)
        given = dict(laid)
        with bypassed(module, self.norms):
            result = guarded(
                lambda: functional_call(module, given, (), arguments),
                arguments,
                self.log,
                job.rng_seed,
            )
        wrote = written(arguments, before)
        matches = outcome(result, job, self.sequence_first)
        output = matches.output - job.query if self.residual else matches.output
        return replace(matches, output=output, wrote=wrote)


def of_class(cls: type[nn.Module], name: str, weights: Weights, heads: int) -> ModuleRunner:
    """A runner of a class of modules, constructed for the sizes of the weights."""
    embed_dim = weights.q.shape[1]

    @cache
    def made(dropout: float) -> nn.Module:
        return sized(make(cls, embed_dim, heads, dropout), name, embed_dim)

    known = "batch_first" in inspect.signature(cls).parameters
    return _of_module(
        made, name, weights, heads, drops=takes_dropout(cls), either_axis_order=not known
    )


def sized(module: nn.Module, name: str, embed_dim: int) -> nn.Module:
    """Initialize lazy parameters by one call.

    `nn.LazyLinear` is such a layer, as in Dive into Deep Learning.

    Raises:
        NotRecognised: if it raises when it is called with one sequence.
    """
    if not any(isinstance(item, UninitializedParameter) for item in module.parameters()):
        return module
    x = torch.zeros(1, 3, embed_dim)
    signature = read_signature(module.forward, f"{name}.forward")
    try:
        with torch.no_grad():
            module(**signature.arguments(x, x, x), **dict.fromkeys(signature.masks))
    except Exception as error:
        raise not_recognised(
            Text(
                "{name} has uninitialized parameters, and its first call raises {error}",
                name=name,
                error=one_line(error),
            )
        ) from error
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
    return _of_module(lambda _p: module, name, weights, heads, drops=False, either_axis_order=True)


def _of_module(
    made: Callable[[float], nn.Module],
    name: str,
    weights: Weights,
    heads: int,
    *,
    drops: bool,
    either_axis_order: bool,
) -> ModuleRunner:
    """A runner of the module, or of the attention inside it."""
    module, path = made(0.0), ""
    if has_outer_norms(module) or not is_attention(module, weights, heads):
        path = find_attention(module, weights, heads)
    module = wrap_known_module(module.get_submodule(path))
    around = norms(module) if has_outer_norms(module) else ()
    where = f"{name}.{path}.forward" if path else f"{name}.forward"
    blank = ModuleRunner(
        make=lambda p: wrap_known_module(made(p).get_submodule(path)),
        signature=Signature((), (), needs_mask=False, extras={}),
        binding=Binding({}),
        drops=drops,
        either_axis_order=either_axis_order,
        reached=path,
        norms=around,
        residual=bool(around),
    )
    readings: tuple[Binding, ...]
    try:
        readings = (bind(module, weights, heads),)
    except NotRecognised:
        blank = replace(blank, signature=read_signature(module.forward, where), probed=True)
        readings = _probed(blank, module, weights, heads)
        if not readings:
            raise
    signature = read_signature(module.forward, where)
    return replace(blank, signature=signature, binding=readings[0], others=readings[1:])


def _probed(
    blank: ModuleRunner, module: nn.Module, weights: Weights, heads: int
) -> tuple[Binding, ...]:
    """The bindings of a module whose parameter names are not recognised."""
    job = self_job(weights.q.shape[1], heads)
    everything = job.mask.dense(job.shape).expand(job.shape.batch, heads, -1, -1)
    neutral: list[Masks] = [{}] if not blank.signature.needs_mask else []
    for form in blank.forms:
        encoded = form.encode(everything)
        neutral += [] if encoded is None else [{form.argument: encoded}]
    module.eval()
    for masks in neutral:

        def give(parameters: Mapping[str, Tensor], masks: Masks = masks) -> Tensor:
            return blank.called(module, parameters, job, masks).output

        readings = probe(module, give, weights, heads)
        if readings:
            return readings
    return ()

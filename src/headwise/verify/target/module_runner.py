"""A user's module as a runner: its projections are located and replaced by the job's."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from headwise.lang import Text
from headwise.verify.oracle.jobs import Job, Outcome, Weights, copied, self_job
from headwise.verify.target import NotRecognised, not_recognised, one_line
from headwise.verify.target.calls.angles import AngleForm, angle_forms
from headwise.verify.target.calls.guarded_call import (
    Axes,
    CallLog,
    arranged,
    no_log,
    outcome,
    watched,
)
from headwise.verify.target.calls.signature import Signature, read_signature, signatures
from headwise.verify.target.construction.construct import Construction
from headwise.verify.target.conventions import Masks, Runner
from headwise.verify.target.parameters.locate import (
    bypassed,
    find_attention,
    in_dtype,
    is_attention,
    norms,
    wrap_known_module,
)
from headwise.verify.target.parameters.parameter_names import Binding, Layout, bindings
from headwise.verify.target.parameters.parameter_probe import probe
from headwise.verify.target.stated import NOTHING, Stated

EMPTY = Signature((), (), needs_mask=False, extras={})


@dataclass(frozen=True, eq=False)
class ModuleRunner(Runner):
    """A class of modules, or one instance, whose parameters were recognised.

    Attributes:
        make: returns the module for a dropout probability.
        binding: the parameters that hold its projections.
        axes: the order of its inputs' axes.
        orders: the orders that have to be tried.
        options: other arguments of every call.
        reached: the path of the attention inside the target; empty if the target is the attention.
        others: other interpretations of its parameters.
        roles: other interpretations of its arguments.
        probed: whether its parameters were identified by their effect, not by their names.
        norms: the norms around the attention in the same module, which are bypassed.
        residual: whether its input is added to its output; it is subtracted again.
        angles: the layout of the cosines and sines that it takes, or None.
        construction: how it is constructed; None for an instance.
    """

    make: Callable[[float], nn.Module]
    signature: Signature
    binding: Binding
    drops: bool = False
    axes: Axes = "b l e"
    orders: tuple[Axes, ...] = ("b l e",)
    log: CallLog = no_log
    options: Mapping[str, object] = field(default_factory=dict)
    reached: str = ""
    others: tuple[Binding, ...] = ()
    roles: tuple[Signature, ...] = ()
    probed: bool = False
    norms: tuple[str, ...] = ()
    residual: bool = False
    angles: AngleForm | None = None
    construction: Construction | None = None

    @property
    def call(self) -> str:
        """The constructor call, as a person would write it; empty for an instance."""
        return "" if self.construction is None else self.construction.shown

    @property
    def lacks(self) -> frozenset[str]:
        return self.binding.lacks

    @property
    def groups(self) -> int | None:
        return self.binding.groups

    @property
    def sequence_first(self) -> bool:
        """Whether it takes (L, B, E)."""
        return self.axes == "l b e"

    @property
    def variants(self) -> tuple[Runner, ...]:
        read = (self.binding, *self.others)
        guessed = [b for b in read if any(slot.transposed for slot in b.slots)]
        tried = [*read, *(binding.untransposed() for binding in guessed)]
        if self.binding.packed:
            tried = [replace(b, layout=how) for how in get_args(Layout) for b in tried]
        tried += [replace(b, interleaved=True) for b in read]
        added = [True, False] if self.norms else [False]
        roles = (self.signature, *self.roles)
        return tuple(
            replace(
                self,
                binding=binding,
                axes=axes,
                residual=residual,
                signature=signature,
                angles=angles,
            )
            for residual, axes, signature, binding in product(added, self.orders, roles, tried)
            for angles in angle_forms(signature.angles)
        )

    def run(self, job: Job, masks: Masks) -> Outcome:
        module = in_dtype(self.make(job.dropout), job.query.dtype).train(job.training)
        return self.called(module, self.binding.lay(job.weights, job.heads), job, masks)

    def called(
        self, module: nn.Module, parameters: dict[str, Tensor], job: Job, masks: Masks
    ) -> Outcome:
        """One call of a module with these parameters."""
        if self.axes == "l e":
            return self._sample_by_sample(module, parameters, job, masks)
        inputs = job.inputs(copied)
        if self.axes != "b l e":
            first = arranged(inputs[0], self.axes)
            rest = (
                (first, first) if job.alike else tuple(arranged(x, self.axes) for x in inputs[1:])
            )
            inputs = (first, *rest)  # type: ignore[assignment]
        angles = self.turned(job)
        arguments = self.signature.arguments(*inputs) | dict(masks) | angles | dict(self.options)
        call = partial(functional_call, module, parameters, (), arguments)
        with bypassed(module, self.norms):
            result, wrote = watched(call, arguments, self.log, job.rng_seed)
        own = outcome(result, job, self.axes)
        output = own.output - job.query if self.residual else own.output
        return replace(own, output=output, wrote=wrote)

    def turned(self, job: Job) -> dict[str, object]:
        """The arguments that take angles."""
        return {} if self.angles is None else self.angles.arguments(self.signature.angles, job)

    def continued(self, job: Job) -> Outcome | None:
        """The outcome of the last queries, with the keys before them in a cache of the target.

        None where it takes no cache and returns none, or takes masks and angles as well.
        """
        caches = [name for name in self.signature.left if CACHE.search(name)]
        if len(caches) != 1 or self.axes != "b l e" or self.signature.angles:
            return None
        module = in_dtype(self.make(0.0), job.query.dtype).eval()
        parameters = self.binding.lay(job.weights, job.heads)
        before = job.key[:, : job.key.shape[1] - job.query.shape[1]]
        arguments = self.signature.arguments(before, before, before)
        first = functional_call(module, parameters, (), arguments)
        for cache in _parts(first)[1:]:
            rest = self.signature.arguments(job.query, job.query, job.query)
            second = functional_call(module, parameters, (), {**rest, caches[0]: cache})
            return outcome(second, job)
        return None

    def _sample_by_sample(
        self, module: nn.Module, parameters: dict[str, Tensor], job: Job, masks: Masks
    ) -> Outcome:
        """The outcome of a module that takes one sample (L, E), by one call for each sample."""
        outcomes = []
        for sample in range(job.query.shape[0]):
            inputs = [x[sample] for x in job.inputs(copied)]
            inputs = [inputs[0]] * 3 if job.alike else inputs
            own = {n: m[sample] if m.shape[0] == len(job.query) else m for n, m in masks.items()}
            angles = self.turned(job)
            arguments = self.signature.arguments(*inputs) | own | angles | dict(self.options)
            call = partial(functional_call, module, parameters, (), arguments)
            result, wrote = watched(call, arguments, self.log, job.rng_seed)
            one = replace(job, query=job.query[sample : sample + 1])
            outcomes.append(replace(outcome(_batched(result), one), wrote=wrote, weights=None))
        output = torch.cat([item.output for item in outcomes])
        return replace(outcomes[0], output=output)


CACHE = re.compile(r"(?i)cache|past")
"""Arguments that take the keys and values of tokens before."""


def _parts(result: object) -> list[object]:
    """What a call returned, without what is None."""
    parts = list(result.values()) if isinstance(result, Mapping) else result
    return [x for x in parts if x is not None] if isinstance(parts, tuple | list) else [parts]


def _batched(result: object) -> object:
    """What a call for one sample returned, with an axis for the batch."""
    if isinstance(result, Tensor):
        return result[None]
    return tuple(map(_batched, result)) if isinstance(result, tuple | list) else result


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
            module(**signature.arguments(x, x, x))
    except Exception as error:
        message = one_line(error)
        reason = Text(
            "{name} has uninitialized parameters, and its first call raises {error}",
            name=name,
            error=message,
        )
        raise not_recognised(reason) from error
    return module


def of_module(
    instance: Callable[[float], nn.Module],
    name: str,
    size: tuple[int, int],
    stated: Stated = NOTHING,
    *,
    batch_first: bool = False,
) -> ModuleRunner:
    """A runner of the modules that `instance` returns for a dropout, for E and H.

    Raises:
        NotRecognised: if its projections or its arguments are not recognised.
    """
    weights, heads = self_job(*size).weights, size[1]
    module, path = instance(0.0), ""
    if norms(module) or not is_attention(module, weights, heads):
        path = find_attention(module, weights, heads)
    module = wrap_known_module(module.get_submodule(path))
    bypass = norms(module)
    where = f"{name}.{path}.forward" if path else f"{name}.forward"
    blank = ModuleRunner(
        make=lambda p: wrap_known_module(instance(p).get_submodule(path)),
        signature=EMPTY,
        binding=Binding({}),
        orders=_orders(module, stated, batch_first),
        reached=path,
        norms=bypass,
        residual=bool(bypass),
    )
    found: tuple[Binding, ...]
    try:
        found = bindings(module, weights, heads)
    except NotRecognised:
        roles = signatures(module.forward, where)
        blank = replace(blank, signature=roles[0], roles=roles[1:], probed=True)
        found = _probed(blank, module, weights, heads)
        if not found:
            raise
    roles = signatures(module.forward, where)
    return replace(blank, signature=roles[0], roles=roles[1:], binding=found[0], others=found[1:])


def blank_runner(
    instance: Callable[[float], nn.Module], name: str, log: CallLog, drops: bool = False
) -> ModuleRunner:
    """A runner of modules whose parameters stay as they are."""
    module = instance(0.0)
    roles = signatures(module.forward, f"{name}.forward")
    return ModuleRunner(
        make=instance,
        signature=roles[0],
        roles=roles[1:],
        binding=Binding({}),
        drops=drops,
        orders=_orders(module, NOTHING, batch_first=False),
        log=log,
    )


def _orders(module: nn.Module, stated: Stated, batch_first: bool) -> tuple[Axes, ...]:
    """The orders of axes to try: the stated one, or every one, the likely ones first."""
    if stated.layout is not None:
        return ("b l e",) if stated.layout == "batch-first" else ("l b e",)
    if batch_first:
        return ("b l e",)
    if any(isinstance(inner, nn.Conv1d) for inner in module.modules()):
        return ("b e l", "b l e", "l b e", "l e")
    return ("b l e", "l b e", "l e", "b e l")


def _neutral(reading: ModuleRunner, module: nn.Module, job: Job) -> Iterator[Masks]:
    """The masks that hide nothing with which a module can be called."""
    forms = list(reading.forms) if reading.signature.needs_mask else []
    encoded = ((form.argument, form.encode(job.allowed)) for form in forms)
    tried: list[Masks] = [{}, *({name: mask} for name, mask in encoded if mask is not None)]
    for masks in tried:
        try:
            reading.called(module, {}, job, masks)
        except (TypeError, AttributeError):
            continue
        except Exception:
            if not masks:
                return  # its shapes do not fit, whatever the mask
            continue
        yield masks
        return


def _probed(
    blank: ModuleRunner, module: nn.Module, weights: Weights, heads: int
) -> tuple[Binding, ...]:
    """The bindings of a module whose parameter names are not recognised."""
    job = self_job(weights.q.shape[1], heads)
    module.eval()
    for axes, signature in product(blank.orders, (blank.signature, *blank.roles)):
        still = next((f for f in angle_forms(signature.angles) if f and not f.turning), None)
        reading = replace(blank, axes=axes, signature=signature, angles=still)
        for masks in _neutral(reading, module, job):

            def give(
                parameters: Mapping[str, Tensor],
                masks: Masks = masks,
                reading: ModuleRunner = reading,
            ) -> Tensor:
                return reading.called(module, dict(parameters), job, masks).output

            result = probe(module, give, weights, heads)
            if result:
                return result
    return ()

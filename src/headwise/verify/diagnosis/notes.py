"""Notes in a report: where a target's conventions differ from those of headwise."""

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from headwise.call import Call
from headwise.lang import Text
from headwise.masks import causal, from_tensor, full, padding
from headwise.positions import Rotary
from headwise.reference import reference
from headwise.verify.checks import Subject, compute
from headwise.verify.checks.edge_cases import refusals
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Job, Outcome, cross_job, self_job
from headwise.verify.oracle.pipeline import job_context
from headwise.verify.oracle.tolerance import judge, judge_job
from headwise.verify.target.conventions import LENGTH, Conventions, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.parameter_names import Binding
from headwise.verify.target.runners import FunctionRunner


def notes_on(conventions: Conventions, subject: Subject) -> tuple[Text, ...]:
    """The notes for a report."""
    notes = [*_calls(conventions), *_blind(subject), *_dropped(subject)]
    notes += choices(conventions, subject)
    notes += refusals(subject, torch.float32)
    return tuple(notes)


def _calls(conventions: Conventions) -> list[Text]:
    """Notes on how the target is called."""
    runner, notes = conventions.runner, []
    if getattr(runner, "sequence_first", False):
        notes.append(Text("it takes (L, B, E): length first"))
    notes += _packed(runner) + _probed(runner) + _around(runner)
    if not runner.differentiable:
        notes.append(Text("it works on NumPy's arrays: it has no gradients to verify"))
    if "out" in runner.lacks:
        notes.append(Text("it has no output projection"))
    if conventions.base == causal():
        notes.append(Text("it has its own causal mask"))
    elif conventions.base != full():
        name = str(conventions.base)
        notes.append(Text("it has its own mask, {name}", name=name))
    notes += [
        Text(
            "{argument}: how it takes a mask was not found, so no mask was given to it",
            argument=argument,
        )
        for argument in conventions.unknown
    ]
    notes += [
        Text("{argument}: not tried, left at its default", argument=argument)
        for argument in runner.signature.left
        if argument not in runner.signature.flags
    ]
    says = {
        "may": Text("True = may attend"),
        "blocked": Text("True = blocked"),
        "additive": Text("a float that is added to the scores"),
        "ones": Text("1 = may attend"),
        "zeros": Text("1 = blocked"),
        "lengths": Text("how many keys are real"),
    }
    for form in {f.argument: f for f in reversed(conventions.forms)}.values():
        meaning = says[form.encoding]
        how = Text("found by trial")
        if not conventions.certain:
            how = Text("assumed: no trial decided it")
        notes.append(
            Text("{argument}: {meaning} ({how})", argument=form.argument, meaning=meaning, how=how)
        )
    return notes


def _packed(runner: Runner) -> list[Text]:
    """The order of a packed q, k, v matrix, where it is not q over k over v."""
    binding = getattr(runner, "binding", None)
    if binding is None or binding.layout == "parts":
        return []
    layers = (item.removesuffix(".weight").removesuffix(".bias") for item in binding.packed)
    name = ", ".join(dict.fromkeys(layers))
    if binding.layout == "heads":
        return [
            Text("{name}: grouped by head, with q, k and v of each (found by trial)", name=name)
        ]
    return [Text("{name}: q, k and v alternate within each head (found by trial)", name=name)]


def _probed(runner: Runner) -> list[Text]:
    """The roles of parameters that were identified by their effect."""
    if not getattr(runner, "probed", False):
        return []
    binding: Binding = getattr(runner, "binding")  # noqa: B009 - only modules have one
    places = binding.places.items()
    by_role = {
        " + ".join(names): places[0].name for names, places in places if "bias" not in names[0]
    }
    order = sorted(by_role, key=lambda names: ("qkvo".index(names[0]), names))
    words = ", ".join(f"{names}: {by_role[names]}" for names in order)
    return [
        Text(
            "its parameter names are not recognised; by their effect on the output they are "
            "{roles}",
            roles=words,
        )
    ]


def _around(runner: Runner) -> list[Text]:
    """Norms and residual connections in the same module."""
    norms = ", ".join(getattr(runner, "norms", ()))
    if not norms:
        return []
    notes = [Text("{norms}: bypassed, not verified", norms=norms)]
    if getattr(runner, "residual", False):
        notes.append(Text("it adds its input to its output: subtracted before the comparison"))
    return notes


def _blind(subject: Subject) -> list[Text]:
    """The output of a fully masked row; headwise gives 0."""
    job = replace(_job(subject), mask=padding([LENGTH, 0]))
    try:
        outcome = compute(subject, job)
    except Exception:
        outcome = None
    if outcome is None:
        return []
    row, bias = outcome.output[1], job.weights.out_bias
    if bool(row.isnan().any()):
        return [
            Text(
                "a query that sees no key gives NaN; headwise gives 0 before the output projection"
            )
        ]
    if subject.truth is not None:
        return []  # its own weights are not known
    zero = torch.zeros_like(row) if bias is None else bias.expand_as(row)
    if bool((row == zero).all()):
        return []
    return [Text("a query that sees no key still gives values of hidden keys; headwise gives 0")]


def _dropped(subject: Subject) -> list[Text]:
    """Whether the weights it returns are those after dropout."""
    job = replace(_job(subject), dropout=0.5, training=True)
    try:
        outcome = compute(subject, job)
    except Exception:
        outcome = None
    if outcome is None or outcome.weights is None or not _zeros(outcome.weights):
        return []
    return [Text("in training it returns the weights after dropout; headwise returns them before")]


def _zeros(weights: Tensor) -> bool:
    return bool((weights == 0).any())


def _job(subject: Subject) -> Job:
    return subject.fit(self_job(subject.embed_dim, subject.heads, length=LENGTH))


OF_QUERIES = re.compile(r"(?i)(^|[._])(q|k|query|key)_?(layer_?)?(norm|ln)$")
"""Modules that normalise queries or keys, by their names."""

QUERIES = 5
"""Fewer queries than keys, so that the two ways of aligning a causal mask differ."""


def choices(conventions: Conventions, subject: Subject) -> Iterator[Text]:
    """The notes for a report."""
    runner = conventions.runner
    if isinstance(runner, ModuleRunner | FunctionRunner):
        for flag in runner.signature.flags:
            yield from _aligned(replace(conventions, runner=_with(runner, flag)), flag, subject)
    if isinstance(runner, ModuleRunner):
        yield from _scope(runner)
        yield from _silent_hooks(runner, subject)
        for argument in runner.signature.angles:
            yield _turned(conventions, runner, argument, subject)
    yield from _leaks(subject)


def _with(runner: ModuleRunner | FunctionRunner, flag: str) -> ModuleRunner | FunctionRunner:
    return replace(runner, given={flag: True})


def _aligned(conventions: Conventions, flag: str, subject: Subject) -> Iterator[Text]:
    """How a causal flag aligns the mask with fewer queries than keys."""
    same = subject.fit(self_job(subject.embed_dim, subject.heads, length=LENGTH))
    outcome = _call_without_mask(conventions, same)
    if outcome is None:
        yield Text("{flag}: it raises where no mask is given", flag=flag)
        return
    if not judge_job(outcome, replace(same, mask=causal())).accepted:
        yield Text("{flag}=True is not a causal mask: the output differs", flag=flag)
        return
    job = cross_job(subject.embed_dim, subject.heads, lengths=(QUERIES, LENGTH))
    job = subject.fit(job)
    outcome = None if subject.refuses(job) is not None else _call_without_mask(conventions, job)
    if outcome is None:
        yield Text("{flag}=True is a causal mask", flag=flag)
    elif judge_job(outcome, replace(job, mask=causal())).accepted:
        yield Text(
            "{flag}=True with fewer queries than keys: lower-right, the last query sees every key",
            flag=flag,
        )
    elif judge_job(outcome, replace(job, mask=from_tensor(_upper_left(), "q k"))).accepted:
        yield Text(
            "{flag}=True with fewer queries than keys: upper-left, the first query sees the "
            "first key only and no query sees the last keys; headwise's causal() is lower-right",
            flag=flag,
        )


def _upper_left() -> Tensor:
    return torch.ones(QUERIES, LENGTH, dtype=torch.bool).tril()


def _call_without_mask(conventions: Conventions, job: Job) -> Outcome | None:
    try:
        return conventions.runner.run(job, {})
    except Exception:
        return None


def _scope(runner: ModuleRunner) -> Iterator[Text]:
    """The parts of the module that were not verified."""
    if runner.reached:
        yield Text(
            "the attention was found at {path}; the layers around it were not verified",
            path=runner.reached,
        )
    module = runner.make(0.0)
    inside = ", ".join(name for name, _ in module.named_modules() if OF_QUERIES.search(name))
    if inside:
        yield Text(
            "{names}: it normalises its queries or keys, which the definition of attention does "
            "not: that may be the whole difference",
            names=inside,
        )
    own = getattr(module, "scaling", None)
    if own == 1:
        yield Text(
            "its attribute scaling is 1: it omits the division by sqrt(D) on purpose, as T5 "
            "does, whose initialisation compensates for it"
        )
    if runner.binding.zeroed:
        names = ", ".join(name for name, _ in runner.binding.zeroed)
        yield Text("{names}: set to 0, not verified", names=names)
    if runner.binding.groups is not None:
        count = runner.binding.groups
        yield Text("it has {count} key/value heads, shared by its query heads", count=count)


def _silent_hooks(runner: ModuleRunner, subject: Subject) -> Iterator[Text]:
    """Submodules with a projection that are never called, so that their hooks do not fire."""
    module = runner.make(0.0)
    names = {
        place.name.rpartition(".")[0]
        for places in runner.binding.places.values()
        for place in places
    }
    inner = {name: module.get_submodule(name) for name in names if name}
    called: set[str] = set()
    handles = [_notes(item, name, called) for name, item in inner.items()]
    job = subject.fit(self_job(subject.embed_dim, subject.heads, length=LENGTH))
    try:
        ran = compute(subject, job) is not None
    except Exception:
        ran = False
    finally:
        for handle in handles:
            handle.remove()
    missed = ", ".join(sorted(set(inner) - called))
    if ran and missed:
        yield Text(
            "hooks on {names} are not called: the weights are used without calling the module",
            names=missed,
        )


def _notes(module: nn.Module, name: str, called: set[str]) -> "torch.utils.hooks.RemovableHandle":
    return module.register_forward_pre_hook(lambda *_: called.add(name))


def _leaks(subject: Subject) -> Iterator[Text]:
    """Whether NaN in masked tokens reaches the output; in headwise it does not."""
    real = LENGTH - 3
    job = subject.fit(
        self_job(subject.embed_dim, subject.heads, length=LENGTH, mask=padding([LENGTH, real]))
    )
    x = job.query.clone()
    x[1, real:] = torch.nan
    try:
        outcome = compute(subject, replace(job, query=x, key=x, value=x))
    except Exception:
        outcome = None
    if outcome is not None and bool(outcome.output[1, :real].isnan().any()):
        yield Text(
            "NaN in a masked value reaches the output (0 · NaN is NaN); headwise keeps it out"
        )


def _turned(
    conventions: Conventions, runner: ModuleRunner, argument: str, subject: Subject
) -> Text:
    """How q and k are rotated by the cosines and sines of consecutive positions."""
    job = self_job(subject.embed_dim, subject.heads, length=LENGTH, mask=conventions.base)
    job = subject.fit(job)
    dim = job.weights.q.shape[0] // job.heads
    unturned = Text(
        "{argument}: tried with angles of 0 only; its rotation was not verified", argument=argument
    )
    if dim % 2:
        return unturned
    angles = torch.arange(LENGTH)[:, None] * 10000.0 ** -(torch.arange(0, dim, 2) / dim)
    for pairs, spread in (
        ("halves", torch.cat((angles, angles), -1)),
        ("neighbours", angles.repeat_interleave(2, -1)),
    ):
        whole = spread.expand(job.query.shape[0], -1, -1).to(job.query.dtype)
        arguments = {argument: (whole.cos(), whole.sin())}
        try:
            masks = conventions.masks(job) or {}
            outcome = replace(runner, given=arguments).run(job, masks)
        except Exception:
            return unturned
        if _rotated(outcome, job, pairs):
            return Text(
                '{argument}: q and k are rotated as by Rotary(pairs="{pairs}") (found by trial)',
                argument=argument,
                pairs=pairs,
            )
    return Text("{argument}: q and k are not rotated as by Rotary", argument=argument)


def _rotated(outcome: Outcome, job: Job, pairs: str) -> bool:
    plain, exact = (
        _with_rotary(job.to(dtype), pairs) for dtype in (job.query.dtype, torch.float64)
    )
    return judge(outcome.output, plain, exact).accepted


def _with_rotary(job: Job, pairs: str) -> Tensor:
    """The reference output with rotary positions, in the job's dtype."""
    context = job_context(job)
    counts = (job.heads, job.groups, job.groups)
    parts = steps.project(context, job.query, job.key, job.value)
    q, k, v = (steps.split(context, x, n) for x, n in zip(parts, counts, strict=True))
    rotary = Rotary(q.shape[-1], pairs=pairs)
    call = Call.of(q, k, v, mask=job.mask, position=rotary)
    return steps.output(context, steps.merge(context, reference(call, q.dtype).output.to(q.dtype)))

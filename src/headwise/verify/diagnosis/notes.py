"""The notes in a report on differences between the conventions of a target and headwise."""

import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from headwise.lang import Text
from headwise.masks import causal, from_tensor, full, padding
from headwise.positions import Rotary
from headwise.verify.checks import LENGTH, PADDED, Subject, attempt, masked_job
from headwise.verify.checks.edge_cases import refusals
from headwise.verify.oracle.jobs import Job, Outcome, cross_job
from headwise.verify.oracle.tolerance import judge_job
from headwise.verify.target.conventions import Conventions
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.parameters.parameter_names import Binding
from headwise.verify.target.runners import FunctionRunner

AXES = {
    "l b e": Text("it takes (L, B, E): length first"),
    "b e l": Text("it takes (B, E, L): features before length"),
    "l e": Text("it takes (L, E): one sample without a batch"),
}


def notes_on(conventions: Conventions, subject: Subject) -> tuple[Text, ...]:
    """Yield the notes for a report."""
    notes = [*_calls(conventions), *_masks(conventions), *_blind(subject), *_dropped(subject)]
    notes += choices(conventions, subject)
    notes += refusals(subject, torch.float32)
    return tuple(notes)


def headline(conventions: Conventions) -> tuple[Text, ...]:
    """The conventions that were found, a few words each, for the first line of a report."""
    runner, base, signature = conventions.runner, conventions.base, conventions.runner.signature
    axes = getattr(runner, "axes", None)
    result = [SHORT_AXES[axes]] if axes in SHORT_AXES else []
    if isinstance(runner, FunctionRunner):
        result.append(Text("q, k, v ({axes})", axes=", ".join(runner.order.upper().split())))
    for argument, form in {f.argument: f for f in reversed(conventions.forms)}.items():
        meaning = MEANINGS[form.encoding]
        result.append(Text("{argument}: {meaning}", argument=argument, meaning=meaning))
    if runner.groups is not None:
        heads = conventions.size[1]
        words = Text(
            "{groups} key/value heads for {heads} heads", groups=runner.groups, heads=heads
        )
        result.append(words)
    if base == causal():
        result.append(Text("causal inside"))
    elif base != full():
        result.append(Text("inside it: {name}", name=str(base)))
    if conventions.position is not None:
        result.append(Text("inside it: {name}", name=type(conventions.position).__name__))
    unknown = (name for name in signature.masks if name in conventions.unknown)
    result += [Text("{argument}: not understood", argument=name) for name in unknown]
    return tuple(result)


SHORT_AXES = {
    "b l e": Text("batch first"),
    "l b e": Text("length first"),
    "b e l": Text("features before length"),
    "l e": Text("no batch"),
}

MEANINGS = {
    "may": Text("True = may attend"),
    "blocked": Text("True = blocked"),
    "additive": Text("a float that is added to the scores"),
    **dict.fromkeys(("ones", "ones_int", "ones_byte"), Text("1 = may attend")),
    **dict.fromkeys(("zeros", "zeros_int", "zeros_byte"), Text("1 = blocked")),
    "lengths": Text("how many keys are real"),
}


def _calls(conventions: Conventions) -> Iterator[Text]:
    runner, base = conventions.runner, conventions.base
    axes = getattr(runner, "axes", "b l e")
    if axes != "b l e":
        yield AXES[axes]
    if isinstance(runner, ModuleRunner):
        yield from (*_packed(runner.binding), *_probed(runner), *_around(runner))
    if not runner.differentiable:
        yield Text("it works on NumPy's arrays: it has no gradients to verify")
    if "out" in runner.lacks:
        yield Text("it has no output projection")
    if isinstance(conventions.position, Rotary):
        pairs = conventions.position.pairs
        yield Text('it rotates queries and keys as by Rotary(pairs="{pairs}")', pairs=pairs)
    elif conventions.position is not None:
        name = type(conventions.position).__name__
        yield Text("it adds the position bias of {name}", name=name)
    if base == causal():
        yield Text("it has its own causal mask")
    elif base != full():
        yield Text("it has its own mask, {name}", name=str(base))


def _masks(conventions: Conventions) -> Iterator[Text]:
    for argument, documented in conventions.contradicted:
        meaning = Text("True = may attend") if documented == "attend" else Text("True = blocked")
        yield Text(
            "{argument}: its documentation says {meaning}, and it does the opposite",
            argument=argument,
            meaning=meaning,
        )
    for argument in conventions.unknown:
        yield Text(
            "{argument}: its mask convention was not recognised, so no mask was passed",
            argument=argument,
        )
    signature = conventions.runner.signature
    for argument in signature.left:
        if argument not in (*signature.flags, *conventions.arguments):
            yield Text("{argument}: not tried, left at its default", argument=argument)
    how = Text("found by trial" if conventions.certain else "assumed: no trial decided it")
    if conventions.stated.mask_true is not None:
        how = Text("stated")
    for argument, form in {f.argument: f for f in reversed(conventions.forms)}.items():
        meaning = MEANINGS[form.encoding]
        yield Text("{argument}: {meaning} ({how})", argument=argument, meaning=meaning, how=how)


def _packed(binding: Binding) -> Iterator[Text]:
    """Note the order of a packed q, k, v matrix, unless it is q over k over v."""
    layers = (item.removesuffix(".weight").removesuffix(".bias") for item in binding.packed)
    name = ", ".join(dict.fromkeys(layers))
    if binding.layout == "heads":
        yield Text("{name}: grouped by head, with q, k and v of each (found by trial)", name=name)
    elif binding.layout == "last":
        yield Text("{name}: q, k and v alternate within each head (found by trial)", name=name)
    elif binding.layout == "q v k":
        yield Text("{name}: q, then v, then k (found by trial)", name=name)
    if binding.interleaved:
        yield Text("head h has every H-th feature, in the split and in the merge (found by trial)")


def _probed(runner: ModuleRunner) -> Iterator[Text]:
    """The roles of parameters that were identified by their effect."""
    if runner.call:
        yield Text("constructed as {call}", call=runner.call)
    if runner.probed:
        places = runner.binding.places.items()
        by_role = {" + ".join(n): place[0].name for n, place in places if "bias" not in n[0]}
        order = sorted(by_role, key=lambda names: ("qkvo".index(names[0]), names))
        yield Text(
            "its parameter names are not recognised; by their effect on the output they are "
            "{roles}",
            roles=", ".join(f"{names}: {by_role[names]}" for names in order),
        )


def _around(runner: ModuleRunner) -> Iterator[Text]:
    if runner.norms:
        yield Text("{norms}: bypassed, not verified", norms=", ".join(runner.norms))
        if runner.residual:
            yield Text("it adds its input to its output: subtracted before the comparison")


def _blind(subject: Subject) -> Iterator[Text]:
    """Note the output of a fully masked row unless it is 0, as in headwise."""
    job = masked_job(subject, torch.float32, padding([LENGTH, 0]))
    outcome = attempt(subject, job)
    if outcome is None:
        return
    row, bias = outcome.output[1], job.weights.out_bias
    zero = torch.zeros_like(row) if bias is None else bias.expand_as(row)
    if bool(row.isnan().any()):
        yield Text(
            "a query that sees no key gives NaN; headwise gives 0 before the output projection"
        )
    elif subject.truth is None and not bool((row == zero).all()):
        yield Text("a query that sees no key still gives values of hidden keys; headwise gives 0")


def _dropped(subject: Subject) -> Iterator[Text]:
    job = masked_job(subject, torch.float32)
    outcome = attempt(subject, replace(job, dropout=0.5, training=True))
    weights = None if outcome is None else outcome.weights
    if weights is not None and bool((weights == 0).any()):
        yield Text("in training it returns the weights after dropout; headwise returns them before")


OF_QUERIES = re.compile(r"(?i)(^|[._])(q|k|query|key)_?(layer_?)?(norm|ln)$")

QUERIES = 5  # fewer queries than keys, so that the two ways of aligning a causal mask differ


def choices(conventions: Conventions, subject: Subject) -> Iterator[Text]:
    """Yield the notes on choices that the definition of attention leaves open."""
    runner = conventions.runner
    if isinstance(runner, ModuleRunner | FunctionRunner):
        for flag in runner.signature.flags:
            flagged = replace(runner, options={flag: True})
            yield from _aligned(replace(conventions, runner=flagged), flag, subject)
    if isinstance(runner, ModuleRunner):
        yield from _scope(runner)
        yield from _silent_hooks(runner, subject)
        names = ", ".join(runner.signature.angles)
        if names and conventions.position is None:
            yield Text(
                "{names}: tried with angles of 0 only; its rotation was not verified", names=names
            )
    yield from _leaks(subject)


def _aligned(conventions: Conventions, flag: str, subject: Subject) -> Iterator[Text]:
    same = masked_job(subject, torch.float32)
    outcome = _call_without_mask(conventions, same)
    if outcome is None:
        yield Text("{flag}: it raises where no mask is given", flag=flag)
        return
    if not judge_job(outcome, replace(same, mask=causal())).accepted:
        yield Text("{flag}=True is not a causal mask: the output differs", flag=flag)
        return
    size = subject.embed_dim, subject.heads
    job = subject.fit(cross_job(*size, lengths=(QUERIES, LENGTH)))
    outcome = None if subject.refuses(job) is not None else _call_without_mask(conventions, job)
    upper_left = from_tensor(torch.ones(QUERIES, LENGTH, dtype=torch.bool).tril(), "q k")
    if outcome is None:
        yield Text("{flag}=True is a causal mask", flag=flag)
    elif judge_job(outcome, replace(job, mask=causal())).accepted:
        yield Text(
            "{flag}=True with fewer queries than keys: lower-right, the last query sees every key",
            flag=flag,
        )
    elif judge_job(outcome, replace(job, mask=upper_left)).accepted:
        yield Text(
            "{flag}=True with fewer queries than keys: upper-left, the first query sees the "
            "first key only and no query sees the last keys; headwise's causal() is lower-right",
            flag=flag,
        )


def _call_without_mask(conventions: Conventions, job: Job) -> Outcome | None:
    try:
        return conventions.runner.run(job, {})
    except Exception:
        return None


def _scope(runner: ModuleRunner) -> Iterator[Text]:
    """Note the parts of the module that were not verified."""
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
    if getattr(module, "scaling", None) == 1:
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
    """Note projections whose submodule is never called, so their hooks do not run."""
    module = runner.make(0.0)
    names = {place.name.rpartition(".")[0] for place in runner.binding.slots} - {""}
    called: set[str] = set()
    inner = {name: module.get_submodule(name) for name in names}
    handles = [
        submodule.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        for name, submodule in inner.items()
    ]
    try:
        ran = attempt(subject, masked_job(subject, torch.float32)) is not None
    finally:
        for handle in handles:
            handle.remove()
    missed = ", ".join(sorted(names - called))
    if ran and missed:
        yield Text(
            "hooks on {names} are not called: the weights are used without calling the module",
            names=missed,
        )


def _leaks(subject: Subject) -> Iterator[Text]:
    real = LENGTH - 3
    job = masked_job(subject, torch.float32, PADDED)
    x = job.query.clone()
    x[1, real:] = torch.nan
    outcome = attempt(subject, job.with_input(x))
    if outcome is not None and bool(outcome.output[1, :real].isnan().any()):
        yield Text(
            "NaN in a masked value reaches the output (0 · NaN is NaN); headwise keeps it out"
        )

"""Facts about a target that are no failure: where it chose otherwise than headwise."""

from dataclasses import replace

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import causal, full, padding
from headwise.verify.binding import Binding
from headwise.verify.choices import choices
from headwise.verify.conventions import LENGTH, Conventions
from headwise.verify.extremes import refusals
from headwise.verify.jobs import Job, self_job
from headwise.verify.runners import Runner
from headwise.verify.subject import Subject, compute


def facts(conventions: Conventions, subject: Subject) -> tuple[Text, ...]:
    """The notes for a report."""
    notes = [*_calls(conventions), *_blind(subject), *_dropped(subject)]
    notes += choices(conventions, subject)
    notes += refusals(subject, torch.float32)
    return tuple(notes)


def _calls(conventions: Conventions) -> list[Text]:
    """How it is called, where a reader could expect something else."""
    runner, notes = conventions.runner, []
    if getattr(runner, "sequence_first", False):
        notes.append(Text("it takes (L, B, E): length first"))
    notes += _packed(runner) + _probed(runner) + _around(runner)
    if not runner.differentiable:
        notes.append(Text("it works on NumPy's arrays: it has no gradients to verify"))
    if "out" in runner.lacks:
        notes.append(Text("it has no output projection"))
    if conventions.base == causal():
        notes.append(Text("it hides the future by itself"))
    elif conventions.base != full():
        name = str(conventions.base)
        notes.append(Text("it attends to {name} by itself", name=name))
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
        how = Text("found by trying")
        if not conventions.certain:
            how = Text("assumed: no trial told")
        notes.append(
            Text("{argument}: {meaning} ({how})", argument=form.argument, meaning=meaning, how=how)
        )
    return notes


def _packed(runner: Runner) -> list[Text]:
    """How one matrix holds q, k and v, where it is not one below the other."""
    binding = getattr(runner, "binding", None)
    if binding is None or binding.layout == "parts":
        return []
    layers = (each.removesuffix(".weight").removesuffix(".bias") for each in binding.packed)
    name = ", ".join(dict.fromkeys(layers))
    if binding.layout == "heads":
        return [Text("{name}: q, k and v of each head stand together (found by trying)", name=name)]
    return [Text("{name}: q, k and v take turns within each head (found by trying)", name=name)]


def _probed(runner: Runner) -> list[Text]:
    """Which parameter was taken for which projection, where no name told."""
    if not getattr(runner, "probed", False):
        return []
    binding: Binding = getattr(runner, "binding")  # noqa: B009 - only modules have one
    places = binding.places.items()
    held = {" + ".join(names): places[0].name for names, places in places if "bias" not in names[0]}
    order = sorted(held, key=lambda names: ("qkvo".index(names[0]), names))
    words = ", ".join(f"{names}: {held[names]}" for names in order)
    return [
        Text("its parameters' names say nothing; told apart by what moves as {words}", words=words)
    ]


def _around(runner: Runner) -> list[Text]:
    """What stands around the attention in the same module."""
    norms = ", ".join(getattr(runner, "norms", ()))
    if not norms:
        return []
    notes = [Text("{norms}: set aside, not verified", norms=norms)]
    if getattr(runner, "residual", False):
        notes.append(Text("its input is added to its output: taken off before it was compared"))
    return notes


def _blind(subject: Subject) -> list[Text]:
    """What a query gives that sees no key; headwise gives 0."""
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
    return [
        Text("while training it returns the weights after dropout; headwise returns them before")
    ]


def _zeros(weights: Tensor) -> bool:
    return bool((weights == 0).any())


def _job(subject: Subject) -> Job:
    return subject.fit(self_job(subject.embed_dim, subject.heads, length=LENGTH))

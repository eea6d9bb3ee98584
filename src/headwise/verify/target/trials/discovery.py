"""Discover a target's conventions by trial: how it is constructed and called, and what it hides."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import torch
from torch import nn

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.masks import Mask, causal, full
from headwise.positions import Position
from headwise.verify.checks import LENGTH
from headwise.verify.diagnosis import matching_quantities, record
from headwise.verify.mistakes import MISTAKES, Observation, explain, possible
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import self_job
from headwise.verify.target import NotRecognised, not_recognised
from headwise.verify.target.calls.documented import documented_meaning
from headwise.verify.target.calls.guarded_call import CallLog, no_log
from headwise.verify.target.construction.arguments import ConstructionSizes
from headwise.verify.target.construction.candidates import (
    Candidate,
    candidates,
    sizes_for,
    with_groups,
)
from headwise.verify.target.construction.construct import constructions
from headwise.verify.target.construction.resizing import beyond_definition
from headwise.verify.target.conventions import Conventions, Runner
from headwise.verify.target.module_runner import blank_runner
from headwise.verify.target.runners import BlackBoxRunner
from headwise.verify.target.stated import NOTHING, Stated
from headwise.verify.target.trials.influence import Run, equal_influence, influences, windows
from headwise.verify.target.trials.mask_trials import influential, with_forms
from headwise.verify.target.trials.readings import Search, callable_forms

MOST_CANDIDATES = 6  # how many candidates that can be called are tried

MOST_EXPLAINED, MOST_IN_PAIRS = 4, 2
"""How many readings are explained by one mistake, and by pairs of mistakes."""


def discover(
    target: object,
    name: str,
    size: tuple[int, int],
    seed: int,
    stated: Stated = NOTHING,
    log: CallLog = no_log,
) -> Conventions:
    """Find the conventions of a target by trial.

    The first reading for which it is exact is taken, else one that known mistakes explain.

    Raises:
        BadFile: if it cannot be constructed, read or called.
    """
    first_error: BadFile | None = None
    searches: list[Search] = []
    for own in sizes_for(target, size, stated):
        found = candidates(target, name, own, stated, log, searches)
        while len(searches) < MOST_CANDIDATES:
            try:
                candidate = next(found, None)
                if candidate is None:
                    break
                search = Search.of(candidate, seed, stated)
            except BadFile as error:
                first_error = first_error or error
                continue
            exact = search.exact()
            if exact is not None:
                exact = replace(exact, exact=True)
                return _finished(*_grouped(candidate, exact, search, stated), target)
            searches.append(search)
        if searches:
            break
    if not searches:
        raise first_error or not_recognised(Text("{name} cannot be called", name=name))
    return _finished(*_understood(searches), target)


def _grouped(
    candidate: Candidate, exact: Conventions, search: Search, stated: Stated
) -> tuple[Conventions, Search]:
    """An exact reading, with fewer key/value heads where a function takes them."""
    own = with_groups(candidate, stated)
    if own is None:
        return exact, search
    try:
        grouped = Search.of(own, search.seed, stated)
    except BadFile:
        return exact, search
    result = grouped.exact()
    if result is None:
        return _understood([grouped])
    return replace(result, exact=True), grouped


def find_conventions(
    runner: Runner, embed_dim: int, heads: int, seed: int, stated: Stated = NOTHING
) -> Conventions:
    """Find the conventions of a runner by trial.

    Raises:
        BadFile: if it raises however it is called.
    """
    search = Search.of(Candidate(runner, (embed_dim, heads)), seed, stated)
    exact = search.exact()
    chosen = (exact, search) if exact is not None else _understood([search])
    return _finished(*chosen)


def _understood(searches: Sequence[Search]) -> tuple[Conventions, Search]:
    """The first reading that known mistakes explain, one before two; else the likeliest one.

    Readings come in the order of how many of the oracle's quantities appear in the target.
    """
    views = [View(reading, search) for search in searches for reading in search.plain_readings]
    views = [view for view in views if view.run is not None] or views
    views.sort(key=lambda view: -len(view.appeared))
    still = next(((r, s) for s in searches if (r := s.still()) is not None), None)
    beyond = still is not None or beyond_definition(views[0].reading) is not None
    for most, chosen in ((1, views[:MOST_EXPLAINED]), (2, [] if beyond else _for_pairs(views))):
        for view in chosen:
            for mask, position in view.offers(most):
                if view.explained(mask, position, most):
                    return replace(view.reading, base=mask, position=position), view.search
    if still is not None:
        return still
    best = views[0]
    base = _base(best.reading, best.search)
    return replace(best.reading, base=base, unexplained=True), best.search


def _for_pairs(views: Sequence["View"]) -> list["View"]:
    """The views to explain by pairs of mistakes: the likeliest, and one with other weights."""
    first, *others = views
    binding = getattr(first.reading.runner, "binding", None)
    alike = [v for v in others if len(v.appeared) == len(first.appeared)]
    other = [v for v in alike if getattr(v.reading.runner, "binding", None) is not binding]
    return [first, *other[: MOST_IN_PAIRS - 1]]


@dataclass(eq=False)
class View:
    """One reading of a target that is not exact, and what is seen of it."""

    reading: Conventions
    search: Search

    @cached_property
    def run(self) -> Run | None:
        """The target without a mask; None where it raises."""
        return self.search.run_of(self.reading)

    @cached_property
    def appeared(self) -> frozenset[str]:
        """The quantities of the oracle that appear in the target while it runs."""
        if self.run is None:
            return frozenset()
        job = self.search.job(self.reading.runner, self.search.masks[0])
        seen = record(partial(self.run, job))
        return matching_quantities(seen, oracle(job, torch.float32), oracle(job))

    def offers(self, most: int) -> Iterator[tuple[Mask, Position | None]]:
        """The masks and positions that the target may apply by itself."""
        if self.run is None:
            return
        job = self.search.job(self.reading.runner)
        masks: tuple[Mask, ...] = self.search.masks
        if not self.search.stated.causal:
            seen = influences(self.run, job)
            bands = [m for m in (causal(), *windows(seen, job)) if equal_influence(seen, m, job)]
            masks = tuple(dict.fromkeys((*bands, *(() if bands else masks))))
        yield from ((mask, None) for mask in masks)
        if most == 1:
            for position in self.search.positions(self.reading):
                yield from ((mask, position) for mask in masks)

    def explained(self, mask: Mask, position: Position | None, most: int) -> bool:
        """Whether known mistakes reproduce the target under a mask and a position."""
        if self.run is None:
            return False
        job = self.search.job(self.reading.runner, mask, position)
        mistakes = possible(MISTAKES, self.appeared)
        return bool(explain([Observation(job, self.run(job))], mistakes, most=most))


def _base(reading: Conventions, search: Search) -> Mask:
    """The mask that a target applies by itself where nothing explains it: by its influences."""
    run, job = search.run_of(reading), search.job(reading.runner)
    if run is None or search.stated.causal:
        return search.masks[0]
    seen = influences(run, job)
    for mask in (causal(), *windows(seen, job)):
        if equal_influence(seen, mask, job):
            return mask
    return full() if bool(seen.sum() > seen.numel() // 2) else causal()


def _finished(chosen: Conventions, search: Search, target: object = None) -> Conventions:
    job = search.job(chosen.runner, position=chosen.position)
    return with_forms(chosen, job, documented=partial(documented_meaning, target))


def black_box(
    target: object, name: str, size: tuple[int, int], seed: int, why: NotRecognised, log: CallLog
) -> Conventions | None:
    """The conventions of a target with unknown weights, by the influence of tokens.

    None where they are not found. `size` is E and H, and `why` the error of the search for its
    weights.
    """
    cls = target if isinstance(target, type) else type(target)
    if not issubclass(cls, nn.Module):
        return None
    try:
        for own in sizes_for(target, size, NOTHING):
            if isinstance(target, nn.Module):
                blanks = [blank_runner(lambda _p: target, name, log)]
            else:
                calls = constructions(cls, ConstructionSizes(*own), NOTHING)
                blanks = [blank_runner(cache(c.build), name, log, c.drops) for c in calls]
            for blank in blanks:
                box = BlackBoxRunner(blank, why, blank.signature, blank.drops)
                found = _observed(box.variants, own, seed)
                if found is not None:
                    return found
    except NotRecognised:
        return None
    return None


def _observed(runners: Iterable[Runner], size: tuple[int, int], seed: int) -> Conventions | None:
    job = self_job(*size, length=LENGTH, seed=seed)
    found: list[Conventions] = []
    for i, runner in enumerate(runners):
        try:
            called = callable_forms(runner, job, describe=False)
        except BadFile:
            continue
        found += [
            Conventions(runner, full(), forms, neutral, certain=False, variant=i, size=size)
            for neutral, forms in called
        ]
    search = Search(size, seed, NOTHING, found)
    seen = [(c, influences(run, job)) for c in found if (run := search.run_of(c))]
    for candidate, influence in seen:
        for mask in (full(), causal()):
            if equal_influence(influence, mask, job):
                return with_forms(replace(candidate, base=mask), job, (influential,))
    some = [candidate for candidate, influence in seen if bool(influence.any())]
    return with_forms(some[0], job, (influential,)) if some else None

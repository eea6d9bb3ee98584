"""Discover a target's conventions by trial: how it is constructed and called, and what it hides."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import islice

import torch
from torch import nn

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.masks import Mask, causal, full
from headwise.positions import ALiBi, Position
from headwise.verify.checks import LENGTH
from headwise.verify.diagnosis import matching_quantities, record
from headwise.verify.mistakes import MISTAKES, Observation, explain, possible
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, self_job
from headwise.verify.oracle.tolerance import judge_job
from headwise.verify.target import NotRecognised, no_function, not_recognised, one_line
from headwise.verify.target.angles import rotary_positions
from headwise.verify.target.arguments import Sizes
from headwise.verify.target.candidates import Candidate, candidates, sizes_for
from headwise.verify.target.construct import constructions
from headwise.verify.target.conventions import Conventions, Masks, Runner
from headwise.verify.target.guarded_call import CallLog, no_log
from headwise.verify.target.documented import documented_meaning
from headwise.verify.target.influence import Run, equal_influence, equivariant, influences, windows
from headwise.verify.target.mask_forms import ATTEND, BLOCKED, MaskForm
from headwise.verify.target.mask_trials import attempt_form, influential, with_forms
from headwise.verify.target.module_runner import ModuleRunner, blank_runner
from headwise.verify.target.resizing import beyond_definition
from headwise.verify.target.runners import BlackBoxRunner, FunctionRunner
from headwise.verify.target.stated import NOTHING, Stated

MOST_READINGS, MOST_CANDIDATES = 200, 6
"""How many readings of one candidate are tried, and how many candidates that can be called."""

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
    searches: list[_Search] = []
    for own in sizes_for(target, size, stated):
        found = candidates(target, name, own, stated, log, searches)
        while len(searches) < MOST_CANDIDATES:
            try:
                candidate = next(found, None)
                if candidate is None:
                    break
                search = _Search.of(candidate, seed, stated)
            except BadFile as error:
                first_error = first_error or error
                continue
            exact = search.exact()
            if exact is not None:
                return _finished(exact, search, target)
            searches.append(search)
        if searches:
            break
    if not searches:
        raise first_error or not_recognised(Text("{name} cannot be called", name=name))
    return _finished(*_understood(searches), target)


def find_conventions(
    runner: Runner, embed_dim: int, heads: int, seed: int, stated: Stated = NOTHING
) -> Conventions:
    """Find the conventions of a runner by trial.

    Raises:
        BadFile: if it raises however it is called.
    """
    search = _Search.of(Candidate(runner, (embed_dim, heads)), seed, stated)
    exact = search.exact()
    chosen = (exact, search) if exact is not None else _understood([search])
    return _finished(*chosen)


@dataclass(eq=False)
class _Search:
    """The readings of one candidate that can be called, and the jobs that they are tried with."""

    size: tuple[int, int]
    seed: int
    stated: Stated
    readings: list[Conventions]
    jobs: dict[object, Job] = field(default_factory=dict)
    encodings: dict[object, tuple[Position, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, candidate: Candidate, seed: int, stated: Stated) -> "_Search":
        """Raises BadFile if no reading can be called."""
        search = cls(candidate.size, seed, stated, [])
        error: BadFile | None = None
        for i, variant in enumerate(islice(candidate.runner.variants, MOST_READINGS)):
            job = search.job(variant)
            try:
                called = _callable(variant, job, describe=error is None)
            except BadFile as raised:
                error = error or raised
                continue
            base = causal() if stated.causal else full()
            search.readings += [
                Conventions(
                    variant,
                    base,
                    forms,
                    neutral,
                    certain=False,
                    variant=i,
                    size=candidate.size,
                    stated=stated,
                )
                for neutral, forms in called
            ]
        if not search.readings:
            raise error or not_recognised(Text("it cannot be called"))
        return search

    def job(
        self, runner: Runner, mask: Mask | None = None, position: Position | None = None
    ) -> Job:
        """The job for the weights that a runner has; its oracle is computed once."""
        mask = full() if mask is None else mask
        key = (runner.lacks, runner.groups, mask, position)
        if key not in self.jobs:
            job = self_job(*self.size, length=LENGTH, mask=mask, seed=self.seed)
            job = replace(job.fitted(runner.lacks, runner.groups), position=position)
            self.jobs[key] = job
        return self.jobs[key]

    @property
    def plain_readings(self) -> list[Conventions]:
        """The readings without the conventions that are taken only where a target is exact."""
        plain = [r for r in self.readings if not _unusual(r.runner) and not self.idle(r)]
        return plain or self.readings

    @property
    def masks(self) -> tuple[Mask, ...]:
        """The masks that a target may apply by itself."""
        return (causal(),) if self.stated.causal else (full(), causal())

    def exact(self) -> Conventions | None:
        """The first reading for which the target equals the oracle, with what it applies itself."""
        for mask in self.masks:
            for reading in self.readings:
                turned = isinstance(reading.runner, ModuleRunner) and reading.runner.angles
                if not turned and not self.idle(reading) and self.equals(reading, mask):
                    return self.crossing(replace(reading, base=mask))
        for reading in self.readings:
            for position in self.positions(reading):
                for mask in self.masks:
                    if self.equals(reading, mask, position):
                        return replace(reading, base=mask, position=position)
        return None if self.stated.causal else self.banded()

    def idle(self, reading: Conventions) -> bool:
        """Whether a reading leaves out what another one places: an output, a rotation."""
        others = [other.runner for other in self.readings]
        without = "out" in reading.runner.lacks
        return without and any("out" not in other.lacks for other in others)

    def still(self) -> Conventions | None:
        """The first reading that is exact without the rotation that its arguments ask for."""
        for mask in self.masks:
            for reading in self.readings:
                runner = reading.runner
                angles = runner.angles if isinstance(runner, ModuleRunner) else None
                if angles and not angles.turning and self.equals(reading, mask):
                    return replace(reading, base=mask)
        return None

    def equals(self, reading: Conventions, mask: Mask, position: Position | None = None) -> bool:
        """Whether the target without a mask equals the oracle with this mask and position."""
        job = self.job(reading.runner, mask, position)
        try:
            plain = self.job(reading.runner)
            outcome = reading.runner.run(
                plain, reading.masks(replace(plain, mask=reading.base)) or {}
            )
        except Exception:
            return False
        return judge_job(outcome, job).accepted

    def positions(self, reading: Conventions) -> tuple[Position, ...]:
        """The position encodings that a target may apply by itself."""
        run = self.run_of(reading)
        if run is None or equivariant(run, self.job(reading.runner)):
            return ()
        embed_dim, heads = self.size
        dim = embed_dim // heads
        key = (dim, heads)
        if key not in self.encodings:
            self.encodings[key] = (*rotary_positions(dim), ALiBi(heads))
        return self.encodings[key]

    def banded(self) -> Conventions | None:
        """The first reading for which the target equals the oracle in a window."""
        for reading in self.readings:
            run = self.run_of(reading)
            job = self.job(reading.runner)
            for mask in () if run is None else windows(influences(run, job), job):
                if self.equals(reading, mask):
                    return replace(reading, base=mask)
        return None

    def crossing(self, exact: Conventions) -> Conventions:
        """The reading, with another sequence for keys and values where the target takes one."""
        if len(exact.runner.signature.tensors) > 1:
            return exact
        others = (
            r for r in self.readings if r.runner.signature.optional and r.variant > exact.variant
        )
        for reading in others:
            if self.equals(reading, exact.base) and _crosses(reading, self):
                return replace(reading, base=exact.base)
        return exact

    def run_of(self, reading: Conventions) -> Run | None:
        """The target without a mask; None where it raises."""
        job = self.job(reading.runner)
        masks = reading.masks(replace(job, mask=reading.base)) or {}
        try:
            reading.runner.run(job, masks)
        except Exception:
            return None
        return lambda inputs: reading.runner.run(inputs, masks)


def _unusual(runner: Runner) -> bool:
    """Whether a reading has features of heads in turn, or q above v above k."""
    own = runner.binding if isinstance(runner, ModuleRunner) else None
    return own is not None and (own.interleaved or own.layout == "q v k")


def _crosses(reading: Conventions, search: _Search) -> bool:
    """Whether the target is exact for keys and values of another sequence."""
    job = search.job(reading.runner)
    generator = torch.Generator().manual_seed(search.seed + 1)
    key = torch.randn(job.query.shape, generator=generator)
    job = replace(job, key=key, value=key)
    try:
        return judge_job(reading.runner.run(job, {}), job).accepted
    except Exception:
        return False


def _callable(
    runner: Runner, job: Job, *, describe: bool
) -> list[tuple[bool, tuple[MaskForm, ...]]]:
    """Whether a mask is required, and the forms of masks to try.

    Where one is required, there is a result for each meaning of a mask that hides nothing.
    """
    error_text, lacks_mask = "", False
    try:
        runner.run(job, {})
    except Exception as raised:
        error_text = one_line(raised) if describe else type(raised).__name__
        lacks_mask = isinstance(raised, TypeError | AttributeError)
    else:
        if not (isinstance(runner, FunctionRunner) and runner.wants_arrays(job, {})):
            return [(False, runner.forms)]
    function = isinstance(runner, FunctionRunner)
    result = []
    for forms in _by_neutral(runner.forms) if lacks_mask and runner.signature.needs_mask else ():
        first = next((form for form in forms if attempt_form(runner, job, form)), None)
        if first is not None:
            masks = {first.argument: first.encode(job.allowed)}
            if not (function and runner.wants_arrays(job, masks)):
                rest = (form for form in runner.forms if form != first)
                result.append((True, (first, *rest)))
    if result:
        return result
    batch, length, embed_dim = job.query.shape
    split = (batch, job.heads, length, embed_dim // job.heads)
    arguments = f"q, k, v {split}" if function else f"x {tuple(job.query.shape)}"
    reason = Text(
        "calling it with {arguments} raises {error}", arguments=arguments, error=error_text
    )
    raise no_function(reason) if function else not_recognised(reason)


def _by_neutral(forms: Sequence[MaskForm]) -> Iterator[list[MaskForm]]:
    """The forms by what they contain where nothing is hidden: ones, zeros, or lengths."""
    for encodings in (ATTEND, (*BLOCKED, "additive"), ("lengths",)):
        yield [form for form in forms if form.encoding in encodings]


def _understood(searches: Sequence[_Search]) -> tuple[Conventions, _Search]:
    """The first reading that known mistakes explain, one before two; else the likeliest one.

    Readings come in the order of how many of the oracle's quantities appear in the target.
    """
    views = [_View(reading, search) for search in searches for reading in search.plain_readings]
    views = [view for view in views if view.run is not None] or views
    views.sort(key=lambda view: -len(view.appeared))
    still = any(search.still() is not None for search in searches)
    other = still or beyond_definition(views[0].reading) is not None
    for most, chosen in ((1, views[:MOST_EXPLAINED]), (2, [] if other else _for_pairs(views))):
        for view in chosen:
            for mask, position in view.offers(most):
                if view.explained(mask, position, most):
                    return replace(view.reading, base=mask, position=position), view.search
    still = next(((r, s) for s in searches if (r := s.still()) is not None), None)
    if still is not None:
        return still
    best = views[0]
    base = _base(best.reading, best.search)
    return replace(best.reading, base=base, unexplained=True), best.search


def _for_pairs(views: Sequence["_View"]) -> list["_View"]:
    """The views to explain by pairs of mistakes: the likeliest, and one with other weights."""
    first, *others = views
    binding = getattr(first.reading.runner, "binding", None)
    alike = [v for v in others if len(v.appeared) == len(first.appeared)]
    other = [v for v in alike if getattr(v.reading.runner, "binding", None) is not binding]
    return [first, *other[: MOST_IN_PAIRS - 1]]


@dataclass(eq=False)
class _View:
    """One reading of a target that is not exact, and what is seen of it."""

    reading: Conventions
    search: _Search

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


def _base(reading: Conventions, search: _Search) -> Mask:
    """The mask that a target applies by itself where nothing explains it: by its influences."""
    run, job = search.run_of(reading), search.job(reading.runner)
    if run is None or search.stated.causal:
        return search.masks[0]
    seen = influences(run, job)
    for mask in (causal(), *windows(seen, job)):
        if equal_influence(seen, mask, job):
            return mask
    return full() if bool(seen.sum() > seen.numel() // 2) else causal()


def _finished(chosen: Conventions, search: _Search, target: object = None) -> Conventions:
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
                calls = constructions(cls, Sizes(*own), NOTHING)
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
            called = _callable(runner, job, describe=False)
        except BadFile:
            continue
        found += [
            Conventions(runner, full(), forms, neutral, certain=False, variant=i, size=size)
            for neutral, forms in called
        ]
    search = _Search(size, seed, NOTHING, found)
    seen = [(c, influences(run, job)) for c in found if (run := search.run_of(c))]
    for candidate, influence in seen:
        for mask in (full(), causal()):
            if equal_influence(influence, mask, job):
                return with_forms(replace(candidate, base=mask), job, (influential,))
    some = [candidate for candidate, influence in seen if bool(influence.any())]
    return with_forms(some[0], job, (influential,)) if some else None

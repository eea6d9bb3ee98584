"""The readings of a target that can be called, and whether one of them is exact."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.masks import Mask, causal, full
from headwise.positions import ALiBi, Position
from headwise.verify.checks import LENGTH
from headwise.verify.oracle.jobs import Job, self_job
from headwise.verify.oracle.tolerance import judge_job
from headwise.verify.target import no_function, not_recognised, one_line
from headwise.verify.target.calls.angles import rotary_positions
from headwise.verify.target.calls.mask_forms import ATTEND, BLOCKED, MaskForm
from headwise.verify.target.construction.candidates import Candidate
from headwise.verify.target.conventions import Conventions, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.runners import FunctionRunner
from headwise.verify.target.stated import Stated
from headwise.verify.target.trials.influence import Run, equivariant, influences, windows
from headwise.verify.target.trials.mask_trials import attempt_form

MOST_READINGS = 200  # how many readings of one candidate are tried


@dataclass(eq=False)
class Search:
    """The readings of one candidate that can be called, and the jobs that they are tried with."""

    size: tuple[int, int]
    seed: int
    stated: Stated
    readings: list[Conventions]
    jobs: dict[object, Job] = field(default_factory=dict)
    encodings: dict[object, tuple[Position, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, candidate: Candidate, seed: int, stated: Stated) -> "Search":
        """Raises BadFile if no reading can be called."""
        search = cls(candidate.size, seed, stated, [])
        error: BadFile | None = None
        for i, variant in enumerate(islice(candidate.runner.variants, MOST_READINGS)):
            job = search.job(variant)
            try:
                called = callable_forms(variant, job, describe=error is None)
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


def _crosses(reading: Conventions, search: Search) -> bool:
    """Whether the target is exact for keys and values of another sequence."""
    job = search.job(reading.runner)
    generator = torch.Generator().manual_seed(search.seed + 1)
    key = torch.randn(job.query.shape, generator=generator)
    job = replace(job, key=key, value=key)
    try:
        return judge_job(reading.runner.run(job, {}), job).accepted
    except Exception:
        return False


def callable_forms(
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
    function = runner if isinstance(runner, FunctionRunner) else None
    result = []
    for forms in _by_neutral(runner.forms) if lacks_mask and runner.signature.needs_mask else ():
        first = next((form for form in forms if attempt_form(runner, job, form)), None)
        if first is not None:
            encoded = first.encode(job.allowed)
            masks = {} if encoded is None else {first.argument: encoded}
            if function is None or not function.wants_arrays(job, masks):
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

"""Run checks on subjects, and test the checks themselves on mutants."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from headwise.call import Call, Result
from headwise.errors import one_of
from headwise.lang import Text
from headwise.verify.checks import Check, Subject, of_pipeline
from headwise.verify.checks.contract import CONTRACT
from headwise.verify.checks.engine_properties import PROPERTIES
from headwise.verify.mistakes import MISTAKES, Mistake
from headwise.verify.oracle.jobs import Job
from headwise.verify.oracle.pipeline import Pipeline

CHECKS: tuple[Check, ...] = (*PROPERTIES, *CONTRACT)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        trials: the number of trials; 0 if the subject supports none.
        times: the worst error divided by its tolerance; above 1 or NaN if the check failed.
        failed: the name of the first failed trial, or the error; empty if no trial failed.
        raised: whether the check failed because the subject raised an exception.
        roundings: the same error in rounding units.
    """

    check: Check
    trials: int
    times: float
    failed: str
    raised: bool = False
    roundings: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether no trial failed."""
        return not self.failed


def examine(check: Check, subject: Subject, dtype: torch.dtype) -> CheckResult:
    """Run one check; an exception of the subject counts as a failure."""
    trials, times, roundings, failed = 0, 0.0, 0.0, ""
    try:
        for name, verdict in check.probe(subject, dtype):
            trials += 1
            bad = not verdict.accepted
            if (bad and not failed) or (bad == bool(failed) and verdict.times > times):
                times, roundings = verdict.times, verdict.roundings
            failed = failed or (name if bad else "")
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        message, infinite = f"{type(error).__name__}: {words}", float("inf")
        return CheckResult(check, trials + 1, infinite, message, raised=True, roundings=infinite)
    return CheckResult(check, trials, times, failed, roundings=roundings)


def gate(
    name: str,
    run: Callable[[Call], Result],
    why_not: Callable[[Call], Iterable[Text]],
    dtype: torch.dtype = torch.float32,
) -> tuple[CheckResult, ...]:
    """Check all properties of an engine; calls for which `why_not` gives a reason are skipped."""

    def refuses(what: Call | Job) -> Text | None:
        return next(iter(why_not(what)), None) if isinstance(what, Call) else None

    subject = Subject(name, attend=run, refuses=refuses)
    return tuple(examine(check, subject, dtype) for check in PROPERTIES)


@dataclass(frozen=True)
class SelfTest:
    """The results of testing the checks on mutants.

    Attributes:
        findings: for each mistake, the result of the check that the mistake names.
        trips: for each check, the first mistake that the check rejected, or None.
        false_alarms: the results of the checks that fail on the correct pipeline.
    """

    findings: tuple[tuple[Mistake, CheckResult], ...]
    trips: tuple[tuple[Check, Mistake | None], ...]
    false_alarms: tuple[CheckResult, ...]

    @property
    def survivors(self) -> tuple[Mistake, ...]:
        """The mistakes that their check accepts, or rejects only because of an exception."""
        return tuple(m for m, result in self.findings if result.passed or result.raised)

    @property
    def idle(self) -> tuple[Check, ...]:
        """The checks that rejected no mutant."""
        return tuple(check for check, mistake in self.trips if mistake is None)

    @property
    def passed(self) -> bool:
        """Whether no mutant survived, no check is idle and there is no false alarm."""
        return not (self.survivors or self.false_alarms or self.idle)


def self_test(
    mistakes: tuple[Mistake, ...] = MISTAKES,
    progress: Callable[[str], None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> SelfTest:
    """Test every mutant with the check that its mistake names, and all checks without a mistake.

    A check that no mistake names is run on the mutants until it rejects a mutant. `progress` is
    called with the name of each mutant before the mutant is tested.

    Raises:
        BadValue: if a mistake names an unknown check.
    """
    named = {check.name: check for check in CHECKS}
    findings = []
    for mistake in mistakes:
        if progress:
            progress(mistake.name)
        if mistake.check not in named:
            raise one_of("check", mistake.check, tuple(named))
        findings.append((mistake, examine(named[mistake.check], mutant(mistake), dtype)))
    right = of_pipeline("right", Pipeline())
    results = (examine(check, right, dtype) for check in CHECKS)
    alarms = tuple(result for result in results if not result.passed)
    trips = tuple((check, _first(check, findings, dtype)) for check in CHECKS)
    return SelfTest(tuple(findings), trips, alarms)


def mutant(mistake: Mistake) -> Subject:
    """The pipeline with one mistake, as a subject."""
    subject = of_pipeline(mistake.name, Pipeline().with_steps(mistake.replacement))
    return subject if mistake.subject is None else mistake.subject(subject)


def _first(
    check: Check, findings: Sequence[tuple[Mistake, CheckResult]], dtype: torch.dtype
) -> Mistake | None:
    """Return the first mistake that a check rejects without an exception."""
    tested = ((m, result) for m, result in findings if result.check is check)
    others = ((m, examine(check, mutant(m), dtype)) for m, _ in findings)
    for mistake, result in chain(tested, others):
        if not result.passed and not result.raised:
            return mistake
    return None

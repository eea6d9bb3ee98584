"""The report of a verification as plain data: what every format is drawn from.

The layout is published beside this file, in ``report.schema.json``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise import __version__
from headwise.lang import Text
from headwise.verify.target import without_example

if TYPE_CHECKING:
    from headwise.errors import HeadwiseError
    from headwise.verify.checks.mutation_testing import CheckResult
    from headwise.verify.diagnosis.source_line import SourceLine
    from headwise.verify.diagnosis.verdict import Report
    from headwise.verify.mistakes import Mistake

SCHEMA = 3
"""The version of the data's layout; a reader of 3 may meet new keys, never other meanings."""

Data = dict[str, Any]


def data(report: "Report") -> Data:
    """The report as data. A figure that is not finite becomes None."""
    from headwise.verify.diagnosis.notes import headline
    from headwise.verify.mistakes import MISTAKES

    signature, why = report.conventions.runner.signature, report.not_compared
    tried = (*signature.flags, *report.conventions.arguments)
    return {
        **_head(report.name, report.status),
        "embed_dim": report.embed_dim,
        "heads": report.heads,
        "seed": report.seed,
        "step": report.step,
        "mistakes": [
            [_mistake(mistake, report.lines.get(mistake.name)) for mistake in group]
            for group in report.mistakes
        ],
        "known_mistakes": len(MISTAKES),
        "appeared": sorted(report.appeared),
        "checks": [
            {**finding_data(finding), "smallest": report.smallest.get(finding.check.name)}
            for finding in report.findings
        ],
        "not_understood": list(report.conventions.unknown),
        "not_exercised": [
            *report.conventions.unknown,
            *(name for name in signature.left if name not in tried),
        ],
        "notes": [both(note) for note in report.notes],
        "conventions": [both(words) for words in headline(report.conventions)],
        "not_compared": None if why is None else both(without_example(why).text),
    }


def with_seconds(report: Data, seconds: Mapping[str, float]) -> Data:
    """The report with the CPU seconds of each check, by its name."""
    checks = [{**check, "seconds": seconds.get(check["check"], 0.0)} for check in report["checks"]]
    return {**report, "checks": checks}


def with_forbidden(report: Data, uses: Sequence[Mapping[str, object]]) -> Data:
    """The report with the uses of what was forbidden; it is not accepted if there is one."""
    return {**report, "accepted": report["accepted"] and not uses, "forbidden": list(uses)}


def unusable(name: str, error: "HeadwiseError") -> Data:
    """The report on a target without a verdict: it hangs, crashes, or is not recognised."""
    brief = getattr(error, "brief", None)
    short = {} if brief is None else {"brief": both(brief)}
    return {**_head(name, "unusable"), "error": both(error.text), **short}


SOURCE_FILES = (".py", ".ipynb")


def file_and_name(target: str) -> tuple[str, str]:
    """The file of a target and the name in it; empty where there is none.

    Example:
        >>> [file_and_name(t) for t in ("a.py:Attention", "a.py", "torch.nn.Linear")]
        [('a.py', 'Attention'), ('a.py', ''), ('', '')]
    """
    if target.endswith(SOURCE_FILES):
        return target, ""
    file, _, name = target.rpartition(":")
    return file, name if file else ""


def both(text: Text) -> dict[str, str]:
    """A text in both languages."""
    return {"en": text.en, "zh": text.zh}


def finding_data(finding: "CheckResult") -> Data:
    """The result of one check."""
    return {
        "check": finding.check.name,
        "question": both(finding.check.question),
        "passed": finding.passed,
        "raised": finding.raised,
        "trials": finding.trials,
        "times": _finite(finding.times),
        "roundings": _finite(finding.roundings),
        "failed": finding.failed,
    }


def _head(name: str, status: str) -> Data:
    return {
        "schema": SCHEMA,
        "headwise": __version__,
        "target": name,
        "status": status,
        "accepted": status == "accepted",
    }


def _mistake(mistake: "Mistake", line: "SourceLine | None") -> Data:
    return {
        "name": mistake.name,
        "step": mistake.step,
        "says": both(mistake.says),
        "wrong": mistake.wrong,
        "right": mistake.right,
        "line": line and {"file": line.file, "line": line.number, "text": line.text},
    }


def _finite(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None

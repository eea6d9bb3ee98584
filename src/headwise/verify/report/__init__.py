"""The report of a verification as plain data, from which every output format is made.

The file ``report.schema.json`` beside this one is the published schema of the data.
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
"""The version of the schema. Version 3 may gain keys, but no key changes its meaning."""

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
    """Add the CPU time in seconds of each check, by check name, to a report."""
    checks = [{**check, "seconds": seconds.get(check["check"], 0.0)} for check in report["checks"]]
    return {**report, "checks": checks}


def with_forbidden(report: Data, uses: Sequence[Mapping[str, object]]) -> Data:
    """Add the uses of forbidden names to a report; any use makes the target not accepted."""
    return {**report, "accepted": report["accepted"] and not uses, "forbidden": list(uses)}


def unusable(name: str, error: "HeadwiseError") -> Data:
    """Return the report on a target without a verdict: it hangs, crashes or is not recognised."""
    brief = getattr(error, "brief", None)
    short = {} if brief is None else {"brief": both(brief)}
    return {**_head(name, "unusable"), "error": both(error.text), **short}


SOURCE_FILES = (".py", ".ipynb")


def file_and_name(target: str) -> tuple[str, str]:
    """Return the file of a target and the name in that file; empty if the target has none.

    Example:
        >>> [file_and_name(t) for t in ("a.py:Attention", "a.py", "torch.nn.Linear")]
        [('a.py', 'Attention'), ('a.py', ''), ('', '')]
    """
    if target.endswith(SOURCE_FILES):
        return target, ""
    file, _, name = target.rpartition(":")
    return file, name if file else ""


def both(text: Text) -> dict[str, str]:
    """Return a text in English and in Chinese."""
    return {"en": text.en, "zh": text.zh}


def finding_data(finding: "CheckResult") -> Data:
    """Convert the result of one check to data."""
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

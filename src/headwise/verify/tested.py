"""The report of the self-test: which check rejected which mutant."""

from typing import TYPE_CHECKING

from headwise.document import Block, Document, Notice, Paragraph, Table
from headwise.lang import Text, same
from headwise.verify.drawn import figure, result_of
from headwise.verify.report import SCHEMA, Data, finding_data

if TYPE_CHECKING:
    from headwise.verify.gate import SelfTest


def self_test_document(tested: "SelfTest") -> Document:
    """A line for every mutant."""
    rows = []
    for mistake, finding in tested.findings:
        found = finding_data(finding)
        rows.append(
            (
                same(mistake.name),
                same(mistake.step),
                same(finding.check.name),
                result_of(found),
                same(figure(found, "times")),
            )
        )
    head = (
        Text("mutant"),
        Text("step"),
        Text("check that must reject it"),
        Text("result"),
        Text("error / bound"),
    )
    alarms = Paragraph(_idle(tested))
    blocks: list[Block] = [Notice(tested.passed, _verdict(tested)), alarms]
    return Document(Text("verify --self-test"), (*blocks, Table(head, rows)))


def self_test_data(tested: "SelfTest") -> Data:
    """The same as plain data, for JSON."""
    return {
        "schema": SCHEMA,
        "passed": tested.passed,
        "mutants": [
            {"mistake": mistake.name, "step": mistake.step, **finding_data(finding)}
            for mistake, finding in tested.findings
        ],
        "survivors": [mistake.name for mistake in tested.survivors],
        "idle": [check.name for check in tested.idle],
        "false_alarms": [finding_data(finding) for finding in tested.false_alarms],
    }


def _verdict(tested: "SelfTest") -> Text:
    total, left = len(tested.findings), len(tested.survivors)
    if tested.passed:
        return Text("{total} mutants, each rejected by the check that names it", total=total)
    names = ", ".join(mistake.name for mistake in tested.survivors) or "-"
    return Text("{left} of {total} mutants survive: {names}", left=left, total=total, names=names)


def _idle(tested: "SelfTest") -> Text:
    idle = ", ".join(check.name for check in tested.idle) or "-"
    alarms = ", ".join(finding.check.name for finding in tested.false_alarms) or "-"
    count = len(tested.trips)
    return Text(
        "{count} checks. Those that reject no mutant, which are no checks: {idle}. "
        "Those that reject the right attention: {alarms}.",
        count=count,
        idle=idle,
        alarms=alarms,
    )

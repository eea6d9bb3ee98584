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
        Text("mutant", "变异体"),
        Text("step", "步骤"),
        Text("check that must reject it", "应当拒绝它的检查"),
        Text("result", "结果"),
        Text("error / bound", "误差 / 界限"),
    )
    alarms = Paragraph(_idle(tested))
    blocks: list[Block] = [Notice(tested.passed, _verdict(tested)), alarms]
    return Document(Text("verify --self-test", "验证 --self-test"), (*blocks, Table(head, rows)))


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
        return Text(
            f"{total} mutants, each rejected by the check that names it",
            f"{total} 个变异体，每个都被点名的检查拒绝",
        )
    names = ", ".join(mistake.name for mistake in tested.survivors) or "-"
    return Text(
        f"{left} of {total} mutants survive: {names}",
        f"{total} 个变异体中有 {left} 个存活：{names}",
    )


def _idle(tested: "SelfTest") -> Text:
    idle = ", ".join(check.name for check in tested.idle) or "-"
    alarms = ", ".join(finding.check.name for finding in tested.false_alarms) or "-"
    count = len(tested.trips)
    return Text(
        f"{count} checks. Those that reject no mutant, which are no checks: {idle}. "
        f"Those that reject the right attention: {alarms}.",
        f"共 {count} 项检查。没有拒绝任何变异体、因而不算检查的：{idle}。"
        f"误拒正确实现的：{alarms}。",
    )

"""The report of a verification, as a document and as plain data."""

import math

from headwise.document import Block, Code, Document, Heading, Notice, Paragraph, Table
from headwise.lang import Text, same
from headwise.verify.gate import CHECKS, Finding, SelfTest
from headwise.verify.loading import RUNS_CODE
from headwise.verify.mistakes import MISTAKES, Mistake
from headwise.verify.verdict import Report

SCHEMA = 1
"""The version of the data's layout."""

STEP_NAMES = {
    "project": Text("the projections of q, k and v", "q、k、v 的投影"),
    "split": Text("the split into heads", "分头"),
    "group": Text("sharing keys and values among query heads", "查询头共用键和值"),
    "score": Text("the product of queries and keys", "查询与键的乘积"),
    "scale": Text("the scores divided by sqrt(D)", "得分除以 sqrt(D)"),
    "mask": Text("who may attend to whom", "谁可以关注谁"),
    "softmax": Text("the softmax over the keys", "沿键的 softmax"),
    "dropout": Text("weights dropped while training", "训练时丢弃权重"),
    "mix": Text("the weighted sum of the values", "值的加权和"),
    "merge": Text("the merge of the heads", "各头的合并"),
    "output": Text("the output projection", "输出投影"),
}
"""What a person calls each step."""


def document(report: Report) -> Document:
    """The verdict first, then why, then every check."""
    blocks: list[Block] = [Notice(report.accepted, _verdict(report))]
    for group in report.mistakes:
        for mistake in group:
            blocks += _explained(mistake)
    if len(report.mistakes) > 1:
        blocks.append(Paragraph(_AMBIGUOUS))
    if not report.mistakes and any(not finding.passed for finding in report.findings):
        blocks.append(Paragraph(_UNKNOWN))
    blocks += [Heading(Text("Checks", "检查项")), _checks(report)]
    if report.notes:
        blocks.append(Heading(Text("Worth knowing", "值得知道")))
        blocks += [Paragraph(note) for note in report.notes]
    blocks += [Heading(Text("How it was tried", "试验方式")), Paragraph(_how(report))]
    return Document(Text(f"verify {report.name}", f"验证 {report.name}"), tuple(blocks))


def data(report: Report) -> dict[str, object]:
    """The same as plain data, for JSON. A figure that is no finite number is None."""
    return {
        "schema": SCHEMA,
        "target": report.name,
        "accepted": report.accepted,
        "embed_dim": report.embed_dim,
        "heads": report.heads,
        "step": report.step,
        "mistakes": [[_mistake(mistake) for mistake in group] for group in report.mistakes],
        "appeared": sorted(report.appeared),
        "checks": [_finding(finding) for finding in report.findings],
        "not_exercised": [
            *report.conventions.unknown,
            *report.conventions.runner.signature.left,
        ],
        "notes": [_both(note) for note in report.notes],
    }


def self_test_document(tested: SelfTest) -> Document:
    """Which check rejected which mutant."""
    rows = [
        (
            same(mistake.name),
            same(mistake.step),
            same(finding.check.name),
            _result(finding),
            same(_times(finding)),
        )
        for mistake, finding in tested.findings
    ]
    head = (
        Text("mutant", "变异体"),
        Text("step", "步骤"),
        Text("check that must reject it", "应当拒绝它的检查"),
        Text("result", "结果"),
        Text("error / bound", "误差 / 界限"),
    )
    alarms = Paragraph(_idle(tested))
    blocks: list[Block] = [Notice(tested.passed, _self_verdict(tested)), alarms]
    return Document(Text("verify --self-test", "验证 --self-test"), (*blocks, Table(head, rows)))


def self_test_data(tested: SelfTest) -> dict[str, object]:
    """The same as plain data, for JSON."""
    return {
        "schema": SCHEMA,
        "passed": tested.passed,
        "mutants": [
            {"mistake": mistake.name, "step": mistake.step, **_finding(finding)}
            for mistake, finding in tested.findings
        ],
        "survivors": [mistake.name for mistake in tested.survivors],
        "idle": [check.name for check in tested.idle],
        "false_alarms": [_finding(finding) for finding in tested.false_alarms],
    }


_AMBIGUOUS = Text(
    "Each of these alone gives exactly this output; nothing that was tried tells them apart.",
    "其中任何一个单独都能给出完全相同的输出；所做的试验无法区分它们。",
)
_UNKNOWN = Text(
    f"None of the {len(MISTAKES)} known mistakes alone gives this output: not recognised.",
    f"已知的 {len(MISTAKES)} 种错误中，没有一种单独能给出这样的输出：未能识别。",
)


def _verdict(report: Report) -> Text:
    trials = sum(finding.trials for finding in report.findings)
    if report.accepted:
        return Text(
            f"accepted: equal to the oracle and to PyTorch within rounding, in {trials} trials",
            f"通过：在 {trials} 次试验中，与精确结果及 PyTorch 在舍入误差内一致",
        )
    failed = [finding for finding in report.findings if not finding.passed]
    unknown = ", ".join(report.conventions.unknown)
    if not failed and unknown and trials:
        return Text(
            f"accepted WITHOUT its mask: {unknown} was not understood",
            f"仅在不用掩码时通过：未能理解 {unknown}",
        )
    if not failed:
        return Text(
            "not verified: it offers nothing that a check asks for",
            "未能验证：它不支持任何检查所需的调用",
        )
    where = _where(report)
    return Text(
        f"differs: {len(failed)} of {len(report.findings)} checks fail; {where.en}",
        f"不一致：{len(report.findings)} 项检查中有 {len(failed)} 项失败；{where.zh}",
    )


def _where(report: Report) -> Text:
    if report.step is None:
        return Text("at no single step", "无法归于某一步骤")
    name = STEP_NAMES[report.step]
    return Text(
        f"the first step that differs: {report.step} ({name.en})",
        f"首先出现差异的步骤：{report.step}（{name.zh}）",
    )


def _explained(mistake: Mistake) -> list[Block]:
    says = Text(f"{mistake.name}: {mistake.says.en}", f"{mistake.name}：{mistake.says.zh}")
    lines = f"# wrong\n{mistake.wrong}\n# right\n{mistake.right}"
    return [Paragraph(says), Code(lines)]


def _checks(report: Report) -> Table:
    head = (
        Text("check", "检查"),
        Text("what must hold", "应当成立"),
        Text("result", "结果"),
        Text("trials", "次数"),
        Text("error / bound", "误差 / 界限"),
    )
    rows = [
        (
            same(finding.check.name),
            finding.check.question,
            _result(finding),
            same(str(finding.trials)),
            same(_times(finding)),
        )
        for finding in report.findings
    ]
    return Table(head, rows)


def _result(finding: Finding) -> Text:
    if finding.failed:
        return Text(f"fails: {finding.failed}", f"失败：{finding.failed}")
    if not finding.trials:
        return Text("not tried", "未尝试")
    return Text("passes", "通过")


def _times(finding: Finding) -> str:
    if not finding.trials:
        return "-"
    if not math.isfinite(finding.times):
        return "∞" if finding.times > 0 else "NaN"
    return f"{finding.times:.2f}" if finding.times < 1000 else f"{finding.times:.1e}"


def _how(report: Report) -> Text:
    size = f"E = {report.embed_dim}, H = {report.heads}"
    return Text(
        f"{RUNS_CODE.en} The same seeded weights went into the target, the float64 oracle and "
        f"torch.nn.MultiheadAttention, at {size}, in float32. An error of 1 is the bound: twice "
        "that of plain float32 arithmetic, and one part in a million.",
        f"{RUNS_CODE.zh}同一组由种子生成的权重分别放入目标、float64 精确实现和 "
        f"torch.nn.MultiheadAttention，{size}，float32。误差 1 即界限：普通 float32 运算误差的"
        "两倍，外加百万分之一。",
    )


def _self_verdict(tested: SelfTest) -> Text:
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


def _idle(tested: SelfTest) -> Text:
    idle = ", ".join(check.name for check in tested.idle) or "-"
    alarms = ", ".join(finding.check.name for finding in tested.false_alarms) or "-"
    return Text(
        f"{len(CHECKS)} checks. Those that reject no mutant, which are no checks: {idle}. "
        f"Those that reject the right attention: {alarms}.",
        f"共 {len(CHECKS)} 项检查。没有拒绝任何变异体、因而不算检查的：{idle}。"
        f"误拒正确实现的：{alarms}。",
    )


def _mistake(mistake: Mistake) -> dict[str, object]:
    return {
        "name": mistake.name,
        "step": mistake.step,
        "says": _both(mistake.says),
        "wrong": mistake.wrong,
        "right": mistake.right,
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check.name,
        "question": _both(finding.check.question),
        "passed": finding.passed,
        "trials": finding.trials,
        "times": finding.times if math.isfinite(finding.times) else None,
        "failed": finding.failed,
    }


def _both(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}

"""The report of a verification as a document: the verdict first, then why, then every check."""

from collections.abc import Mapping
from typing import Any

from headwise.document import Block, Code, Document, Heading, Notice, Paragraph, Table
from headwise.lang import Text, same
from headwise.verify.adapter import EXAMPLE
from headwise.verify.loading import RUNS_CODE
from headwise.verify.report import Data

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

_AMBIGUOUS = Text(
    "Each of these gives exactly this output; nothing that was tried tells them apart.",
    "其中每一项都能给出完全相同的输出；所做的试验无法区分它们。",
)
_TOGETHER = Text(
    "These mistakes together give exactly this output; no single known one does:",
    "以下错误同时出现时恰好给出这样的输出；没有任何一种已知错误单独能做到：",
)


def document(report: Data) -> Document:
    """The document of a report as `headwise.verify.report.data` makes it."""
    title = Text(f"verify {report['target']}", f"验证 {report['target']}")
    if report["status"] == "unusable":
        return Document(title, (Notice(good=False, text=verdict(report)),))
    blocks: list[Block] = [Notice(report["accepted"], verdict(report))]
    for group in report["mistakes"]:
        if len(group) > 1:
            blocks.append(Paragraph(_TOGETHER))
        for mistake in group:
            blocks += _explained(mistake)
    if len(report["mistakes"]) > 1:
        blocks.append(Paragraph(_AMBIGUOUS))
    if report["not_compared"] is not None:
        blocks += _not_compared(report)
    elif not report["mistakes"] and _failed(report):
        blocks.append(Paragraph(_unknown(report)))
    blocks += _smallest(report)
    blocks += [Heading(Text("Checks", "检查项")), _checks(report)]
    if report["notes"]:
        blocks.append(Heading(Text("Worth knowing", "值得知道")))
        blocks += [Paragraph(text_of(note)) for note in report["notes"]]
    blocks += [Heading(Text("How it was tried", "试验方式")), Paragraph(_how(report))]
    return Document(title, tuple(blocks))


def verdict(report: Data) -> Text:
    """One sentence: accepted, or what differs, or why there is no verdict."""
    if report["status"] == "unusable":
        error = text_of(report["error"])
        return Text(f"not verified: {error.en}", f"未能验证：{error.zh}")
    trials = sum(finding["trials"] for finding in report["checks"])
    unknown = ", ".join(report["not_understood"])
    if report["accepted"]:
        return Text(
            f"accepted: equal to the oracle and to PyTorch within rounding, in {trials} trials",
            f"通过：在 {trials} 次试验中，与精确结果及 PyTorch 在舍入误差内一致",
        )
    if report["status"] == "unproven":
        masks = Text("", "")
        if unknown:
            masks = Text(f", nor was {unknown} understood", f"，也未能理解 {unknown}")
        return Text(
            f"not proven: no check fails, in {trials} trials, but its numbers were not compared"
            f"{masks.en}",
            f"未能证明：{trials} 次试验中没有检查失败，但未能核对其数值{masks.zh}",
        )
    failed = _failed(report)
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
        f"differs: {len(failed)} of {len(report['checks'])} checks fail; {where.en}",
        f"不一致：{len(report['checks'])} 项检查中有 {len(failed)} 项失败；{where.zh}",
    )


def result_of(finding: Data) -> Text:
    """What became of one check, in a few words."""
    if finding["failed"]:
        return Text(f"fails: {finding['failed']}", f"失败：{finding['failed']}")
    return Text("passes", "通过") if finding["trials"] else Text("not tried", "未尝试")


def figure(finding: Data, name: str) -> str:
    """A figure of a check as a person reads it: short, and a dash where there is none."""
    value = finding[name]
    if not finding["trials"]:
        return "-"
    if value is None:
        return "∞" if finding["raised"] else "NaN"
    return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def text_of(both: Mapping[str, Any]) -> Text:
    """A text from its data."""
    return Text(str(both["en"]), str(both["zh"]))


def _failed(report: Data) -> list[Data]:
    return [finding for finding in report["checks"] if not finding["passed"]]


def _not_compared(report: Data) -> list[Block]:
    """Why there was nothing to hold its numbers against, and the way out."""
    why = text_of(report["not_compared"])
    said = Text(
        f"Its numbers were not held against the exact ones: {why.en}",
        f"未能将其数值与精确结果对照：{why.zh}",
    )
    return [Paragraph(said), Code(EXAMPLE)]


def _unknown(report: Data) -> Text:
    known = report["known_mistakes"]
    return Text(
        f"None of the {known} known mistakes, alone or in pairs, gives this output: "
        "not recognised.",
        f"已知的 {known} 种错误，无论单独还是两两同时出现，都不能给出这样的输出：未能识别。",
    )


def _where(report: Data) -> Text:
    step = report["step"]
    if step is None:
        return Text("at no single step", "无法归于某一步骤")
    name = STEP_NAMES[step]
    return Text(
        f"the first step that differs: {step} ({name.en})",
        f"首先出现差异的步骤：{step}（{name.zh}）",
    )


def _explained(mistake: Data) -> list[Block]:
    says, name = text_of(mistake["says"]), mistake["name"]
    blocks: list[Block] = [Paragraph(Text(f"{name}: {says.en}", f"{name}：{says.zh}"))]
    line = mistake["line"]
    if line is not None:
        at = f"{line['file']}:{line['line']}"
        blocks += [
            Paragraph(Text(f"Most likely on this line, {at}:", f"最可能在这一行，{at}：")),
            Code(line["text"]),
        ]
    lines = f"# wrong\n{mistake['wrong']}\n# right\n{mistake['right']}"
    return [*blocks, Code(lines)]


def _smallest(report: Data) -> list[Block]:
    """The smallest failing inputs, each once, with the checks that it fails."""
    failing: dict[str, list[str]] = {}
    for finding in report["checks"]:
        if finding["smallest"] is not None:
            failing.setdefault(finding["smallest"], []).append(finding["check"])
    if not failing:
        return []
    said = Text("The smallest input on which it still fails", "仍会失败的最小输入")
    blocks: list[Block] = [Heading(said)]
    for code, checks in failing.items():
        blocks += [Paragraph(same(", ".join(checks))), Code(code)]
    return blocks


def _checks(report: Data) -> Table:
    head = (
        Text("check", "检查"),
        Text("what must hold", "应当成立"),
        Text("result", "结果"),
        Text("trials", "次数"),
        Text("error / bound", "误差 / 界限"),
        Text("error in roundings", "误差（舍入单位）"),
    )
    rows = [
        (
            same(finding["check"]),
            text_of(finding["question"]),
            result_of(finding),
            same(str(finding["trials"])),
            same(figure(finding, "times")),
            same(figure(finding, "roundings")),
        )
        for finding in report["checks"]
    ]
    return Table(head, rows)


def _how(report: Data) -> Text:
    size = f"E = {report['embed_dim']}, H = {report['heads']}"
    if report["not_compared"] is not None:
        return Text(
            f"{RUNS_CODE.en} It ran with the weights that it was made with, at {size}, in float32, "
            "and was held against what it gives itself for another input, in float64. An error of "
            "1 is the bound: twice that of its own float32 run, and one part in a million.",
            f"{RUNS_CODE.zh}目标使用其自身的权重，{size}，float32；与它自己在 float64 下对另一输入"
            "给出的结果对照。误差 1 即界限：它自己 float32 运算误差的两倍，外加百万分之一。",
        )
    return Text(
        f"{RUNS_CODE.en} The same seeded weights went into the target, the float64 oracle and "
        f"torch.nn.MultiheadAttention, at {size}, in float32. An error of 1 is the bound: twice "
        "that of plain float32 arithmetic, and one part in a million. One rounding is the spacing "
        "of float32 numbers at the largest exact value.",
        f"{RUNS_CODE.zh}同一组由种子生成的权重分别放入目标、float64 精确实现和 "
        f"torch.nn.MultiheadAttention，{size}，float32。误差 1 即界限：普通 float32 运算误差的"
        "两倍，外加百万分之一。一个舍入单位是最大精确值处 float32 数的间距。",
    )

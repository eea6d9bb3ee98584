"""Convert the report on one target, or the result of the self-test, to a document."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwise.document import Block, Code, Document, Heading, Notice, Paragraph, Table
from headwise.lang import Text, Translated, joined, same
from headwise.verify.report import SCHEMA, Data, finding_data
from headwise.verify.target import EXAMPLE, RUNS_CODE

if TYPE_CHECKING:
    from headwise.verify.checks.mutation_testing import SelfTest

STEP_NAMES = {
    "project": Text("the projections of q, k and v"),
    "split": Text("the split into heads"),
    "group": Text("the sharing of key/value heads"),
    "score": Text("the product of queries and keys"),
    "scale": Text("the scores divided by sqrt(D)"),
    "mask": Text("the mask"),
    "softmax": Text("the softmax over the keys"),
    "dropout": Text("the dropout of the attention weights"),
    "mix": Text("the weighted sum of the values"),
    "merge": Text("the merge of the heads"),
    "output": Text("the output projection"),
}

_AMBIGUOUS = Text("Each of these mistakes gives exactly this output; no trial tells them apart.")
_TOGETHER = Text("Together, these mistakes give exactly this output; no single known mistake does:")


def document(report: Data) -> Document:
    """Convert a report, as returned by `headwise.verify.report.data`, to a document."""
    title = Text("verify {target}", target=report["target"])
    if report["status"] == "unusable":
        return Document(title, (Notice(good=False, text=verdict(report)),))
    uses = [Notice(good=False, text=text) for text in forbidden_uses(report)]
    blocks: list[Block] = [*uses, Notice(report["status"] == "accepted", verdict(report))]
    for group in report["mistakes"]:
        if len(group) > 1:
            blocks.append(Paragraph(_TOGETHER))
        for mistake in group:
            blocks += explained(mistake)
    if len(report["mistakes"]) > 1:
        blocks.append(Paragraph(_AMBIGUOUS))
    if report["not_compared"] is not None:
        why = text_of(report["not_compared"])
        message = Text("The output was not compared with the oracle's: {why}", why=why)
        blocks += [Paragraph(message), Code(EXAMPLE)]
    elif not report["mistakes"] and _failed(report):
        message = Text(
            "The mistake is not recognised: none of the {known} known mistakes, alone or in "
            "pairs, gives this output.",
            known=report["known_mistakes"],
        )
        blocks.append(Paragraph(message))
    blocks += _smallest(report)
    blocks += [Heading(Text("Checks")), _checks(report)]
    if report["notes"]:
        blocks.append(Heading(Text("Notes")))
        blocks += [Paragraph(text_of(note)) for note in report["notes"]]
    blocks += [Heading(Text("Method")), Paragraph(_how(report))]
    return Document(title, tuple(blocks))


def verdict(report: Data) -> Text:
    """The verdict in one sentence, with the conventions that were found."""
    if report["status"] == "unusable":
        error = text_of(report["error"])
        return Text("not verified: {error}", error=error)
    short = _verdict_alone(report)
    found = [text_of(words) for words in report.get("conventions", ())]
    if not found:
        return short
    joined = Translated("; ".join(t.en for t in found), "；".join(t.zh for t in found))
    return Text("{verdict}. Conventions: {conventions}", verdict=short, conventions=joined)


def _verdict_alone(report: Data) -> Text:
    trials = sum(finding["trials"] for finding in report["checks"])
    unknown = ", ".join(report["not_understood"])
    if report["status"] == "accepted":
        return Text(
            "accepted: equal to the oracle and to PyTorch within rounding, in {trials} trials",
            trials=trials,
        )
    if report["status"] == "unproven":
        return _unproven(report, trials, unknown)
    failed, checks = len(_failed(report)), len(report["checks"])
    where = Text("at no single step")
    if report["step"] is not None:
        step = report["step"]
        name = STEP_NAMES[step]
        where = Text("the first step that differs: {step} ({name})", step=step, name=name)
    return Text(
        "differs: {failed} of {checks} checks fail; {where}",
        failed=failed,
        checks=checks,
        where=where,
    )


def forbidden_uses(report: Data) -> list[Text]:
    """Return one sentence for every use of a forbidden name."""
    return [_forbidden_use(use) for use in report.get("forbidden", ())]


def _forbidden_use(use: Data) -> Text:
    name, place, line = use["name"], f"{use['file']}:{use['line']}", use["text"]
    if use["how"] == "target":
        return Text("is, or is derived from, {name}, which is forbidden", name=name)
    if use["how"] == "runs":
        return Text(
            "uses {name}, which is forbidden, at {place}: {line}", name=name, place=place, line=line
        )
    return Text(
        "mentions {name}, which is forbidden, at {place}, but did not run it: {line}",
        name=name,
        place=place,
        line=line,
    )


def _unproven(report: Data, trials: int, unknown: str) -> Text:
    if not trials:
        return Text("not proven: no check applies to it")
    if report["not_compared"] is not None:
        note = Text(", and {unknown} was not understood", unknown=unknown)
        return Text(
            "not proven: no check fails, in {trials} trials, but its numbers were not "
            "compared{masks}",
            trials=trials,
            masks=note if unknown else Text(""),
        )
    return Text(
        "not proven: equal to the oracle without a mask, but {unknown} was not understood; say "
        "what True means with --mask-true, or write an adapter",
        unknown=unknown,
    )


def result_of(finding: Data) -> Text:
    """Return the result of a check in one line."""
    if finding["failed"]:
        return Text("fails: {failed}", failed=finding["failed"])
    return Text("passes") if finding["trials"] else Text("not tried")


def failure_text(finding: Data, report: Data) -> Text:
    """Explain a failed check: its question, its result, the mistakes and the smallest input."""
    parts = [text_of(finding["question"]), result_of(finding)]
    for group in report["mistakes"]:
        parts += [mistake_text(mistake) for mistake in group]
    parts += [same(finding["smallest"])] if finding["smallest"] else []
    return joined(same("\n\n"), parts)


def mistake_text(mistake: Data) -> Text:
    """Describe a mistake, followed by the correct code."""
    return Text(
        "{name}: {description}\n{right}",
        name=mistake["name"],
        description=text_of(mistake["says"]),
        right=mistake["right"],
    )


def figure(finding: Data, name: str) -> str:
    """Format one number of a check's result; a dash if the check had no trial."""
    value = finding[name]
    if not finding["trials"]:
        return "-"
    if value is None:
        return "∞" if finding["raised"] else "NaN"
    return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def text_of(both: Mapping[str, Any]) -> Text:
    """Convert a text from data, with the keys ``en`` and ``zh``, back to a `Text`."""
    return Translated(str(both["en"]), str(both["zh"]))


def _failed(report: Data) -> list[Data]:
    return [finding for finding in report["checks"] if not finding["passed"]]


def explained(mistake: Data) -> list[Block]:
    """Describe a mistake, with its most likely line and the wrong and the correct code."""
    name, description, line = mistake["name"], text_of(mistake["says"]), mistake["line"]
    blocks: list[Block] = [
        Paragraph(Text("{name}: {description}", name=name, description=description))
    ]
    if line is not None:
        location = f"{line['file']}:{line['line']}"
        message = Text("Most likely on this line, {location}:", location=location)
        blocks += [Paragraph(message), Code(line["text"])]
    return [*blocks, Code(f"# wrong\n{mistake['wrong']}\n# right\n{mistake['right']}")]


def _smallest(report: Data) -> list[Block]:
    """Show each smallest failing input once, below the names of the checks that fail on it."""
    failing: dict[str, list[str]] = {}
    for finding in report["checks"]:
        if finding["smallest"] is not None:
            failing.setdefault(finding["smallest"], []).append(finding["check"])
    if not failing:
        return []
    blocks: list[Block] = [Heading(Text("The smallest failing input"))]
    for code, checks in failing.items():
        blocks += [Paragraph(same(", ".join(checks))), Code(code)]
    return blocks


def _checks(report: Data) -> Table:
    names = (Text("check"), Text("what must hold"), Text("result"), Text("trials"))
    head = (*names, Text("error / tolerance"), Text("error in rounding units"))
    rows = []
    for finding in report["checks"]:
        words = (same(finding["check"]), text_of(finding["question"]), result_of(finding))
        figures = (str(finding["trials"]), figure(finding, "times"), figure(finding, "roundings"))
        rows.append((*words, *map(same, figures)))
    return Table(head, rows)


def _how(report: Data) -> Text:
    size = f"E = {report['embed_dim']}, H = {report['heads']}"
    if report["not_compared"] is not None:
        return Text(
            "{runs_code} The target ran with its own weights, at {size}, in float32, and was "
            "compared with its own float64 outputs for related inputs. The tolerance is twice the "
            "error of its float32 run plus one millionth of the largest exact value.",
            runs_code=RUNS_CODE,
            size=size,
        )
    return Text(
        "{runs_code} The target and torch.nn.MultiheadAttention ran in float32, the oracle in "
        "float64, all with the same seeded weights, at {size}. The tolerance is twice the error of "
        "plain float32 arithmetic plus one millionth of the largest exact value. One rounding unit "
        "is the spacing of float32 numbers at the largest exact value.",
        runs_code=RUNS_CODE,
        size=size,
    )


def self_test_document(tested: "SelfTest") -> Document:
    """Convert the self-test to a document, with one table row per mutant."""
    rows = []
    for mistake, finding in tested.findings:
        result = finding_data(finding)
        names = (same(mistake.name), same(mistake.step), same(finding.check.name))
        rows.append((*names, result_of(result), same(figure(result, "times"))))
    columns = (Text("mutant"), Text("step"), Text("check that must reject it"))
    head = (*columns, Text("result"), Text("error / tolerance"))

    blocks = (Notice(tested.passed, _verdict(tested)), Paragraph(_idle(tested)), Table(head, rows))
    return Document(Text("verify --self-test"), blocks)


def self_test_data(tested: "SelfTest") -> Data:
    """Convert the self-test to plain data for JSON."""
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
        return Text("{total} mutants, each rejected by the check written for it", total=total)
    names = ", ".join(mistake.name for mistake in tested.survivors) or "-"
    return Text("{left} of {total} mutants survive: {names}", left=left, total=total, names=names)


def _idle(tested: "SelfTest") -> Text:
    return Text(
        "{count} checks. Checks that reject no mutant: {idle}. Checks that reject the correct "
        "attention: {alarms}.",
        count=len(tested.trips),
        idle=", ".join(check.name for check in tested.idle) or "-",
        alarms=", ".join(finding.check.name for finding in tested.false_alarms) or "-",
    )

"""What a check found, as a document for people and as JSON for programs."""

import json

from headwise.check.findings import Report
from headwise.document import Document, Heading, Notice, Paragraph, Table
from headwise.document.blocks import Block
from headwise.lang import Text, same

FORMAT = "headwise.check/1"

TITLE = Text("Check of a worked example")


def verdict(report: Report) -> Text:
    """The result in one sentence."""
    wrong, checked, left = len(report.findings), report.checked, report.open
    en = f"{checked} numbers checked" + (f", {left} could not be matched" if left else "")
    zh = f"共检查 {checked} 个数" + (f"，{left} 个无法对应" if left else "")
    if wrong:
        return Text(
            f"{report.source}: {wrong} wrong, {en}", f"{report.source}：{wrong} 处错误，{zh}"
        )
    if not checked:
        return Text("{source}: nothing was checked", source=report.source)
    return Text(f"{report.source}: nothing wrong, {en}", f"{report.source}：没有错误，{zh}")


def document(report: Report) -> Document:
    """The report for a person: verdict, what is wrong, what was not checked, what was assumed."""
    blocks: list[Block] = [Notice(bool(report.checked) and not report.findings, verdict(report))]
    if report.findings:
        blocks += [Heading(Text("Wrong")), _findings(report)]
    if report.unmatched:
        blocks += [Heading(Text("Could not match")), _unmatched(report)]
    blocks.append(Heading(Text("Taken as given")))
    blocks += [Paragraph(note) for note in report.notes]
    return Document(TITLE, tuple(blocks))


def _findings(report: Report) -> Table:
    head = (Text("line"), Text("printed"), Text("right value"), Text("what it is"))
    rows = [
        (same(str(found.line)), same(found.printed), same(found.right), found.what)
        for found in report.findings
    ]
    return Table(head, tuple(rows))


def _unmatched(report: Report) -> Table:
    head = (Text("line"), Text("printed"), Text("why"))
    rows = [(same(str(each.line)), same(each.text), each.why) for each in report.unmatched]
    return Table(head, tuple(rows))


def as_json(report: Report) -> str:
    """The report as JSON: "format", "source", "wrong", "findings", "unmatched", "notes"."""
    content = {
        "format": FORMAT,
        "source": report.source,
        "wrong": len(report.findings),
        "checked": report.checked,
        "findings": [
            {
                "line": found.line,
                "printed": found.printed,
                "right": found.right,
                "what": _both(found.what),
            }
            for found in report.findings
        ],
        "unmatched": [
            {"line": each.line, "printed": each.text, "why": _both(each.why)}
            for each in report.unmatched
        ],
        "notes": [_both(note) for note in report.notes],
    }
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _both(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}

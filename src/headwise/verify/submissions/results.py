"""The results for many targets, one row per target: as data, as CSV and as a document."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwise import __version__
from headwise.document import Block, Code, Document, Heading, Notice, Paragraph, Table
from headwise.document.csv_text import Column, as_csv
from headwise.lang import Lang, Text, same
from headwise.verify.report import Data, file_and_name
from headwise.verify.report.report_document import explained, forbidden_uses, text_of, verdict

OUTCOMES = {
    "accepted": Text("accepted"),
    "differs": Text("differs"),
    "forbidden": Text("uses a forbidden name"),
    "unproven": Text("not proven"),
    "unusable": Text("no verdict"),
}

COLUMNS = (
    *("target", "file", "name", "status", "accepted", "step", "mistakes", "line"),
    *("failed_checks", "forbidden", "verdict"),
)
"""The columns of the table. The function `mistakes` defines the format of that column."""


@dataclass(frozen=True)
class Results:
    """The results of `verify_all`.

    Attributes:
        reports: one report per target, as in `headwise.verify.report.data`. A file that has no
            attention or does not load has one report with the status "unusable".
        searches: for each searched file, by file name, the result of `attentions` with `found`,
            `refused` and `others`.
    """

    reports: tuple[Data, ...]
    searches: Mapping[str, Data] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether every target is accepted."""
        return all(report["accepted"] for report in self.reports)

    @property
    def counts(self) -> dict[str, int]:
        """The number of targets for each outcome."""
        outcomes = [outcome(report) for report in self.reports]
        return {name: outcomes.count(name) for name in OUTCOMES}

    def rows(self, lang: Lang = "en") -> list[dict[str, str | int]]:
        """Return one row per target, with the entries of `COLUMNS`."""
        return [_row(report, lang) for report in self.reports]

    def csv(self, lang: Lang = "en") -> str:
        """Return the rows as CSV, without times, so that equal runs give equal files."""
        rows = self.rows(lang)
        columns: dict[str, Column] = {name: [row[name] for row in rows] for name in COLUMNS}
        return as_csv(columns)

    def data(self) -> dict[str, Any]:
        """Return the results as data for JSON."""
        return {
            "schema": "headwise.verify_all/1",
            "headwise": __version__,
            "counts": self.counts,
            "searches": dict(self.searches),
            "targets": list(self.reports),
        }

    def document(self) -> Document:
        """Show the table, then the mistake of each target that is not accepted."""
        shown = {**self.counts, "total": len(self.reports)}
        summary = Text(
            "{total} targets: {accepted} accepted, {differs} differ, {forbidden} use a "
            "forbidden name, {unproven} not proven, {unusable} without a verdict",
            **shown,
        )
        blocks: list[Block] = [Notice(self.accepted, summary), _table(self.reports)]
        for report in self.reports:
            if not report["accepted"]:
                blocks += _section(report)
        return Document(Text("verify {count} targets", count=len(self.reports)), tuple(blocks))

    def _repr_html_(self) -> str | None:
        from headwise.verify.report.notebook import in_notebook

        return in_notebook(self.document())


def _row(report: Data, lang: Lang) -> dict[str, str | int]:
    target = report["target"]
    path, name = file_and_name(target)
    lines = [m["line"] for group in report.get("mistakes", ()) for m in group if m["line"]]
    uses = report.get("forbidden", ())
    return {
        "target": target,
        "file": path,
        "name": name,
        "status": report["status"],
        "accepted": "yes" if report["accepted"] else "no",
        "step": report.get("step") or "",
        "mistakes": mistakes(report),
        "line": lines[0]["line"] if lines else "",
        "failed_checks": " ".join(c["check"] for c in report.get("checks", ()) if not c["passed"]),
        "forbidden": " ".join(dict.fromkeys(str(use["name"]) for use in uses)),
        "verdict": " ".join(_in_brief(report).to(lang).split()),
    }


def _in_brief(report: Data) -> Text:
    """Return the verdict without the line on which a target was stopped, as that line varies."""
    if "brief" in report:
        return Text("not verified: {error}", error=text_of(report["brief"]))
    return verdict(report)


def outcome(report: Data) -> str:
    """Return the status of a report, or "forbidden" if the target uses a forbidden name."""
    return "forbidden" if report.get("forbidden") else str(report["status"])


def mistakes(report: Data) -> str:
    """Join the names of the mistakes: "a + b" for two together, "a | b" for alternatives."""
    groups = (" + ".join(m["name"] for m in group) for group in report.get("mistakes", ()))
    return " | ".join(groups)


def _table(reports: tuple[Data, ...]) -> Table:
    head = (Text("target"), Text("result"), Text("first step that differs"), Text("mistake"))
    rows = []
    for report in reports:
        words = (report.get("step") or "", mistakes(report))
        rows.append((same(report["target"]), OUTCOMES[outcome(report)], *map(same, words)))
    return Table(head, rows)


def _section(report: Data) -> list[Block]:
    blocks: list[Block] = [Heading(same(report["target"]), 3)]
    blocks += [Notice(good=False, text=text) for text in forbidden_uses(report)]
    if not report.get("forbidden") or report["status"] != "accepted":
        blocks.append(Paragraph(verdict(report)))
    for group in report.get("mistakes", ())[:1]:
        for mistake in group:
            blocks += explained(mistake)
    why = report.get("not_compared")
    if why is not None:
        blocks.append(Paragraph(text_of(why)))
    smallest = [c["smallest"] for c in report.get("checks", ()) if c["smallest"]]
    return blocks + [Code(code) for code in smallest[:1]]

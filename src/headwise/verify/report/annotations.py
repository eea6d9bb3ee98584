"""Write reports as annotations of GitHub Actions, and find a target in its source file."""

import ast
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from headwise.document.text_format import clean
from headwise.lang import Lang
from headwise.verify.report import Data, file_and_name
from headwise.verify.report.report_document import forbidden_uses, mistake_text, verdict

LEVELS = {"accepted": "notice", "differs": "error", "unproven": "warning", "unusable": "warning"}

LARGEST = 4 << 20  # only this many bytes of a file are searched for a definition


def annotations(reports: Sequence[Data], lang: Lang = "en") -> str:
    """Return one workflow command per target, and one per use of a forbidden name.

    Source: GitHub Actions, "Workflow commands": ``::error file=,line=,title=::message``.
    """
    return "\n".join(line for report in reports for line in _lines(report, lang)) + "\n"


def _lines(report: Data, lang: Lang) -> Iterator[str]:
    file, line = place(report)
    for use, text in zip(report.get("forbidden", ()), forbidden_uses(report), strict=True):
        yield _command("error", file, use["line"] or line, report, text.to(lang))
    if report.get("forbidden") and report["status"] == "accepted":
        return
    parts = [verdict(report).to(lang)]
    for group in report.get("mistakes", ()):
        parts += [mistake_text(mistake).to(lang) for mistake in group]
    yield _command(LEVELS[report["status"]], file, line, report, "\n".join(parts))


def _command(level: str, file: str, line: int, report: Data, message: str) -> str:
    title = f"headwise verify {report['target']}"
    properties = {"file": file, "line": str(line) if file and line else "", "title": title}
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{level} {given}::{_data(message)}"


def _data(text: str) -> str:
    kept = "\n".join(clean(line) for line in text.splitlines())
    return kept.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def place(report: Data) -> tuple[str, int]:
    """Return the relative path of a target's file, and the line of its mistake or definition.

    The path is empty for ``package.Name``; the line is 0 if it was not found.
    """
    file, name = file_and_name(report["target"])
    if not file:
        return "", 0
    for group in report.get("mistakes", ()):
        for mistake in group:
            line = mistake["line"]
            if line and os.path.realpath(line["file"]) == os.path.realpath(file):
                return relative(file), int(line["line"])
    return relative(file), _defined_at(file, name)


def relative(file: str) -> str:
    """Return the path relative to the current folder, if the file is inside that folder."""
    path, here = Path(file).resolve(), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else file


def _defined_at(file: str, name: str) -> int:
    """Return the line of a top-level class or function; 0 if the file does not define it."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        with Path(file).open("rb") as stream:
            body = ast.parse(stream.read(LARGEST)).body
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return node.lineno
    return 0

"""Validate the JSON report of a verification, and write reports as JUnit XML."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from headwise.lang import Lang, Text
from headwise.verify.report import Data
from headwise.verify.report.annotations import place
from headwise.verify.report.report_document import (
    failure_text,
    forbidden_uses,
    result_of,
    text_of,
    verdict,
)

Schema = Mapping[str, Any]

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
"""The Python types of each JSON type. `_is_type` excludes bool, which is an int in Python."""

QUIET = ("$schema", "$defs", "title", "description")  # keywords that state no rule


def schema() -> dict[str, Any]:
    """Return the JSON schema of a report.

    Example:
        >>> schema()["title"]
        'The report of headwise verify'
    """
    file = files("headwise.verify.report").joinpath("report.schema.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def faults(value: object, whole: Schema | None = None) -> list[str]:
    """List the violations of a schema, by default the report schema; empty if there are none.

    Example:
        >>> faults({"schema": 3})[0]
        '$: headwise is missing'
    """
    whole = schema() if whole is None else whole
    return list(_faults(value, whole, "$", whole))


def _faults(value: object, rules: Schema, at: str, whole: Schema) -> Iterator[str]:
    below = partial(_faults, whole=whole)
    for word, rule in rules.items():
        if word in _OF_VALUE:
            holds, expected = _OF_VALUE[word]
            if not holds(value, rule):
                yield f"{at}: {expected(rule)}"
        elif word == "type":
            yield from _type(value, rule, at)
        elif word == "$ref":
            yield from below(value, whole["$defs"][rule.rpartition("/")[2]], at)
        elif word not in QUIET:
            yield from _OF_PARTS[word](value, rule, at, below, rules)


Below = Callable[[object, Schema, str], Iterator[str]]


def _is_type(value: object, word: str) -> bool:
    return isinstance(value, TYPES[word]) and (word == "boolean" or not isinstance(value, bool))


def _type(value: object, rule: Any, at: str) -> Iterator[str]:
    words = [rule] if isinstance(rule, str) else rule
    if not any(_is_type(value, word) for word in words):
        yield f"{at}: expected {' or '.join(words)}, got {type(value).__name__}"


def _required(value: object, rule: Any, at: str, _below: Below, _rules: Schema) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{at}: {name} is missing" for name in rule if name not in value)


def _properties(value: object, rule: Any, at: str, below: Below, _rules: Schema) -> Iterator[str]:
    if isinstance(value, dict):
        for name in rule:
            if name in value:
                yield from below(value[name], rule[name], f"{at}.{name}")


def _additional(value: object, rule: Any, at: str, _below: Below, rules: Schema) -> Iterator[str]:
    if isinstance(value, dict) and rule is False:
        others = (name for name in value if name not in rules["properties"])
        yield from (f"{at}: {name} is not expected" for name in others)


def _items(value: object, rule: Any, at: str, below: Below, _rules: Schema) -> Iterator[str]:
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from below(item, rule, f"{at}[{i}]")


def _one_of(value: object, rule: Any, at: str, below: Below, _rules: Schema) -> Iterator[str]:
    result = [list(below(value, rules, at)) for rules in rule]
    if sum(not item for item in result) != 1:
        yield min(result, key=len)[0] if all(result) else f"{at}: matches more than one schema"


_OF_PARTS: dict[str, Callable[..., Iterator[str]]] = {
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "oneOf": _one_of,
}
"""For each keyword about the parts of a value, the function that yields their violations."""


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


_OF_VALUE: dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any], str]]] = {
    "const": (_same, lambda rule: f"expected {rule!r}"),
    "enum": (
        lambda value, rule: any(_same(value, item) for item in rule),
        lambda rule: f"expected one of {rule}",
    ),
    "minimum": (
        lambda value, rule: not isinstance(value, int | float) or value >= rule,
        lambda rule: f"expected at least {rule}",
    ),
    "minItems": (
        lambda value, rule: not isinstance(value, list) or len(value) >= rule,
        lambda rule: f"expected at least {rule} items",
    ),
}
"""For each keyword about a whole value: whether the value satisfies it, and what it expects."""


FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that XML forbids even when escaped."""


def junit(reports: Sequence[Data], lang: Lang = "en") -> str:
    """Return a JUnit XML document with one test suite per target.

    The times are the CPU seconds of the checks, or 0 if they were not measured.

    Args:
        reports: the reports that `headwise.verify.report.data` or `unusable` returned.
        lang: the language of the messages.

    Source: the format that Jenkins, GitLab and pytest share: testsuites/testsuite/testcase with
    a failure, error or skipped element inside.
    """
    suites = [_cases(report, lang) for report in reports]
    figures = _figures([case for cases in suites for case in cases], reports)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites name="headwise verify" {figures}>')
    for report, cases in zip(reports, suites, strict=True):
        head = f"name={_quoted(report['target'])}{_of_file(report)} {_figures(cases, [report])}"
        lines += [f"<testsuite {head}>", *cases, "</testsuite>"]
    return "\n".join((*lines, "</testsuites>")) + "\n"


def _figures(cases: list[str], reports: Sequence[Data]) -> str:
    tags = {"failures": "<failure", "errors": "<error", "skipped": "<skipped"}
    counts = {name: sum(tag in case for case in cases) for name, tag in tags.items()}
    counts = {"tests": len(cases), **counts}
    checks = [check for report in reports for check in report.get("checks", ())]
    seconds = sum(check.get("seconds", 0.0) for check in checks)
    return " ".join(f'{name}="{n}"' for name, n in counts.items()) + f' time="{seconds:.3f}"'


def _of_file(report: Data) -> str:
    """Return the XML attribute with the target's file; empty for ``package.Name``."""
    file, _ = place(report)
    return f" file={_quoted(file)}" if file else ""


def _cases(report: Data, lang: Lang) -> list[str]:
    file, line = place(report)
    where = f" file={_quoted(file)}" if file else ""
    case = partial(_case, report["target"], f'{where} line="{line}"' if file and line else where)
    uses = [_inside("failure", text.to(lang)) for text in forbidden_uses(report)]
    cases = [
        case(f"forbidden {use['name']}", inside)
        for use, inside in zip(report.get("forbidden", ()), uses, strict=True)
    ]
    if report["status"] == "unusable":
        return [*cases, case("verify", _inside("error", verdict(report).to(lang)))]
    cases += [
        case(check["check"], _outcome(check, report, lang), check.get("seconds", 0.0))
        for check in report["checks"]
    ]
    unknown = _inside("failure", Text("this mask argument was not understood").to(lang))
    cases += [case(f"mask argument {argument}", unknown) for argument in report["not_understood"]]
    if report["not_compared"] is not None:
        message = text_of(report["not_compared"]).to(lang)
        cases.append(case("numbers", _inside("error", message)))
    return cases


def _outcome(check: Data, report: Data, lang: Lang) -> str:
    if check["passed"]:
        return "" if check["trials"] else "<skipped/>"
    kind = "error" if check["raised"] else "failure"
    return _inside(kind, result_of(check).to(lang), failure_text(check, report).to(lang))


def _case(target: str, where: str, name: str, inside: str, seconds: float = 0.0) -> str:
    head = f"<testcase classname={_quoted(target)} name={_quoted(name)}{where}"
    head += f' time="{seconds:.3f}"'
    return f"{head}>{inside}</testcase>" if inside else f"{head}/>"


def _inside(kind: str, message: str, body: str | None = None) -> str:
    text = escape(_allowed(message if body is None else body))
    return f'<{kind} message={_quoted(message)} type="headwise">{text}</{kind}>'


def _quoted(text: str) -> str:
    return quoteattr(_allowed(" ".join(text.split())))


def _allowed(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)

"""The report of a verification as JSON with its schema, and as JUnit XML."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from headwise.lang import Lang, Text
from headwise.verify.report import Data
from headwise.verify.report.report_document import result_of, text_of, verdict

Schema = Mapping[str, Any]

KINDS: dict[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
}
"""What each word for a type means."""

QUIET = ("$schema", "$defs", "title", "description")
"""Words that ask for nothing."""


def schema() -> dict[str, Any]:
    """The schema of a report.

    Example:
        >>> schema()["title"]
        'The report of headwise verify'
    """
    text = (
        files("headwise.verify.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    )
    return dict(json.loads(text))


def faults(value: object, whole: Schema | None = None) -> list[str]:
    """The violations of a schema; empty where the data is valid.

    Args:
        value: the data.
        whole: another schema than that of a report.

    Example:
        >>> faults({"schema": 3})[0]
        '$: headwise is missing'
    """
    whole = schema() if whole is None else whole
    return list(_faults(value, whole, "$", whole))


def _faults(value: object, rules: Schema, at: str, whole: Schema) -> Iterator[str]:
    for word, rule in rules.items():
        if word not in QUIET:
            yield from _WORDS[word](value, rule, at, partial(_faults, whole=whole), rules, whole)


Below = Callable[[object, Schema, str], Iterator[str]]


def _type(value: object, rule: Any, at: str, *_: object) -> Iterator[str]:
    words = [rule] if isinstance(rule, str) else rule
    if not any(KINDS[word](value) for word in words):
        yield f"{at}: expected {' or '.join(words)}, got {type(value).__name__}"


def _const(value: object, rule: Any, at: str, *_: object) -> Iterator[str]:
    if type(value) is not type(rule) or value != rule:
        yield f"{at}: expected {rule!r}"


def _enum(value: object, rule: Any, at: str, *_: object) -> Iterator[str]:
    if not any(type(value) is type(item) and value == item for item in rule):
        yield f"{at}: expected one of {rule}"


def _minimum(value: object, rule: Any, at: str, *_: object) -> Iterator[str]:
    if isinstance(value, int | float) and not value >= rule:
        yield f"{at}: expected at least {rule}"


def _min_items(value: object, rule: Any, at: str, *_: object) -> Iterator[str]:
    if isinstance(value, list) and len(value) < rule:
        yield f"{at}: expected {rule} items at least"


def _required(value: object, rule: Any, at: str, *_: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{at}: {name} is missing" for name in rule if name not in value)


def _properties(value: object, rule: Any, at: str, below: Below, *_: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, rules in rule.items():
            if name in value:
                yield from below(value[name], rules, f"{at}.{name}")


def _additional(
    value: object, rule: Any, at: str, below: Below, rules: Schema, whole: Schema
) -> Iterator[str]:
    del below, whole
    if isinstance(value, dict) and rule is False:
        others = [str(name) for name in value if name not in rules["properties"]]
        yield from (f"{at}: {name} is not expected" for name in others)


def _items(value: object, rule: Any, at: str, below: Below, *_: object) -> Iterator[str]:
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from below(item, rule, f"{at}[{i}]")


def _one_of(value: object, rule: Any, at: str, below: Below, *_: object) -> Iterator[str]:
    result = [list(below(value, rules, at)) for rules in rule]
    if sum(not item for item in result) != 1:
        yield min(result, key=len)[0] if all(result) else f"{at}: fits more than one shape"


def _ref(
    value: object, rule: Any, at: str, below: Below, rules: Schema, whole: Schema
) -> Iterator[str]:
    del rules
    yield from below(value, whole["$defs"][rule.rpartition("/")[2]], at)


_WORDS: dict[str, Callable[..., Iterator[str]]] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "minimum": _minimum,
    "minItems": _min_items,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "oneOf": _one_of,
    "$ref": _ref,
}


FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML document may hold, not even escaped."""


def junit(report: Data, lang: Lang = "en") -> str:
    """A whole XML document.

    Args:
        report: as `headwise.verify.report.data` or `unusable` makes it.
        lang: the language of its sentences.

    Source: the shape that Jenkins, GitLab and pytest share: testsuites/testsuite/testcase with
    failure, error or skipped inside.
    """
    cases = _cases(report, lang)
    counts = {
        "tests": len(cases),
        "failures": sum("<failure" in case for case in cases),
        "errors": sum("<error" in case for case in cases),
        "skipped": sum("<skipped" in case for case in cases),
    }
    figures = " ".join(f'{name}="{count}"' for name, count in counts.items())
    suite = f'<testsuite name={_quoted(report["target"])} {figures} time="0">'
    whole = f'<testsuites name="headwise verify" {figures} time="0">'
    return (
        "\n".join(('<?xml version="1.0" encoding="UTF-8"?>', whole, suite, *cases, "</testsuite>"))
        + "\n</testsuites>\n"
    )


def _cases(report: Data, lang: Lang) -> list[str]:
    if report["status"] == "unusable":
        message = verdict(report).to(lang)
        return [_case(report, "verify", _inside("error", message, message))]
    cases = [
        _case(report, check["check"], _outcome(check, report, lang)) for check in report["checks"]
    ]
    for argument in report["not_understood"]:
        message = Text("how it takes a mask was not understood").to(lang)
        cases.append(
            _case(report, f"mask argument {argument}", _inside("failure", message, message))
        )
    if report["not_compared"] is not None:
        message = text_of(report["not_compared"]).to(lang)
        cases.append(_case(report, "numbers", _inside("error", message, message)))
    return cases


def _outcome(check: Data, report: Data, lang: Lang) -> str:
    if check["passed"]:
        return "" if check["trials"] else "<skipped/>"
    question = text_of(check["question"]).to(lang)
    lines = [question, result_of(check).to(lang)]
    for group in report["mistakes"]:
        lines += [f"{m['name']}: {text_of(m['says']).to(lang)}\n{m['right']}" for m in group]
    lines += [check["smallest"]] if check["smallest"] else []
    kind = "error" if check["raised"] else "failure"
    return _inside(kind, result_of(check).to(lang), "\n\n".join(lines))


def _case(report: Data, name: str, inside: str) -> str:
    head = f'<testcase classname={_quoted(report["target"])} name={_quoted(name)} time="0"'
    return f"{head}>{inside}</testcase>" if inside else f"{head}/>"


def _inside(kind: str, message: str, body: str) -> str:
    return f'<{kind} message={_quoted(message)} type="headwise">{_text(body)}</{kind}>'


def _quoted(text: str) -> str:
    return quoteattr(_allowed(" ".join(text.split())))


def _text(text: str) -> str:
    return escape(_allowed(text))


def _allowed(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)

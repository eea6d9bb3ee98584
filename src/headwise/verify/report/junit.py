"""The report of a verification as JUnit XML, which the servers of continuous integration read.

One suite for the target, one case for every check: a check that fails is a failure, a check in
which the target raised is an error, a check that the target does not offer is skipped. A target
that could not be verified is one case with an error.
"""

import re
from xml.sax.saxutils import escape, quoteattr

from headwise.lang import Lang, Text
from headwise.verify.report import Data
from headwise.verify.report.report_document import result_of, text_of, verdict

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

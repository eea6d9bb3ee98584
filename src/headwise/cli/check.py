"""``headwise check``: find the wrong numbers in a worked example."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import click

from headwise.cli import FOUND_WRONG
from headwise.cli.explain import OPTION_TEXTS
from headwise.cli.output import notifier
from headwise.cli.reporting import PATH, Destination, build_command, click_options, options
from headwise.errors import BadFile
from headwise.lang import Lang, Text

SUMMARY = Text("Find the wrong numbers in a worked example.")

_HELP = Text(
    "Reads FILE, or standard input if FILE is - (Markdown, LaTeX, reStructuredText, HTML, a "
    "notebook or a Word document, with tables, lists, formulas or printed arrays). Takes the "
    "input, the number of heads and the weights from FILE or from the options, computes all "
    "numbers again, and lists every number that is wrong at its printed precision. Exit status: 0 "
    "no number is wrong, 1 a number is wrong, 2 the file cannot be used."
)

_HELP_TEXTS = {
    name: OPTION_TEXTS[name] for name in ("--x", "--heads", "--weights", "--mask", "--scale")
}
_KINDS: dict[str, dict[str, Any]] = {
    "--heads": {"type": click.IntRange(min=1)},
    "--scale": {"type": click.FLOAT},
}


def command(lang: Lang) -> click.Command:
    """Return the command with its help in the given language."""
    parameters = [
        click.Argument(["file"], type=PATH),
        *click_options(_HELP_TEXTS, _KINDS, lang),
        *options(lang),
    ]
    return build_command("check", _run, parameters, lang, SUMMARY, SUMMARY, _HELP)


def _run(values: SimpleNamespace, lang: Lang) -> int:
    from headwise.check import CheckOptions, check
    from headwise.check.checker import as_json, document
    from headwise.check.verdicts.findings import LAST_DIGIT
    from headwise.document.reading import read_article, source_name
    from headwise.explain.array_files import read_matrix
    from headwise.explain.call_options import parse_mask
    from headwise.explain.steps import is_extended
    from headwise.explain.weights import load_projections

    inputs = (values.file, values.x, values.weights, values.mask)
    destination = Destination(values.format, values.output, lang, inputs=inputs)
    article, notify = read_article(values.file), notifier(lang)
    if is_extended(article.text):
        raise BadFile(
            "{source}: it explains an attention with a position or with other keys, which check "
            "does not compute; write it without --position and --kv",
            source=source_name(values.file),
        )
    setup = CheckOptions(
        x=None if values.x is None else read_matrix(values.x, notify=notify).values,
        heads=values.heads,
        projections=None
        if values.weights is None
        else load_projections(values.weights, heads=values.heads, notify=notify),
        scale=values.scale,
        mask=None if values.mask is None else partial(parse_mask, values.mask, None),
    )
    report = check(article.text, setup, source=source_name(values.file))
    if not report.checked and not report.findings:
        raise BadFile(
            "{source}: nothing could be checked: no printed number belongs to a quantity of this "
            "computation, and {left} could not be matched; correct --x, --heads or --weights, or "
            'name every array, as in "softmax = [..]"',
            source=report.source,
            left=report.unmatched_count,
        )
    destination.write(lambda: document(report, article), lambda: as_json(report, article))
    wrong = any(finding.verdict != LAST_DIGIT for finding in report.findings)
    return FOUND_WRONG if wrong else 0

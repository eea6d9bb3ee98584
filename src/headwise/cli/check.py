"""``headwise check``: find the wrong numbers in a worked example."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import click

from headwise.cli import FOUND_WRONG
from headwise.cli.explain import OPTION_TEXTS
from headwise.cli.reporting import PATH, Destination, build_command, click_options, options
from headwise.errors import BadFile
from headwise.lang import Lang, Text

SUMMARY = Text("Find the wrong numbers in a worked example.")

_HELP = Text(
    "Reads FILE, or - for the standard input (Markdown, LaTeX, HTML tables, lists or prints of "
    "arrays), takes the input, the heads and the weights from it or from the options, computes "
    "everything again, and lists each number that is wrong at the precision it is printed at. Exit "
    "status: 0 nothing wrong, 1 something wrong, 2 the file cannot be used."
)

_HELP_TEXTS = {
    name: OPTION_TEXTS[name] for name in ("--x", "--heads", "--weights", "--mask", "--scale")
}
_KINDS: dict[str, dict[str, Any]] = {
    "--heads": {"type": click.IntRange(min=1)},
    "--scale": {"type": click.FLOAT},
}


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    parameters = [
        click.Argument(["file"], type=PATH),
        *click_options(_HELP_TEXTS, _KINDS, lang),
        *options(lang),
    ]
    return build_command("check", _run, parameters, lang, SUMMARY, SUMMARY, _HELP)


def _run(values: SimpleNamespace, lang: Lang) -> int:
    from headwise.check import CheckOptions, check, read_article
    from headwise.check.article_lines import source_name
    from headwise.check.checker import as_json, document
    from headwise.check.verdicts.findings import LAST_DIGIT
    from headwise.explain.array_files import read_matrix
    from headwise.explain.call_options import load_projections, parse_mask

    inputs = (values.file, values.x, values.weights, values.mask)
    destination = Destination(values.format, values.output, lang, inputs=inputs)
    article = read_article(values.file)
    setup = CheckOptions(
        x=None if values.x is None else read_matrix(values.x).values,
        heads=values.heads,
        projections=None if values.weights is None else load_projections(values.weights),
        scale=values.scale,
        mask=None if values.mask is None else partial(parse_mask, values.mask, None),
    )
    report = check(article, setup, source=source_name(values.file))
    if not report.checked and not report.findings:
        raise BadFile(
            "{source}: nothing could be checked: no printed number stands for a quantity of "
            "this computation, {left} could not be matched; check --x, --heads and "
            '--weights, or name each array, as in "softmax = [..]"',
            source=report.source,
            left=report.unmatched_count,
        )
    destination.write(lambda: document(report), lambda: as_json(report))
    wrong = any(finding.verdict != LAST_DIGIT for finding in report.findings)
    return FOUND_WRONG if wrong else 0

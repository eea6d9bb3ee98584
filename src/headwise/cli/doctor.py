"""``headwise doctor``: versions, engines, extras, models and threads, for reports of bugs."""

import json
from types import SimpleNamespace

import click

from headwise.cli.reporting import Destination, build_command, options
from headwise.lang import Lang, Text

SUMMARY = Text("Show versions, engines, extras, models and threads, for a report of a bug.")

_HELP = Text(
    "Nothing is changed, downloaded or sent, and paths in your home folder begin with ~. For a "
    "report of a bug: headwise doctor --format markdown"
)


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    return build_command("doctor", _run, options(lang), lang, SUMMARY, SUMMARY, _HELP)


def _run(values: SimpleNamespace, lang: Lang) -> int:
    from headwise.environment import data, document

    destination = Destination(values.format, values.output, lang)
    destination.write(document, lambda: json.dumps(data(), ensure_ascii=False, indent=2))
    return 0

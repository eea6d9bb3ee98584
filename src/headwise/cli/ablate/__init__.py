"""``headwise ablate``: what a model loses as heads are taken out of it."""

import click

from headwise.cli import reporting
from headwise.cli.ablate.asked import FORMATS, HELP, SUMMARY, Asked, parameters
from headwise.lang import Lang

__all__ = ["SUMMARY", "command"]


def command(lang: Lang) -> click.Command:
    """The word ``ablate`` in the reader's language."""
    return click.Command(
        "ablate",
        callback=lambda **given: _run(Asked(**given), lang),
        params=parameters(lang),
        help=HELP.to(lang),
        short_help=SUMMARY.to(lang),
    )


def _run(asked: Asked, lang: Lang) -> int:
    asked.check()
    destination = reporting.Destination(asked.format, asked.output, lang, FORMATS, asked.read())
    destination.check()
    from headwise.cli.ablate.running import ablated

    return ablated(asked, destination)

"""``headwise inspect``: what each head of a real model does on a text or a corpus."""

import click

from headwise.cli import reporting
from headwise.cli.inspect.asked import FORMATS, HELP, SUMMARY, Asked, parameters
from headwise.lang import Lang

__all__ = ["SUMMARY", "command"]


def command(lang: Lang) -> click.Command:
    """The word ``inspect`` in the reader's language."""
    return click.Command(
        "inspect",
        callback=lambda **given: _run(Asked(**given), lang),
        params=parameters(lang),
        help=HELP.to(lang),
        short_help=SUMMARY.to(lang),
    )


def _run(asked: Asked, lang: Lang) -> int:
    asked.check()
    destination = reporting.Destination(asked.format, asked.output, lang, FORMATS, asked.read())
    destination.check()
    _check_folders(asked, lang)
    if asked.source == "--corpus":
        from headwise.cli.inspect.corpus import measured

        return measured(asked, destination)
    if asked.source == "--probe":
        from headwise.cli.inspect.corpus import probing

        return probing(asked, destination)
    if asked.source == "--open":
        from headwise.cli.inspect.corpus import opened

        return opened(asked, destination)
    from headwise.cli.inspect.text import inspected

    return inspected(asked, destination)


def _check_folders(asked: Asked, lang: Lang) -> None:
    """Say before the work, and not after it, that something cannot be drawn or kept."""
    if asked.figures is not None:
        from headwise.heads.corpus.folders import check_folder
        from headwise.plots.sheet import Sheet

        Sheet.of(lang)
        check_folder("figures", asked.figures)
    if asked.save is not None:
        from headwise.heads.corpus.whole import check_place

        check_place(asked.save)

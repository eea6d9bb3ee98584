"""How far a long run is: a bar on a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwise.cli.output import write_stderr
from headwise.lang import Lang, Text

EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


DOCUMENTS = Text("documents")


@contextmanager
def shown(
    lang: Lang, what: Text = DOCUMENTS, *, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how many documents of how many are done.

    Args:
        lang: the reader's language.
        what: is counted.
        quiet: show nothing: another process does.
    """
    if quiet:
        yield _nothing
    elif sys.stderr is not None and sys.stderr.isatty():
        with _bar(what.to(lang)) as show:
            yield show
    else:
        yield _lines(lang, what)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _lines(lang: Lang, what: Text) -> Callable[[int, int], None]:
    begun = last = time.monotonic()

    def show(done: int, whole: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY and done < whole:
            return
        last = now
        message = Text(
            "{done} of {whole} {what}, {now:.0f} s",
            done=done,
            whole=whole,
            what=what,
            now=now - begun,
        )
        write_stderr(f"{message.to(lang)} …")

    return show


def _nothing(done: int, whole: int) -> None:
    del done, whole

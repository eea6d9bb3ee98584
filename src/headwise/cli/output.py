"""Output of commands: the result on stdout, messages and progress on stderr."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import click

from headwise.errors import BadFile
from headwise.lang import Lang, Text


def write_stdout(text: str) -> None:
    """Print text and the end of its line on stdout: all of it, or nothing.

    A closed pipe, as with ``| head``, is no error; `BadFile` is raised if stdout is closed or full,
    or if its encoding cannot write the text.
    """
    stream = _stdout()
    text = text if text.endswith("\n") else text + "\n"
    _writable(text, stream)
    try:
        click.echo(text, nl=False)
    except OSError as error:
        # Python would write the rest again when it exits
        with suppress(OSError, ValueError), open(os.devnull, "wb") as null:  # noqa: PTH123
            os.dup2(null.fileno(), stream.fileno())
        if isinstance(error, BrokenPipeError):
            return
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "stdout: cannot write: {reason}; make room, or write to a file with --output",
            reason=reason,
        ) from error


def write_stderr(text: str) -> None:
    """Print text on stderr; a stderr that cannot be written is no error."""
    with suppress(OSError, ValueError):
        click.echo(text, err=True)


def stdout_is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()


def _stdout() -> TextIO:
    if sys.stdout is None or sys.stdout.closed:
        raise BadFile(
            "stdout: expected an open one to print to, it is closed; write to a file with --output"
        )
    return sys.stdout


def _writable(text: str, stream: TextIO) -> None:
    """Raise `BadFile`, before anything is printed, for a text that the encoding lacks."""
    encoding = (stream.encoding or "utf-8").lower()
    if encoding in ("ascii", "us-ascii"):  # click writes UTF-8 there: no locale is set
        return
    try:
        text.encode(encoding, stream.errors or "strict")
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise BadFile(
            "stdout: expected an encoding that has {character!a}, got {encoding}; set "
            "PYTHONUTF8=1, or write to a file with --output",
            character=character,
            encoding=encoding,
        ) from error


def notifier(lang: Lang) -> Callable[[Text], None]:
    """A function that prints a note on stderr, such as what was assumed of a file."""
    return lambda note: write_stderr(Text("note: ").to(lang) + note.to(lang))


def logger(lang: Lang, *, quiet: bool = False) -> Callable[[Text], None]:
    """A function that reports a step on stderr; with ``quiet`` it does nothing."""

    def log(message: Text) -> None:
        if not quiet:
            write_stderr(f"{message.to(lang)} …")

    return log


EVERY = 10.0  # seconds between two lines where there is no terminal

DOCUMENTS = Text("documents")


@contextmanager
def shown(
    lang: Lang, what: Text = DOCUMENTS, *, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many documents, or ``what``, of how many are done."""
    if quiet:
        yield lambda *_: None
    elif sys.stderr is not None and sys.stderr.isatty():
        with _bar(what.to(lang)) as show:
            yield show
    else:
        yield _lines(lang, what)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    from rich import progress
    from rich.console import Console

    text, remaining = progress.TextColumn(title), progress.TimeRemainingColumn()
    columns = (text, progress.BarColumn(), progress.MofNCompleteColumn(), remaining)
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _lines(lang: Lang, what: Text) -> Callable[[int, int], None]:
    begun = last = time.monotonic()
    log = logger(lang)

    def show(done: int, whole: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY and done < whole:
            return
        last = now
        text = Text(
            "{done} of {whole} {what}, {now:.0f} s",
            done=done,
            whole=whole,
            what=what,
            now=now - begun,
        )
        log(text)

    return show

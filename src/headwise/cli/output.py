"""The one place where words are spoken: the answer on stdout, everything else on stderr."""

import os
import sys
from contextlib import suppress
from typing import TextIO

import click

from headwise.errors import BadFile


def write_stdout(text: str) -> None:
    """Print text and the end of its line on stdout: whole, or not a character of it.

    A reader who has gone, as with ``| head``, is no error.

    Raises:
        BadFile: if stdout is closed, full, or in an encoding that cannot write the text.
    """
    stream = _stdout()
    text = text if text.endswith("\n") else text + "\n"
    _writable(text, stream)
    try:
        click.echo(text, nl=False)
    except OSError as error:
        _let_go(stream)
        if isinstance(error, BrokenPipeError):
            return
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "stdout: cannot write: {reason}; make room, or write to a file with --output",
            reason=reason,
        ) from error


def write_stderr(text: str) -> None:
    """Print text on stderr; where nobody can hear it, nothing is lost."""
    with suppress(OSError, ValueError):
        click.echo(text, err=True)


def stdout_is_terminal() -> bool:
    """Whether stdout is a screen that somebody looks at."""
    return sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()


def _stdout() -> TextIO:
    if sys.stdout is None or sys.stdout.closed:
        raise BadFile(
            "stdout: expected an open one to print to, it is closed; write to a file with --output"
        )
    return sys.stdout


def _writable(text: str, stream: TextIO) -> None:
    """Refuse a text before half of it is out."""
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


def _let_go(stream: TextIO) -> None:
    """Point stdout at nothing, or Python tries to write the rest again at its end."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)

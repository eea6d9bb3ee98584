"""What the documentation of a target says that True or 1 in a mask means."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

from headwise.verify.target.stated import MaskTrue

LARGEST = 1 << 18  # the number of characters of source that are read

ONE = r"(?:\b1s?\b|\bones?\b|\btrue\b|\bnon-?zero\b)"
"""How a text calls the value."""

BETWEEN = r"(?:(?!\b0\b|\bfalse\b|\bzeros?\b|[.;,\n]).){0,48}?"
"""The words between the value and its meaning, in one part of a sentence."""

ATTEND = re.compile(
    r"(?i)\b(attend(ed|s)?|allowed|allows?|may|visible|seen|sees?|kee?p|kept|real|valid|exists?|"
    r"present|tokens?|words?|reads?|used?|unmasked|there (is|are))\b"
)
BLOCKED = re.compile(
    r"(?i)\b(block(ed|s)?|hidd?en?|hides?|mask(ed|s)?|pad(ding|ded|s)?|ignored?|exclud\w*|"
    r"forbid\w*|disallow\w*|future|invalid|dropped|not|cannot|never|no)\b"
)


def documented_meaning(target: object, argument: str, alone: bool) -> MaskTrue | None:
    """What the text of a target says of True in one of its masks; None where it says nothing sure.

    A sentence counts where it names the argument, or speaks of the mask and there is no other.

    Example:
        >>> class Yours:
        ...     "mask: (B, L), 1 for tokens that may be attended to"
        >>> documented_meaning(Yours, "mask", alone=True)
        'attend'
    """
    votes = {vote for text in _texts(target) for vote in _votes(text, argument, alone)}
    return votes.pop() if len(votes) == 1 else None


def _votes(text: str, argument: str, alone: bool) -> Iterator[MaskTrue]:
    names = rf"\b{re.escape(argument)}\b" + (r"|\bmask\b" if alone else "")
    for sentence in re.split(r"\n\s*\n|(?<=[.;])\s|\n(?=\s*:?(?:param )?\w+\s*:)", text):
        name_in_sentence = re.search(rf"(?i)(?:{names})", sentence)
        if name_in_sentence is None:
            continue
        for match in re.finditer(
            rf"(?i){ONE}({BETWEEN}\w+[^.;,\n]{{0,32}})", sentence[name_in_sentence.start() :]
        ):
            meaning = _meaning(match[1])
            if meaning is not None:
                yield meaning


def _meaning(words: str) -> MaskTrue | None:
    words = re.split(r"(?i)\b(?:0|false|zeros?)\b", words)[0]
    if re.search(r"(?i)\bnot\s+(?:a\s+)?(?:pad\w*|masked|hidden|blocked)", words):
        return "attend"
    if BLOCKED.search(words):
        return "blocked"
    return "attend" if ATTEND.search(words) else None


def _texts(target: object) -> Iterable[str]:
    """The docstrings and comments of a target, and of the functions of its file that it names."""
    owner = target if isinstance(target, type) or inspect.isroutine(target) else type(target)
    with suppress(OSError, TypeError):
        source = inspect.getsource(owner)[:LARGEST]
        yield from _strings(source)
        module = sys.modules.get(str(getattr(owner, "__module__", "")))
        for name, value in vars(module).items() if module else ():
            own = inspect.isfunction(value) and value.__module__ == owner.__module__
            if own and re.search(rf"\b{re.escape(name)}\(", source) and value is not owner:
                yield from _strings(inspect.getsource(value)[:LARGEST])
    yield str(getattr(owner, "__doc__", "") or "")


def _strings(source: str) -> Iterator[str]:
    """Docstrings and comments; a comment is read on its own."""
    quoted = r'"""(.*?)"""|\'\'\'(.*?)\'\'\'|^\s*"([^"\n]*)"\s*$'
    for match in re.finditer(quoted, source, re.DOTALL | re.MULTILINE):
        yield next(group for group in match.groups() if group is not None)
    for match in re.finditer(r"#\s*(.*)$", source, re.MULTILINE):
        yield match[1]

"""An article's file as text. The file is somebody else's: bounded, and never trusted."""

import errno
import os
import re
import stat
import sys
from pathlib import Path

from headwise.errors import BadFile

MOST_BYTES = 1_000_000
"""The longest article that is read; a worked example is a thousandth of it."""

_ALIKE: dict[int, int] = str.maketrans(
    "０１２３４５６７８９．，；：＝＋－−–×＊／（）［］｛｝｜％＿＾～“”　、⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉",
    '0123456789.,;:=+---×*/()[]{}|%_^~"" ,01234567890123456789',
)
_ALIKE |= {0xFF21 + i: 0x41 + i for i in range(58) if chr(0x41 + i).isalpha()}
_TITLE = re.compile(r"<h([1-6])\b[^<>\n]{0,80}>", re.IGNORECASE)
_RAISED = frozenset("⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED = frozenset("₀₁₂₃₄₅₆₇₈₉")


def read_article(path: Path) -> str:
    """The text of an article in UTF-8 (with or without a mark), UTF-16 with a mark, or GB18030.

    ``-`` is the standard input.

    Raises:
        BadFile: if it cannot be opened, is too long, is binary, or is in another encoding.
    """
    name = title(path)
    try:
        raw = sys.stdin.buffer.read(MOST_BYTES + 1) if is_input(path) else _bytes(path)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise BadFile(
            "{name}: expected a readable text file, got an error ({why}); check the path",
            name=name,
            why=why,
        ) from None
    if len(raw) > MOST_BYTES:
        raise BadFile(
            "{name}: expected at most {most_bytes} bytes, it is longer; cut out the worked example",
            name=name,
            most_bytes=MOST_BYTES,
        )
    return _decoded(raw, name)


def is_input(path: Path) -> bool:
    """Whether a path stands for the standard input: ``-`` or ``/dev/stdin``."""
    return str(path) in ("-", "/dev/stdin")


def title(path: Path) -> str:
    """What an article is called in messages and reports."""
    from headwise.document.plain import clean

    return "stdin" if is_input(path) else clean(path.name or str(path))


def _bytes(path: Path) -> bytes:
    """The first bytes of a regular file; a pipe without a writer would block for ever."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(MOST_BYTES + 1)


def _decoded(raw: bytes, name: str) -> str:
    wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    for encoding in ("utf-16",) if wide else ("utf-8-sig", "gb18030"):
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        if not any(mark in text for mark in "\0\x01\x02\x03\x04"):
            return text.replace("\r\n", "\n").replace("\r", "\n")
    raise BadFile(
        "{name}: expected text in UTF-8 or GB18030, it is neither; save it as UTF-8", name=name
    )


def evened(text: str) -> str:
    """The text with full-width digits, signs and brackets made plain, small digits as indices.

    Example:
        >>> evened("s₀₁ ＝ −0.5")
        's_{01} = -0.5'
    """
    text = _TITLE.sub(lambda match: "#" * int(match[1]) + " ", text)
    if not (_RAISED | _LOWERED).isdisjoint(text):
        text = _indices(text)
    return text.translate(_ALIKE)


def _indices(text: str) -> str:
    """Runs of raised and lowered digits as ``^{..}`` and ``_{..}``."""
    out: list[str] = []
    kind = ""
    for mark in text:
        now = "^" if mark in _RAISED else "_" if mark in _LOWERED else ""
        if now != kind:
            out.append(("}" if kind else "") + (now + "{" if now else ""))
            kind = now
        out.append(mark)
    return "".join(out) + ("}" if kind else "")

"""Read an article from a path or from bytes, in any supported format."""

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from headwise.document.reading import docx, html_text, markup, notebook
from headwise.document.reading.article_text import ArticleText, check_length
from headwise.document.reading.text_encoding import decode
from headwise.document.text_format import clean
from headwise.errors import BadFile

MOST_BYTES = 32 * 2**20  # the maximum file size; images in notebooks need most of it

SUFFIXES = (".md", ".txt", ".tex", ".rst", ".html", ".htm", ".ipynb", ".docx")
"""The usual file extensions of articles; for others, the content determines the format."""

_SIGNATURES = (
    (b"%PDF", "PDF"),
    (b"\x89PNG", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"),
    (b"\xd0\xcf\x11\xe0", "DOC"),
    (b"{\\rtf", "RTF"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "ZIP"),
)
"""The first bytes of files that are not text; Word documents (ZIP archives) are tried before."""


def read_article(path: Path) -> ArticleText:
    """Read the text of an article; the path ``-`` means standard input.

    The article may be Markdown, LaTeX, reStructuredText, HTML, a Jupyter notebook, a Word document,
    or plain text, encoded in UTF-8, UTF-16, GB18030, Big5 or Shift JIS. Images, scripts, styles and
    comments are left out. If the extension is not known, the content determines the format.

    Raises:
        BadFile: if the file cannot be opened, is too large (see `MOST_BYTES` and `check_length`),
            or has an unsupported format; the message begins with the file's name.
    """
    name = source_name(path)
    try:
        raw = sys.stdin.buffer.read(MOST_BYTES + 1) if is_input(path) else _bytes(path)
    except (OSError, ValueError) as error:
        raise BadFile(
            "{name}: expected a readable text file, got an error ({why}); check the path",
            name=name,
            why=getattr(error, "strerror", None) or type(error).__name__,
        ) from None
    try:
        return from_bytes(raw, "" if is_input(path) else path.suffix.lower())
    except BadFile as error:
        raise BadFile("{name}: {problem}", name=name, problem=error.text) from error.__cause__


def from_bytes(raw: bytes, suffix: str = "") -> ArticleText:
    r"""Read an article from the content of a file and its extension, such as ".html".

    Example:
        >>> from_bytes(b"<p>A <b>=</b></p><table><tr><td>1</td><td>2</td></tr></table>", ".html")
        ArticleText(text='A =\n[[1, 2]]\n', places=(Text('1'), Text('1')))
    """
    if len(raw) > MOST_BYTES:
        raise BadFile(
            "expected at most {most:,} bytes, got a larger file; extract the worked example",
            most=MOST_BYTES,
        )
    article = docx.read(raw) if docx.is_docx(raw) else _from_text(raw, suffix)
    check_length(len(article.text))
    return article


def _from_text(raw: bytes, suffix: str) -> ArticleText:
    for mark, kind in _SIGNATURES:
        if raw.startswith(mark):
            raise BadFile(
                "expected text, a notebook (.ipynb), .html or .docx, got {kind}; save the article "
                "in one of these formats, or copy its text into a file",
                kind=kind,
            )
    text = decode(raw)
    return _converter(text, suffix)(text)


def _converter(text: str, suffix: str) -> Callable[[str], ArticleText]:
    by_suffix = {
        ".ipynb": notebook.read,
        ".tex": markup.read_latex,
        ".rst": markup.read_rst,
        **dict.fromkeys((".html", ".htm", ".xhtml"), html_text.read),
    }
    if suffix in by_suffix:
        return by_suffix[suffix]
    start = text[:2000].lstrip().lower()
    if start.startswith(("<!doctype html", "<html", "<?xml")):
        return html_text.read
    if start.startswith("{") and notebook.is_notebook(text):
        return notebook.read
    return markup.read_latex if "\\documentclass" in start else markup.read_markdown


def is_input(path: Path) -> bool:
    """Return whether a path means standard input: ``-`` or ``/dev/stdin``."""
    return str(path) in ("-", "/dev/stdin")


def source_name(path: Path) -> str:
    """Return the name of an article in messages and reports."""
    return "stdin" if is_input(path) else clean(path.name or str(path))


def _bytes(path: Path) -> bytes:
    """Read at most `MOST_BYTES` + 1 bytes of a regular file, without blocking on a pipe."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(MOST_BYTES + 1)

"""Read Jupyter notebooks: the source of the cells, and the text of their outputs."""

import json
import re
from collections.abc import Iterator
from typing import Any

from headwise.document.reading import html_text
from headwise.document.reading.article_text import ArticleText, LineWriter
from headwise.document.reading.markup import without_markup
from headwise.errors import BadFile
from headwise.lang import Text

_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_REPR = re.compile(r"<[^<>\n]{1,200}>")


def is_notebook(text: str) -> bool:
    """Return whether a text is probably the JSON of a notebook."""
    return '"nbformat"' in text and ('"cells"' in text or '"worksheets"' in text)


def read(text: str) -> ArticleText:
    r"""Return the cells of a notebook (nbformat 3 and 4) in order, with code in fences.

    The place of a line is the number of its cell, and its line in the cell or in the output, both
    counted from 1. Images, widgets, warnings and errors are left out.

    Raises:
        BadFile: if the text is not JSON, or the notebook has no cells.

    Example:
        >>> cell = {"cell_type": "code", "source": "x", "outputs": [{"text": ["1\n", "2"]}]}
        >>> article = read(json.dumps({"nbformat": 4, "cells": [cell]}))
        >>> article.text
        '```\nx\n```\n\n```\n1\n2\n```\n'
        >>> article.place(7).en
        'cell 1, output line 2'
    """
    writer = LineWriter()
    for number, cell in enumerate(_cells(text), 1):
        source = _joined(cell.get("source", cell.get("input")))
        if cell.get("cell_type") == "code":
            writer.block(_fenced(source, number, output=False))
            for output in _dicts(cell.get("outputs")):
                writer.block(_output(output, number))
        else:
            shown = without_markup(source)
            if cell.get("cell_type") == "heading":
                shown = f"## {shown}"
            writer.block(_placed(shown, number, output=False))
    return writer.finished()


def _cells(text: str) -> list[dict[str, Any]]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile(
            "expected a notebook in JSON, got an error in line {line}: {problem}; save the "
            "notebook again in Jupyter",
            problem=error.msg,
            line=error.lineno,
        ) from None
    except (ValueError, RecursionError):
        raise BadFile(
            "cannot read the notebook: a number is too long or lists are nested too deeply; save "
            "the notebook again in Jupyter"
        ) from None
    cells = content.get("cells") if isinstance(content, dict) else None
    if cells is None and isinstance(content, dict):
        cells = [
            cell
            for sheet in _dicts(content.get("worksheets"))
            for cell in _dicts(sheet.get("cells"))
        ]
    if not _dicts(cells):
        raise BadFile("the notebook has no cells; save the notebook again in Jupyter")
    return _dicts(cells)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _joined(value: object) -> str:
    """Join a text of a notebook, which is a string or a list of lines."""
    lines = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    text = "".join(line for line in lines if isinstance(line, str))
    return _COLOURS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _output(output: dict[str, Any], number: int) -> Iterator[tuple[str, Text]]:
    """Yield the lines of one output: LaTeX, tables or printed text, but no warnings or errors."""
    if output.get("name", output.get("stream")) == "stderr" or output.get("output_type") in (
        "error",
        "pyerr",
    ):
        return
    data = output.get("data", output)
    data = data if isinstance(data, dict) else {}
    plain = _joined(data.get("text/plain", data.get("text", output.get("text"))))
    page = _joined(data.get("text/html", data.get("html")))
    written = next((_joined(data[key]) for key in _WRITTEN if key in data), "")
    shown = _page(page) if "<table" in page or _REPR.fullmatch(plain.strip()) else ""
    if written:
        yield from _placed(without_markup(written), number, output=True)
    elif shown:
        yield from _placed(shown, number, output=True)
    elif plain.strip() and not _REPR.fullmatch(plain.strip()):
        yield from _fenced(without_markup(plain), number, output=True)


def _page(page: str) -> str:
    """Return the text of an HTML output, or "" if the page cannot be read."""
    try:
        return html_text.read(page).text.strip("\n")
    except BadFile:
        return ""


_WRITTEN = ("text/markdown", "text/latex", "latex")
"""Output formats that are preferred to plain text and HTML."""


def _fenced(text: str, number: int, *, output: bool) -> Iterator[tuple[str, Text]]:
    if not text.strip():
        return
    lines = list(_placed(text, number, output=output))
    yield "```", lines[0][1]
    yield from lines
    yield "```", lines[-1][1]


def _placed(text: str, number: int, *, output: bool) -> Iterator[tuple[str, Text]]:
    """Yield each line with its place."""
    for line, content in enumerate(text.rstrip("\n").split("\n"), 1):
        if output:
            yield content, Text("cell {cell}, output line {line}", cell=number, line=line)
        else:
            yield content, Text("cell {cell}, line {line}", cell=number, line=line)

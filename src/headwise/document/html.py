"""A document as one self-contained page: both languages, no network, nothing from outside.

The page's content security policy allows only its own style and script, by their hashes. Untrusted
text is escaped by the template, as JSON without ``<``, or as MathML from a list of elements.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from headwise.document import blocks
from headwise.document.formulas import mathml, pieces
from headwise.document.text_format import clean, clean_lines, spans, typeset
from headwise.errors import MissingExtra
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from jinja2 import Environment

LINE = 132  # characters of numbers that fit on a line of A4 paper; a wider matrix is cut
GAP, NARROW = 2, 76  # characters between columns; up to which a matrix is set in full size
STEPS = 254  # levels of a weight in a heat map's bytes; the level 255 means not allowed


def render(document: blocks.Document, lang: Lang = "en") -> str:
    """The document as a page in ``lang``, or in the language of its address, ``#en`` or ``#zh``.

    This and the functions below raise `MissingExtra` without jinja2 or latex2mathml.
    """
    return page(document.title, [_blocks(document, None)], lang)


def fragment(document: blocks.Document, lang: Lang | None = None) -> str:
    """The document as a section for `page`, its title one level below the page's.

    In both languages, which the page's style tells apart, or in one, for a place without that
    style.
    """
    if lang is not None:
        document = blocks.in_language(document, lang)
    return _blocks(document, document.title)


def page(title: Text, fragments: Sequence[str], lang: Lang = "en") -> str:
    """One page around sections that `fragment` made; they are trusted to be its work."""
    from markupsafe import Markup

    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src 'none'; base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            lang=lang,
            policy=policy,
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            fragments=[Markup(f) for f in fragments],  # noqa: S704 - written by `fragment`
        )
    )


def pack(values: Sequence[Sequence[float]]) -> str:
    """A heat map's weights as base64, one byte a pair: ``round(254 sqrt(w))``, 255 for NaN.

    The root keeps small weights apart: one of 0.002 is still right to a twentieth.

    Example:
        >>> list(base64.b64decode(pack([[0.0, 1.0, 0.25, math.nan]])))
        [0, 254, 127, 255]
    """
    return base64.b64encode(bytes(_level(v) for row in values for v in row)).decode("ascii")


def _level(value: float) -> int:
    return STEPS + 1 if math.isnan(value) else round(STEPS * math.sqrt(min(max(value, 0.0), 1.0)))


def _blocks(document: blocks.Document, title: Text | None) -> str:
    views = [_view(block, document.precision, int(title is not None)) for block in document.blocks]
    return _templates().get_template("section.html").render(title=title, blocks=views)


def _view(block: blocks.Block, precision: int, deeper: int) -> dict[str, Any]:
    match block:
        case blocks.Heading():
            level = min(max(block.level, 2) + deeper, 6)
            return {"kind": "heading", "text": block.text, "level": level}
        case blocks.Paragraph():
            return {"kind": "paragraph", "text": block.text}
        case blocks.Formula():
            return {"kind": "formulas", "lines": [_cut(block)]}
        case blocks.Matrix() | blocks.SideBySide():
            some = blocks.matrices_of(block)
            parts = [part for matrix in some for part in _matrix(matrix, precision)]
            return {"kind": "matrices", "parts": parts}
        case blocks.Working():
            return {"kind": "working", "lines": [_cut(line) for line in block.lines]}
        case blocks.Table():
            return {"kind": "table", "head": block.head, "rows": block.rows}
        case blocks.HeatMap():
            return {"kind": "heat", "title": block.title, "data": _heat(block)}
        case blocks.Notice():
            return {"kind": "notice", "text": block.text, "good": block.good}
        case blocks.Code():
            return {"kind": "code", "source": "\n".join(clean_lines(block.source))}


def _cut(formula: blocks.Formula) -> list[Any]:
    """The pieces of a formula, between which a line may be broken."""
    return [_safe(mathml(piece)) for piece in pieces(formula)]


def _matrix(matrix: blocks.Matrix, precision: int) -> list[dict[str, Any]]:
    """The matrix in parts that are as wide as a page of paper."""
    texts = [[typeset(value, precision) for value in row] for row in matrix.values]
    widest = max((len(text) for row in texts for text in row), default=1)
    columns = max(map(len, texts), default=0)
    parts = list(blocks.slices(columns, LINE // (widest + GAP)))
    return [
        {
            "symbol": _safe(mathml(matrix.symbol)),
            "name": matrix.symbol.plain,
            "part": blocks.part(some) if len(parts) > 1 else None,
            "size": "wide" if (widest + GAP) * len(some) > NARROW else "narrow",
            "empty": not columns,
            "labelled": bool(matrix.rows),
            "columns": matrix.columns[some.start : some.stop],
            "rows": list(_rows(matrix, texts, some)),
        }
        for some in parts
    ]


def _rows(
    matrix: blocks.Matrix, texts: Sequence[Sequence[str]], some: range
) -> Iterator[dict[str, Any]]:
    """The rows of a part of a matrix: label, whether the text is about it, and cells."""
    for i, (values, written) in enumerate(zip(matrix.values, texts, strict=True)):
        cells = [
            {"text": written[j], "look": _look(matrix, i, j, values[j])}
            for j in some
            if j < len(values)
        ]
        label = matrix.rows[i] if i < len(matrix.rows) else ""
        yield {"label": label, "marked": i == matrix.marked, "cells": cells}


def _look(matrix: blocks.Matrix, row: int, column: int, value: float) -> str:
    """The class of a cell: masked, or how warm its weight is, in tenths."""
    if not math.isfinite(value) or (matrix.masked and matrix.masked[row][column]):
        return "off"
    return f"heat-{round(10 * min(max(value, 0.0), 1.0))}" if matrix.heat else ""


def _prose(text: Text, lang: Lang) -> Any:
    """A message with its formulas as MathML; all else is escaped."""
    written = (
        mathml(blocks.Formula(piece, piece)) if formula else html.escape(clean(piece))
        for piece, formula in spans(text, lang)
    )
    return _safe("".join(written))


def _heat(heat: blocks.HeatMap) -> Any:
    """JSON for a script element: no character in it can end the element."""
    value = {
        "rows": [clean(label) for label in heat.rows],
        "columns": [clean(label) for label in heat.columns],
        "weights": pack(heat.values),
        "title": {"en": clean(heat.title.en), "zh": clean(heat.title.zh)},
    }
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _safe(text)


def _safe(markup: str) -> Any:
    from markupsafe import Markup

    return Markup(markup)  # noqa: S704 - see the callers


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _asset(name: str) -> str:
    return files("headwise.document").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _templates() -> "Environment":
    try:
        from jinja2 import DictLoader, Environment, StrictUndefined
    except ImportError as error:
        raise MissingExtra.of("jinja2", "html") from error
    sources = {name: _asset(name) for name in ("page.html", "section.html", "say.html")}
    templates = Environment(
        loader=DictLoader(sources),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["clean"] = clean
    templates.filters["prose"] = _prose
    return templates

"""A document as one self-contained page in both languages, without any external resource.

The page's content security policy allows only its own style and script, by their hashes. Untrusted
text is escaped by the template, written as JSON without ``<``, or as MathML from a fixed list.
"""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from headwise.document import blocks
from headwise.document.formulas import mathml
from headwise.document.text_format import clean, clean_lines, typeset
from headwise.errors import MissingExtra
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from jinja2 import Environment

STEPS = 254  # levels of a weight in a heat map's bytes; level 255 means masked


def render(document: blocks.Document, lang: Lang = "en") -> str:
    """Return the document as a page in ``lang``, unless its address ends with ``#en`` or ``#zh``.

    This function and the functions below raise `MissingExtra` without jinja2 or latex2mathml.
    """
    return page(document.title, [_blocks(document, None)], lang)


def fragment(document: blocks.Document) -> str:
    """Return the document as a section for `page`, with its title one level below the page's."""
    return _blocks(document, document.title)


def page(title: Text, fragments: Sequence[str], lang: Lang = "en") -> str:
    """Return one page with sections created by `fragment`, which are trusted."""
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
    """Return a heat map's weights as base64, one byte per pair: ``round(254 sqrt(w))``, NaN as 255.

    The square root keeps small weights distinct: 0.002 is stored with a relative error below 1/20.

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
            return {"kind": "formulas", "lines": [_safe(mathml(block, block=True))]}
        case blocks.Matrix():
            return _matrix(block, precision)
        case blocks.Working():
            return {"kind": "working", "lines": [_safe(mathml(line)) for line in block.lines]}
        case blocks.Table():
            return {"kind": "table", "head": block.head, "rows": block.rows}
        case blocks.HeatMap():
            return {"kind": "heat", "title": block.title, "data": _heat(block)}
        case blocks.Notice():
            return {"kind": "notice", "text": block.text, "good": block.good}
        case blocks.Code():
            return {"kind": "code", "source": "\n".join(clean_lines(block.source))}


def _matrix(matrix: blocks.Matrix, precision: int) -> dict[str, Any]:
    labels = [*matrix.rows, *[""] * len(matrix.values)]
    cells = (
        [{"text": typeset(v, precision), "off": not math.isfinite(v)} for v in row]
        for row in matrix.values
    )
    return {
        "kind": "matrix",
        "symbol": _safe(mathml(matrix.symbol)),
        "name": matrix.symbol.plain,
        "empty": not any(matrix.values),
        "labelled": bool(matrix.rows),
        "columns": matrix.columns,
        "rows": [{"label": a, "cells": b} for a, b in zip(labels, cells, strict=False)],
    }


def _heat(heat: blocks.HeatMap) -> Any:
    """Return JSON for a script element; no character of the JSON can end the element."""
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
    return templates

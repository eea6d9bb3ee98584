"""Hostile text, and a document that contains it in every place where text is allowed."""

import math

from headwise.document import (
    Code,
    Document,
    Formula,
    Heading,
    HeatMap,
    Matrix,
    Notice,
    Paragraph,
    Table,
    Working,
)
from headwise.lang import Translated, same

EVIL = (
    "</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b]0;title\x07",
    "[bold]markup[/bold]",
    "{{ 7*7 }}{% raw %}",
    "\\input{/etc/passwd}\\write18{id}",
    "$$ x $$ `code` | cell",
    "\u202egnp.exe\u2066",
    "a\nb\r\nc\td",
    "\ud800",
    "[link](javascript:alert(1)) http://evil.example",
    "# heading",
    "&lt;b&gt;",
    "",
)


def everywhere(text: str) -> Document:
    """A document with this text in every block, once alone and once as a formula's LaTeX."""
    token, formula = same(text), Formula(text, text)
    values = [[0.25, -math.inf], [math.nan, 1.0]]
    return Document(
        token,
        (
            Heading(token),
            Heading(token, 3),
            Paragraph(Translated(text, f"中文{text}")),
            formula,
            Matrix(formula, values, [text, "b"], [text, "d"]),
            Working([formula, Formula("1 + 1 = 2", "1 + 1 = 2")]),
            Table([token, same("n")], [[token, token]]),
            HeatMap(token, [[0.0, 0.5], [math.nan, 1.0]], [text, "b"], [text, "d"]),
            Notice(True, token),
            Notice(False, token),
            Code(text),
        ),
    )


EMPTY = Document(
    Translated("nothing", "空"),
    (
        Matrix(Formula("E", "E"), []),
        Matrix(Formula("F", "F"), [[], []]),
        Working([]),
        Table([], []),
        HeatMap(same("none"), [], [], []),
        Code(""),
    ),
)
"""Every block that can be empty."""

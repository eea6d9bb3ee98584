"""The blocks of a document, and how a wide matrix is cut into parts in every format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar, cast

from headwise.document.text_format import clean
from headwise.lang import Lang, Text, joined, same


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the title of the document."""

    text: Text
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Running text; a formula stands in it between dollar signs, see `text_format.spans`."""

    text: Text


@dataclass(frozen=True)
class Formula:
    """A formula: plain text for terminals, LaTeX for all other formats."""

    plain: str
    latex: str


@dataclass(frozen=True)
class Matrix:
    """A named matrix of numbers, printed at the document's precision; -inf is a masked entry.

    ``rows`` and ``columns`` are labels, such as tokens, or empty. ``heat`` colours weights from 0
    to 1. ``masked`` is True for masked pairs, row by row, or empty. ``marked`` is the row that the
    text describes.
    """

    symbol: Formula
    values: Sequence[Sequence[float]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    heat: bool = False
    masked: Sequence[Sequence[bool]] = ()
    marked: int | None = None


@dataclass(frozen=True)
class SideBySide:
    """Matrices that belong together, beside one another where there is room."""

    matrices: Sequence[Matrix]


@dataclass(frozen=True)
class Working:
    """A calculation by hand, written term by term, with one line per step."""

    lines: Sequence[Formula]


@dataclass(frozen=True)
class Table:
    """A table of short texts; numbers are already formatted."""

    head: Sequence[Text]
    rows: Sequence[Sequence[Text]]


@dataclass(frozen=True)
class HeatMap:
    """The attention weights of one head as a picture: rows are queries, columns are keys.

    The values are from 0 to 1, row by row; NaN if a pair is masked.
    """

    title: Text
    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True)
class Notice:
    """A verdict or a warning that stands out from the text."""

    good: bool
    text: Text


@dataclass(frozen=True)
class Code:
    """Source text, shown unchanged."""

    source: str
    language: str = "python"


Block = (
    Heading | Paragraph | Formula | Matrix | SideBySide | Working | Table | HeatMap | Notice | Code
)


@dataclass(frozen=True)
class Document:
    """A title and blocks in order, and the number of decimals of their numbers."""

    title: Text
    blocks: Sequence[Block] = field(default_factory=tuple)
    precision: int = 4


def matrices_of(block: Matrix | SideBySide) -> Sequence[Matrix]:
    """The matrices of a block, in order."""
    return block.matrices if isinstance(block, SideBySide) else (block,)


T = TypeVar("T")


def in_language(value: T, lang: Lang) -> T:
    """A document, or a part of one, with every text in one language only.

    Example:
        >>> in_language(Notice(good=True, text=Text("required")), "zh").text.en
        '必需'
    """
    result: object = value
    if isinstance(value, Text):
        result = same(value.to(lang))
    elif isinstance(value, tuple | list):
        result = tuple(in_language(item, lang) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: in_language(getattr(value, f.name), lang) for f in fields(value)}
        result = replace(value, **parts)
    return cast(T, result)


def slices(columns: int, most: int) -> Iterator[range]:
    """Yield the columns in parts of at most ``most``; one empty part if there are no columns.

    Example:
        >>> list(slices(5, 2))
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    most = max(most, 1)
    for start in range(0, max(columns, 1), most):
        yield range(start, min(start + most, columns))


def part(columns: range) -> Text:
    """Return the name of a part of a wide matrix; columns are counted from 0."""
    first, last = columns.start, columns.stop - 1
    return Text("columns {first} to {last}", first=first, last=last)


@dataclass
class Labels:
    """The labels printed last, so that consecutive matrices do not repeat them."""

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    def new(self, matrix: Matrix) -> Text | None:
        """Return a sentence with the labels that differ from the last labels, or None."""
        rows, columns = tuple(matrix.rows), tuple(matrix.columns)
        changed = []
        if rows and rows != self.rows:
            changed.append(Text("rows: {labels}", labels=" · ".join(map(clean, rows))))
            self.rows = rows
        if columns and columns != self.columns:
            changed.append(Text("columns: {labels}", labels=" · ".join(map(clean, columns))))
            self.columns = columns
        return joined(Text("; "), changed) if changed else None

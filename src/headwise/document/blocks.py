"""The blocks a document is made of, and how a wide matrix is cut for every format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar, cast

from headwise.document.text_format import clean
from headwise.lang import Lang, Text, joined, same


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the document's."""

    text: Text
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Running text; a formula stands in it between dollar signs, see `text_format.spans`."""

    text: Text


@dataclass(frozen=True)
class Formula:
    """One formula, for terminals as plain text and for everything else as LaTeX."""

    plain: str
    latex: str


@dataclass(frozen=True)
class Matrix:
    """A named matrix of numbers, printed at the document's precision; -inf is a blocked entry.

    ``rows`` and ``columns`` are labels, such as tokens; empty for none. ``heat`` colours weights
    from 0 to 1; ``masked`` is True where a pair is not allowed, row by row, empty for nowhere;
    ``marked`` is the row that the text is about.
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
    """A sum written out term by term, one line a step, as one would on paper."""

    lines: Sequence[Formula]


@dataclass(frozen=True)
class Table:
    """A table of short texts; numbers come already written."""

    head: Sequence[Text]
    rows: Sequence[Sequence[Text]]


@dataclass(frozen=True)
class HeatMap:
    """Attention weights of one head as a picture: rows are queries, columns are keys.

    The values are from 0 to 1, row by row; NaN where a pair is not allowed.
    """

    title: Text
    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True)
class Notice:
    """A verdict or a warning, to be seen at once."""

    good: bool
    text: Text


@dataclass(frozen=True)
class Code:
    """Source text, shown as it stands."""

    source: str
    language: str = "python"


Block = (
    Heading | Paragraph | Formula | Matrix | SideBySide | Working | Table | HeatMap | Notice | Code
)


@dataclass(frozen=True)
class Document:
    """Blocks in order, and how many decimals their numbers show."""

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
    """The columns in parts of at most ``most``; one empty part where there is none.

    Example:
        >>> list(slices(5, 2))
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    most = max(most, 1)
    for start in range(0, max(columns, 1), most):
        yield range(start, min(start + most, columns))


def part(columns: range) -> Text:
    """What a part of a wide matrix is called; columns count from 0."""
    first, last = columns.start, columns.stop - 1
    return Text("columns {first} to {last}", first=first, last=last)


@dataclass
class Labels:
    """The labels that were printed last, so that a matrix repeats none."""

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    def new(self, matrix: Matrix) -> Text | None:
        """A sentence with the labels that differ from the last ones, or None."""
        rows, columns = tuple(matrix.rows), tuple(matrix.columns)
        changed = []
        if rows and rows != self.rows:
            changed.append(Text("rows: {labels}", labels=" · ".join(map(clean, rows))))
            self.rows = rows
        if columns and columns != self.columns:
            changed.append(Text("columns: {labels}", labels=" · ".join(map(clean, columns))))
            self.columns = columns
        return joined(Text("; "), changed) if changed else None

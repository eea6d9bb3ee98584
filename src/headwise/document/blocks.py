"""The blocks a document is made of. A face builds blocks; a renderer turns them into a format.

All text in a block is plain and untrusted: it may hold tokens, file names or markup that somebody
else wrote. A renderer escapes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwise.lang import Text


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the document's."""

    text: Text
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: Text


@dataclass(frozen=True)
class Formula:
    """One formula, for terminals as plain text and for everything else as LaTeX."""

    plain: str
    latex: str


@dataclass(frozen=True)
class Matrix:
    """A named matrix of numbers, printed at the document's precision.

    Attributes:
        symbol: its name, plain ("softmax, head 1") and in LaTeX ("A^{(1)}").
        values: the numbers row by row; -inf is written as a blocked entry.
        rows: a label for each row, such as tokens; empty for none.
        columns: a label for each column; empty for none.
    """

    symbol: Formula
    values: Sequence[Sequence[float]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()


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

    Attributes:
        title: what it shows, such as "L0H2".
        values: numbers from 0 to 1, row by row; NaN where a pair is not allowed.
        rows: the query tokens.
        columns: the key tokens.
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


Block = Heading | Paragraph | Formula | Matrix | Working | Table | HeatMap | Notice | Code


@dataclass(frozen=True)
class Document:
    """Blocks in order, and how many decimals their numbers show."""

    title: Text
    blocks: Sequence[Block] = field(default_factory=tuple)
    precision: int = 4

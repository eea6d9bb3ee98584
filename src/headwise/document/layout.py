"""What the renderers share: how a wide matrix is cut, and when labels are said again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwise.document.blocks import Matrix
from headwise.document.plain import clean
from headwise.lang import Text, joined


def width_of(values: Sequence[Sequence[float]]) -> int:
    """How many columns the widest row has."""
    return max(map(len, values), default=0)


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
    """Remembers which labels were said last, so that a matrix repeats none."""

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    def new(self, matrix: Matrix) -> Text | None:
        """A sentence with the labels that differ from the last ones, or None."""
        rows, columns = tuple(matrix.rows), tuple(matrix.columns)
        changed = []
        if rows and rows != self.rows:
            changed.append(Text("rows: {labels}", labels=_listed(rows)))
            self.rows = rows
        if columns and columns != self.columns:
            changed.append(Text("columns: {labels}", labels=_listed(columns)))
            self.columns = columns
        return joined(Text("; "), changed) if changed else None


def _listed(labels: Sequence[str]) -> str:
    return " · ".join(clean(label) for label in labels)

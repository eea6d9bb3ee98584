"""Tables as comma-separated values."""

import csv
import io
from collections.abc import Mapping, Sequence

Column = Sequence[str | int | float | None]

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that spreadsheets run as a formula."""


def as_csv(columns: Mapping[str, Column]) -> str:
    r"""The table as comma-separated values, with a line of names.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.

    Example:
        >>> as_csv({"head": ["L0H0", "=L0H1"], "entropy": [0.5, None]})
        "head,entropy\nL0H0,0.5\n'=L0H1,\n"
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [_harmless(cell) for cell in row] for row in zip(*columns.values(), strict=True)
    )
    return stream.getvalue()


def _harmless(cell: str | float | None) -> str | float | None:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell

"""Every number of every head as one table for programs: a row a head.

    head, part, layer, number    "decoder.L3H5", "decoder", 3, 5; counted from 0
    names                        of a corpus run: what the head is called, "previous token; local"
    NAME                         each metric by its name
    uniform_NAME                 what a head would have there that attends to all allowed keys alike

A cell is empty where no query could show the metric.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence

import headwise
from headwise.errors import MissingExtra, one_of
from headwise.heads.names import Head
from headwise.heads.statistics import Statistics

Column = Sequence[str | int | float | None]

HEAD = ("head", "part", "layer", "number")
"""The columns that say which head a row is about."""


KINDS = ("csv", "parquet")
"""What a table can be written as."""


def table(
    statistics: Statistics, names: Mapping[Head, Sequence[str]] | None = None
) -> dict[str, Column]:
    """The columns by name, in their order, a row for each head.

    Args:
        statistics: of all heads.
        names: what heads are called; None where no names were given.
    """
    heads = statistics.heads()
    columns: dict[str, Column] = {
        "head": [str(head) for head in heads],
        "part": [head.layer.part for head in heads],
        "layer": [head.layer.number for head in heads],
        "number": [head.number for head in heads],
    }
    if names is not None:
        columns["names"] = ["; ".join(names.get(head, ())) for head in heads]
    for metric in statistics.metrics:
        columns[metric.name] = [known(statistics.value(metric, head)) for head in heads]
    for metric in statistics.metrics:
        flat = {layer: known(statistics.uniform(metric, layer)) for layer in statistics.layers}
        columns[f"uniform_{metric.name}"] = [flat[head.layer] for head in heads]
    return columns


def file_of(columns: Mapping[str, Column], kind: str) -> str | bytes:
    """A table as "csv" or "parquet".

    Raises:
        BadValue: if it is to be another kind.
        MissingExtra: if what writes it is not installed.
    """
    if kind not in KINDS:
        raise one_of("format", kind, KINDS)
    if kind == "csv":
        return as_csv(columns)
    return as_parquet(columns, {"headwise": headwise.__version__})


def as_csv(columns: Mapping[str, Column]) -> str:
    r"""The table as comma-separated values, with a line of names.

    Example:
        >>> as_csv({"head": ["L0H0", "L0H1"], "entropy": [0.5, None]})
        'head,entropy\nL0H0,0.5\nL0H1,\n'
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return stream.getvalue()


def as_parquet(columns: Mapping[str, Column], said: Mapping[str, str]) -> bytes:
    """The table as a Parquet file: text, int64 and float64 columns.

    Args:
        columns: as `table` gives them.
        said: what is written into the file's metadata.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra.of("pyarrow", "parquet") from error
    kinds = dict.fromkeys(("head", "part", "names"), pyarrow.string()) | dict.fromkeys(
        ("layer", "number"), pyarrow.int64()
    )
    arrays = [
        pyarrow.array(column, kinds.get(name, pyarrow.float64()))
        for name, column in columns.items()
    ]
    made = pyarrow.table(arrays, names=list(columns)).replace_schema_metadata(dict(said))
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(made, sink)
    return bytes(sink.getvalue())


def known(value: float) -> float | None:
    """A number that JSON and tables can hold; None where no query could show it."""
    return value if math.isfinite(value) else None

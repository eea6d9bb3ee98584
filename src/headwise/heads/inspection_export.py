"""An inspection as JSON, for programs. The layout is stable; a change to it changes its name.

The layout is described in docs/inspect_report.md and, for validators, in the file
``inspect.schema.json`` beside this one. All text in it comes from the model and its user: escape it
before showing it.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from torch import Tensor

import headwise
from headwise.errors import MissingExtra, one_of
from headwise.heads.inspection import Inspection, highlights, model_facts
from headwise.heads.metrics import Metric
from headwise.heads.names import Head
from headwise.heads.statistics import Statistics
from headwise.verify.report.formats import faults as schema_faults

SCHEMA = "headwise.inspect/1"


def schema() -> dict[str, Any]:
    """The JSON schema of what `headwise inspect` writes: for one text, or for a corpus.

    Example:
        >>> schema()["title"]
        'What headwise inspect measured'
    """
    text = files("headwise.heads").joinpath("inspect.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def faults(value: object) -> list[str]:
    """Where some data is no such report; nothing where it is one.

    Example:
        >>> faults([])[0]
        '$: expected object, got list'
    """
    return schema_faults(value, schema())


def as_json(seen: Inspection) -> str:
    """The inspection as JSON text in ASCII, ending in a line break."""
    return written(
        {
            "schema": SCHEMA,
            "headwise": headwise.__version__,
            "model": model_facts(seen.loaded, seen.statistics),
            "text": seen.text,
            "tokens": seen.tokens,
            "targets": seen.targets,
            "tokens_in_text": seen.whole,
            "metrics": explained(seen.statistics.metrics),
            **measured(seen.statistics),
            "weights": [
                {"head": str(head), "rows": _rows(weights)} for head, weights in seen.maps.items()
            ],
        }
    )


def written(whole: dict[str, Any]) -> str:
    """JSON text in ASCII, ending in a line break."""
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def explained(metrics: tuple[Metric, ...]) -> list[dict[str, Any]]:
    """What the metrics are, in English."""
    return [
        {
            "name": metric.name,
            "title": metric.title.en,
            "formula": metric.formula.en,
            "source": metric.source.en,
            "share": metric.share,
        }
        for metric in metrics
    ]


def measured(statistics: Statistics) -> dict[str, Any]:
    """Every head's values, those of a uniform head, and what stands out."""
    metrics = statistics.metrics
    return {
        "heads": [
            {**which(head), "values": values(statistics, head)} for head in statistics.heads()
        ],
        "uniform": [
            {
                "layer": str(layer),
                "values": {m.name: known(statistics.uniform(m, layer)) for m in metrics},
            }
            for layer in statistics.layers
        ],
        "standing_out": [
            {
                "head": str(fact.head),
                "metric": fact.metric.name,
                "value": fact.value,
                "uniform": known(fact.uniform),
                "usual": fact.usual,
            }
            for fact in highlights(statistics)
        ],
    }


def which(head: Head) -> dict[str, str | int]:
    """The head an entry is about."""
    return {
        "head": str(head),
        "part": head.layer.part,
        "layer": head.layer.number,
        "number": head.number,
    }


def values(statistics: Statistics, head: Head) -> dict[str, float | None]:
    """Every metric of one head; None where no query could show it."""
    return {m.name: known(statistics.value(m, head)) for m in statistics.metrics}


def _rows(weights: Tensor) -> list[list[float | None]]:
    return [[known(weight) for weight in row] for row in weights.tolist()]


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


def as_parquet(columns: Mapping[str, Column], metadata: Mapping[str, str]) -> bytes:
    """The table as a Parquet file: text, int64 and float64 columns.

    Args:
        columns: as `table` gives them.
        metadata: what is written into the file's metadata.

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
    made = pyarrow.table(arrays, names=list(columns)).replace_schema_metadata(dict(metadata))
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(made, sink)
    return bytes(sink.getvalue())


def known(value: float) -> float | None:
    """A number that JSON and tables can hold; None where no query could show it."""
    return value if math.isfinite(value) else None

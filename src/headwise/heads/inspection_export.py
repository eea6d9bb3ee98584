"""An inspection as JSON, CSV and Parquet. A change of the JSON's layout changes its name, `SCHEMA`.

The layout is described in docs/inspect_report.md, and by the JSON schema ``inspect.schema.json``
in this folder. Its texts come from the model and its user: escape them before showing them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import headwise
from headwise.document.csv_text import Column, as_csv
from headwise.errors import MissingExtra, one_of
from headwise.heads.inspection import Inspection, highlights, model_facts
from headwise.heads.metrics import Metric
from headwise.heads.names import Head
from headwise.heads.statistics import Statistics
from headwise.verify.report.formats import faults as schema_faults

SCHEMA = "headwise.inspect/1"


def schema() -> dict[str, Any]:
    """The JSON schema of the output of `headwise inspect`, for one text or a corpus.

    Example:
        >>> schema()["title"]
        'What headwise inspect measured'
    """
    text = files("headwise.heads").joinpath("inspect.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def faults(value: object) -> list[str]:
    """The places where some data does not fit the schema.

    Example:
        >>> faults([])[0]
        '$: expected object, got list'
    """
    return schema_faults(value, schema())


def as_json(seen: Inspection) -> str:
    """The inspection as JSON text in ASCII, ending in a line break."""
    weights = [
        {"head": str(head), "rows": [[*map(known, row)] for row in weights.tolist()]}
        for head, weights in seen.maps.items()
    ]
    return written(
        {
            "schema": SCHEMA,
            "headwise": headwise.__version__,
            "model": model_facts(seen.loaded, seen.statistics.heads()),
            "text": seen.text,
            "tokens": seen.tokens,
            "targets": seen.targets,
            "tokens_in_text": seen.whole,
            "metrics": explained(seen.statistics.metrics),
            **measured(seen.statistics),
            "weights": weights,
        }
    )


def written(whole: dict[str, Any]) -> str:
    """JSON text in ASCII, ending in a line break."""
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def explained(metrics: tuple[Metric, ...]) -> list[dict[str, Any]]:
    """The definitions of the metrics, in English."""
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
    uniform = {
        str(layer): {m.name: known(statistics.uniform(m, layer)) for m in statistics.metrics}
        for layer in statistics.layers
    }
    heads = statistics.heads()
    return {
        "heads": [{**which(head), "values": values(statistics, head)} for head in heads],
        "uniform": [{"layer": layer, "values": flat} for layer, flat in uniform.items()],
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


HEAD = ("head", "part", "layer", "number")  # the keys, or columns, that identify a head


def which(head: Head) -> dict[str, str | int]:
    """The head of an entry."""
    part, layer = head.layer.part, head.layer.number
    return {"head": str(head), "part": part, "layer": layer, "number": head.number}


def values(statistics: Statistics, head: Head) -> dict[str, float | None]:
    """Every metric of one head; None where no query shows it."""
    return {m.name: known(statistics.value(m, head)) for m in statistics.metrics}


KINDS = ("csv", "parquet")  # the formats of a table


def table(
    statistics: Statistics, names: Mapping[Head, Sequence[str]] | None = None
) -> dict[str, Column]:
    """The columns by name, in their order, a row for each head; ``names`` is a column if given."""
    heads = statistics.heads()
    columns: dict[str, Column] = {key: [which(head)[key] for head in heads] for key in HEAD}
    if names is not None:
        columns["names"] = ["; ".join(names.get(head, ())) for head in heads]
    for metric in statistics.metrics:
        columns[metric.name] = [known(statistics.value(metric, head)) for head in heads]
    for metric in statistics.metrics:
        flat = {layer: known(statistics.uniform(metric, layer)) for layer in statistics.layers}
        columns[f"uniform_{metric.name}"] = [flat[head.layer] for head in heads]
    return columns


def file_of(columns: Mapping[str, Column], kind: str) -> str | bytes:
    """A table as "csv" or "parquet"; raises `BadValue` for another kind."""
    if kind not in KINDS:
        raise one_of("format", kind, KINDS)
    if kind == "csv":
        return as_csv(columns)
    return as_parquet(columns, {"headwise": headwise.__version__})


def as_parquet(columns: Mapping[str, Column], metadata: Mapping[str, str]) -> bytes:
    """The table as a Parquet file with text, int64 and float64 columns; needs pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra.of("pyarrow", "parquet") from error
    kinds = dict.fromkeys(("head", "part", "names"), pyarrow.string())
    kinds |= dict.fromkeys(("layer", "number"), pyarrow.int64())
    other = pyarrow.float64()
    arrays = [pyarrow.array(column, kinds.get(name, other)) for name, column in columns.items()]
    content = pyarrow.table(arrays, names=list(columns)).replace_schema_metadata(dict(metadata))
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(content, sink)
    return bytes(sink.getvalue())


def known(value: float) -> float | None:
    """A number as JSON and tables hold it; None where it is not finite."""
    return value if math.isfinite(value) else None

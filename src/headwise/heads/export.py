"""An inspection as JSON, for programs. The layout is stable; a change to it changes its name.

The layout is described in docs/inspect_report.md and, for validators, in the file
``inspect.schema.json`` beside this one. All text in it comes from the model and its user: escape it
before showing it.
"""

import json
from importlib.resources import files
from typing import Any

from torch import Tensor

import headwise
from headwise.heads.facts import facts_of
from headwise.heads.inspection import Inspection
from headwise.heads.metrics import Metric
from headwise.heads.names import Head
from headwise.heads.standing_out import standing_out
from headwise.heads.statistics import Statistics
from headwise.heads.table import known
from headwise.verify.report.json_schema import faults as schema_faults

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
            "model": facts_of(seen.loaded, seen.statistics),
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
            for fact in standing_out(statistics)
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

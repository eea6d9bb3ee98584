"""An ablation for programs: JSON, and a table with a row a step.

The layout of the JSON is described in docs/ablation.md and, for validators, in the file
``ablate.schema.json`` beside this one; a change to a meaning changes its name.
"""

import json
from importlib.resources import files
from typing import Any

import headwise
from headwise.cli.ablate.measured import Measured
from headwise.heads.effect.against_random import Comparison
from headwise.heads.effect.interval import CONFIDENCE, Interval
from headwise.heads.export import written
from headwise.heads.names import Head
from headwise.heads.table import Column
from headwise.heads.table import as_csv as table_as_csv
from headwise.verify.report.json_schema import faults as schema_faults

SCHEMA = "headwise.ablate/1"


def schema() -> dict[str, Any]:
    """The JSON schema of what `headwise ablate` writes.

    Example:
        >>> schema()["title"]
        'What headwise ablate measured'
    """
    text = files("headwise.cli.ablate").joinpath("ablate.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def faults(value: object) -> list[str]:
    """Where some data is no such report; nothing where it is one.

    Example:
        >>> faults([])[0]
        '$: expected object, got list'
    """
    return schema_faults(value, schema())


def as_json(found: Measured) -> str:
    """The ablation as JSON text in ASCII, ending in a line break."""
    plan, reading = found.plan, found.reading
    return written(
        {
            "schema": SCHEMA,
            "headwise": headwise.__version__,
            "model": dict(found.model),
            "read": {
                "source": reading.source,
                "file": reading.file,
                "sha256": reading.sha256,
                "texts": len(reading.measured),
                "other_texts": len(reading.others),
                "tokens": reading.tokens,
                "length": reading.length,
                "start": reading.start,
            },
            "how": {
                "name": plan.kind.name,
                "title": plan.kind.title.en,
                "formula": plan.kind.formula.en,
                "source": plan.kind.source.en,
            },
            "order": plan.order,
            "seed": plan.seed,
            "seeds": plan.draws,
            "confidence": CONFIDENCE,
            "heads": [str(head) for head in found.order],
            "steps": [_step(found, number) for number in range(len(found.points))],
        }
    )


def as_csv(found: Measured) -> str:
    """A row for the whole model and for each step; empty where nothing was compared."""
    numbers = range(len(found.points))
    columns: dict[str, Column] = {
        "count": [len(point.removed) for point in found.points],
        "share": [point.share for point in found.points],
        "heads": ["; ".join(map(str, gone(found, number))) for number in numbers],
    }
    points = [(point.loss, point.rise) for point in found.points]
    columns |= _columns("loss", [loss for loss, _ in points])
    columns |= _columns("rise", [rise for _, rise in points])
    compared = [compared_at(found, number) for number in numbers]
    for name, part in (("rise_over_seeds", "theirs"), ("random", "random"), ("more", "more")):
        columns |= _columns(name, [getattr(each, part, None) for each in compared])
    return table_as_csv(columns)


def gone(found: Measured, number: int) -> tuple[Head, ...]:
    """The heads that went at a step; none at step 0, the whole model."""
    before = len(found.points[number - 1].removed) if number else 0
    return found.points[number].removed[before:]


def compared_at(found: Measured, number: int) -> Comparison | None:
    """The comparison at a step; None for the whole model, or where none was asked for."""
    return found.comparisons[number - 1] if number and found.comparisons else None


def _step(found: Measured, number: int) -> dict[str, Any]:
    point, compared = found.points[number], compared_at(found, number)
    return {
        "count": len(point.removed),
        "share": point.share,
        "heads": [str(head) for head in gone(found, number)],
        "loss": _interval(point.loss),
        "rise": _interval(point.rise),
        "against_random": compared
        and {
            "theirs": _interval(compared.theirs),
            "random": _interval(compared.random),
            "more": _interval(compared.more),
        },
    }


def _interval(each: Interval | None) -> dict[str, float | int] | None:
    if each is None:
        return None
    return {"mean": each.mean, "low": each.low, "high": each.high, "examples": each.examples}


def _columns(name: str, each: list[Interval | None]) -> dict[str, Column]:
    return {
        name: [None if one is None else one.mean for one in each],
        f"{name}_low": [None if one is None else one.low for one in each],
        f"{name}_high": [None if one is None else one.high for one in each],
    }

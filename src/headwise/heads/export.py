"""An inspection as JSON, for programs. The schema is stable; a change to it changes its name.

    schema          "headwise.inspect/1"
    headwise        the version that wrote it
    model           {name, source, class, type, parameters, layers, heads}; source is "packaged",
                    "directory" or "hub"; heads counts those of all layers
    text            what the model was given
    tokens          what it read, one string a token
    targets         the same for the decoder of an encoder-decoder; otherwise equal to tokens
    tokens_in_text  how many tokens the whole text has; more than len(tokens) where it was cut
    metrics         [{name, title, formula, source, share}], in English; share tells whether it is
                    a share of the attention
    heads           [{head, part, layer, number, values}]; head is "L0H2", layer and number count
                    from 0, values has one number for each metric, null where no query can show it
    uniform         [{layer, values}], the same for a head that attends to all allowed keys alike
    standing_out    [{head, metric, value, uniform, usual}], the most unusual first
    weights         [{head, rows}], rows[i][j] from query i to key j; null where not allowed

All text in it comes from the model and its user: escape it before showing it.
"""

import json
import math

import headwise
from headwise.heads.facts import facts_of
from headwise.heads.inspection import Inspection
from headwise.heads.metrics import METRICS
from headwise.heads.standing_out import standing_out

SCHEMA = "headwise.inspect/1"


def as_json(seen: Inspection) -> str:
    """The inspection as JSON text in ASCII, ending in a line break."""
    return json.dumps(_whole(seen), indent=1, allow_nan=False) + "\n"


def _whole(seen: Inspection) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "headwise": headwise.__version__,
        "model": facts_of(seen.loaded, seen.statistics),
        "text": seen.text,
        "tokens": seen.tokens,
        "targets": seen.targets,
        "tokens_in_text": seen.whole,
        "metrics": [
            {
                "name": metric.name,
                "title": metric.title.en,
                "formula": metric.formula.en,
                "source": metric.source.en,
                "share": metric.share,
            }
            for metric in METRICS
        ],
        **_measured(seen),
        "weights": [
            {"head": str(head), "rows": [[_number(a) for a in row] for row in rows.tolist()]}
            for head, rows in seen.maps.items()
        ],
    }


def _measured(seen: Inspection) -> dict[str, object]:
    statistics = seen.statistics
    return {
        "heads": [
            {
                "head": str(head),
                "part": head.layer.part,
                "layer": head.layer.number,
                "number": head.number,
                "values": {m.name: _number(statistics.value(m, head)) for m in METRICS},
            }
            for head in statistics.heads()
        ],
        "uniform": [
            {
                "layer": str(layer),
                "values": {m.name: _number(statistics.uniform(m, layer)) for m in METRICS},
            }
            for layer in statistics.layers
        ],
        "standing_out": [
            {
                "head": str(fact.head),
                "metric": fact.metric.name,
                "value": fact.value,
                "uniform": _number(fact.uniform),
                "usual": fact.usual,
            }
            for fact in standing_out(statistics)
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None

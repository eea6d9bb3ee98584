"""A corpus run as JSON, for programs; the layout is in ``heads/inspect.schema.json``."""

import headwise
from headwise.heads.alignment import Alignment
from headwise.heads.corpus.gathered import COUNTS
from headwise.heads.corpus.saved import Run
from headwise.heads.export import explained, measured, values, written
from headwise.heads.statistics import Statistics
from headwise.heads.table import known
from headwise.heads.taxonomy import Named

SCHEMA = "headwise.inspect.corpus/1"


def as_json(run: Run) -> str:
    """The run as JSON text in ASCII, ending in a line break."""
    whole = run.gathered.whole()
    counts = {name: whole.number(name) for name in COUNTS}
    return written(
        {
            "schema": SCHEMA,
            "headwise": headwise.__version__,
            "model": dict(run.model),
            "corpus": {**run.corpus, **counts},
            "metrics": explained(whole.statistics.metrics),
            **measured(whole.statistics),
            "halves": [
                _half(half.statistics) for half in (run.gathered.first, run.gathered.second)
            ],
            "alignment": _aligned(whole.alignment),
            "names": [_named(each) for each in run.names],
        }
    )


def _named(named: Named) -> dict[str, object]:
    return {
        "head": str(named.head),
        "name": named.name,
        "criterion": named.criterion.en,
        "first_half": known(named.found),
        "second_half": known(named.value),
        "bar": known(named.bar),
        "uniform": known(named.uniform),
        "random": known(named.random),
        "offset": known(named.rule),
        "texts": named.texts,
        "chance": named.chance,
    }


def _half(statistics: Statistics) -> list[dict[str, object]]:
    return [{"head": str(head), "values": values(statistics, head)} for head in statistics.heads()]


def _aligned(alignment: Alignment) -> list[dict[str, object]]:
    return [
        {
            "head": str(head),
            "accuracy": known(alignment.accuracy(head)),
            "mean_weight": known(alignment.mean_weight(head)),
            "error_rate": known(alignment.error_rate(head)),
        }
        for head in alignment.heads()
    ]

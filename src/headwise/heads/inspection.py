"""Inspect one model on one text: measure every head, and highlight unusual heads."""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadValue
from headwise.heads.capture import capture
from headwise.heads.metrics import METRICS, Metric
from headwise.heads.model_inputs import encode, run, separators, tokens
from headwise.heads.models.load import Loaded
from headwise.heads.models.whisper import takes_sound
from headwise.heads.names import Head, not_in_model
from headwise.heads.statistics import Statistics

MOSTLY = 0.5  # a highlight has a larger share; source: the code of Clark et al. 2019
BEYOND_UNIFORM = 2.0  # and at least this many times the share of a uniform head


@dataclass(frozen=True)
class Fact:
    """The fact that a head gives most of its attention to one kind of token.

    Attributes:
        head, metric, value: the head, the metric, and the share of the attention.
        uniform: the share of a head that attends equally to all keys.
        usual: the median share over all heads of the same part of the model.
    """

    head: Head
    metric: Metric
    value: float
    uniform: float
    usual: float


def highlights(statistics: Statistics) -> tuple[Fact, ...]:
    """Return every head that gives most of its attention to one kind of token, with that share.

    Heads are sorted by the difference of the share from that of the median head.
    """
    facts = []
    for part in {layer.part: None for layer in statistics.layers}:
        heads = [head for head in statistics.heads() if head.layer.part == part]
        shares = {metric: _values(statistics, metric, heads) for metric in METRICS if metric.share}
        for head in heads:
            metrics = [metric for metric, values in shares.items() if head in values]
            if not metrics:
                continue
            best = max(metrics, key=lambda metric: shares[metric][head])
            value, uniform = shares[best][head], statistics.uniform(best, head.layer)
            if value > MOSTLY and value >= BEYOND_UNIFORM * uniform:
                facts.append(Fact(head, best, value, uniform, median(shares[best].values())))
    return tuple(sorted(facts, key=lambda fact: fact.usual - fact.value))


def _values(statistics: Statistics, metric: Metric, heads: list[Head]) -> dict[Head, float]:
    """Return the values of the heads for which the metric is defined."""
    values = {head: statistics.value(metric, head) for head in heads}
    return {head: value for head, value in values.items() if not math.isnan(value)}


MOST_CELLS = 2_000_000  # the most weights in the heat maps of a report: 16 MB of numbers
DRAWN = 3  # the number of heads with a heat map by default
EVERY = "all"


@dataclass(frozen=True, eq=False)
class Inspection:
    """The measurements of one model on one text.

    Attributes:
        loaded, text, statistics: the model, the text, and every metric of every head.
        tokens: the tokens of the text in readable form; untrusted text.
        targets: the tokens of the decoder in an encoder-decoder; otherwise ``tokens``.
        whole: the number of tokens of the text before truncation.
        maps: the attention weights (Lq, Lk) of the selected heads; NaN where not allowed.
    """

    loaded: Loaded
    text: str
    tokens: tuple[str, ...]
    targets: tuple[str, ...]
    whole: int
    statistics: Statistics
    maps: dict[Head, Tensor]

    def sides(self, head: Head) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the tokens of the queries and the tokens of the keys of a head."""
        queries = self.tokens if head.layer.part in ("", "encoder") else self.targets
        keys = self.targets if head.layer.part == "decoder" else self.tokens
        return queries, keys


def inspect(
    loaded: Loaded,
    text: str,
    *,
    heads: Collection[Head] | str | None = None,
    truncate: bool = False,
) -> Inspection:
    """Run a model on a text and measure every head.

    The model runs twice: first for the statistics, which select the highlights, then for the
    weights of the selected heads, so the weights of all heads are never in memory together.

    Args:
        loaded: the model and its tokenizer.
        text: the text. The decoder of an encoder-decoder receives it shifted by one token.
        heads: the heads whose weights are stored; "all"; or None for the first three highlights.
        truncate: whether to truncate a text that is too long instead of raising an error.

    Raises:
        BadValue: if the text is empty or too long, a head does not exist, or the heads have more
            weights than a report can draw.
        BadFile: if the model does not run on text.
    """
    if takes_sound(loaded.model):
        line = '{"text": "speech.wav", "target": "what is said"}'
        raise BadValue(
            "sentence: {loaded_name} is a speech model; use --corpus FILE.jsonl with lines "
            "such as {line}",
            loaded_name=clean(loaded.name),
            line=line,
        )
    inputs, whole = encode(loaded, text, truncate=truncate)
    special = separators(loaded.tokenizer)
    with capture(loaded.model, separators=special) as first:
        run(loaded, inputs)
    ids = inputs["input_ids"]
    drawn = _drawn(heads, first.statistics)
    _check_size(drawn, ids.shape[1])
    with capture(loaded.model, heads=drawn, separators=special) as second:
        run(loaded, inputs)
    target_ids = inputs.get("decoder_input_ids", ids)
    return Inspection(
        loaded=loaded,
        text=text,
        tokens=tokens(loaded.tokenizer, ids[0].tolist()),
        targets=tokens(loaded.target_tokenizer, target_ids[0].tolist()),
        whole=whole,
        statistics=first.statistics,
        maps={
            head: torch.where(second.allowed[head][0], second.weights[head][0], torch.nan)
            for head in drawn
        },
    )


def _drawn(heads: Collection[Head] | str | None, statistics: Statistics) -> tuple[Head, ...]:
    every = statistics.heads()
    if heads is None:
        return tuple(fact.head for fact in highlights(statistics)[:DRAWN]) or every[:1]
    if isinstance(heads, str):
        if heads != EVERY:
            raise BadValue(
                "heads: expected heads or 'all', got {heads!r}; convert names with parse_heads",
                heads=heads,
            )
        return every
    for head in heads:
        if head not in every:
            raise not_in_model(head, Counter(own.layer for own in every))
    return tuple(heads)


def _check_size(heads: tuple[Head, ...], length: int) -> None:
    cells = len(heads) * length * length
    if cells > MOST_CELLS:
        raise BadValue(
            "heads: {num_heads} heads on {length} tokens have {cells} weights, and at most "
            "{most_cells} are drawn; choose {most} heads or fewer, or shorten the text",
            num_heads=len(heads),
            length=length,
            cells=cells,
            most_cells=MOST_CELLS,
            most=MOST_CELLS // (length * length),
        )


def model_facts(loaded: Loaded, heads: tuple[Head, ...]) -> dict[str, str | int]:
    """Return name, type and sizes of a model in the order of a report; ``heads`` are all heads."""
    return {
        "name": loaded.name,
        "source": loaded.source,
        "class": type(loaded.model).__name__,
        "type": str(loaded.config.model_type),
        "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
        "layers": len({head.layer for head in heads}),
        "heads": len(heads),
    }

"""One text through one model: what every head does on it, and which heads stand out."""

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

MOSTLY = 0.5  # a head stands out by a share above this; source: the code of Clark et al. 2019
BEYOND_UNIFORM = 2.0  # and of this many times a uniform head's, which is large on a short text


@dataclass(frozen=True)
class Fact:
    """One head gives most of its attention to one kind of token.

    Attributes:
        head, metric, value: the head, and the share by which it stands out.
        uniform: the share of a head that attends equally to all keys.
        usual: the median share over all heads of the same part of the model.
    """

    head: Head
    metric: Metric
    value: float
    uniform: float
    usual: float


def highlights(statistics: Statistics) -> tuple[Fact, ...]:
    """Every head that gives most of its attention to one kind of token, named by its largest share.

    Heads are sorted by how far the share is above the median head's.
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
    """The values of the heads that have one: NaN means that no query shows it."""
    values = {head: statistics.value(metric, head) for head in heads}
    return {head: value for head, value in values.items() if not math.isnan(value)}


MOST_CELLS = 2_000_000  # the most weights in the heat maps of a report: 16 MB of numbers
DRAWN = 3  # the number of heads that are drawn by default
EVERY = "all"


@dataclass(frozen=True, eq=False)
class Inspection:
    """The measurements of one model on one text.

    Attributes:
        loaded, text, statistics: the model, its input, and every metric of every head.
        tokens: the tokens of the text, readable; untrusted text.
        targets: the decoder's tokens in an encoder-decoder; otherwise ``tokens``.
        whole: the number of tokens of the text before it was cut.
        maps: the weights (Lq, Lk) of the chosen heads; NaN where a pair is not allowed.
    """

    loaded: Loaded
    text: str
    tokens: tuple[str, ...]
    targets: tuple[str, ...]
    whole: int
    statistics: Statistics
    maps: dict[Head, Tensor]

    def sides(self, head: Head) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens of a head's queries, and those of its keys."""
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
    """Run a text through a model and measure every head.

    The model runs twice: for the statistics, which show what stands out, and for the weights of the
    heads to draw, so that the weights of all heads are never in memory together.

    Args:
        loaded: the model and its tokenizer.
        text: its input. The decoder of an encoder-decoder reads the same text, one token behind.
        heads: the heads whose weights are kept; "all"; or None for the three that stand out most.
        truncate: cut a text that is longer than the model takes, instead of refusing it.

    Raises:
        BadValue: if the text is empty or too long, a head does not exist, or the heads have more
            weights than a report can draw.
        BadFile: if the model does not run on text.
    """
    if takes_sound(loaded.model):
        line = '{"text": "speech.wav", "target": "what is said"}'
        raise BadValue(
            "sentence: {loaded_name} hears sound, and no words stand at its keys; give "
            "--corpus FILE.jsonl with lines such as {line}",
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
                "heads: expected heads or 'all', got {heads!r}; parse_heads reads 'L0H2,L1H8'",
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
            "heads: {num_heads} heads on {length} tokens are {cells} weights to draw, at "
            "most {most_cells} are; ask for {most} heads or fewer, or shorten the text",
            num_heads=len(heads),
            length=length,
            cells=cells,
            most_cells=MOST_CELLS,
            most=MOST_CELLS // (length * length),
        )


def model_facts(loaded: Loaded, heads: tuple[Head, ...]) -> dict[str, str | int]:
    """The model's name, type and sizes, in the order of a report; ``heads`` are all it has."""
    return {
        "name": loaded.name,
        "source": loaded.source,
        "class": type(loaded.model).__name__,
        "type": str(loaded.config.model_type),
        "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
        "layers": len({head.layer for head in heads}),
        "heads": len(heads),
    }

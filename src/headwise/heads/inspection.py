"""One text through one model: what every head does on it, and which heads stand out."""

import math
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
from headwise.heads.names import Head
from headwise.heads.statistics import Statistics

MOSTLY = 0.5
"""The share from which a head is said to look somewhere. Source: Clark et al. 2019 (their code)."""

BEYOND_UNIFORM = 2.0
"""A share must also be this many times what a head gives that attends to everything alike: on a
text of three tokens half of the attention is no news."""


@dataclass(frozen=True)
class Fact:
    """One head gives most of its attention to one kind of token.

    Attributes:
        head: which.
        metric: the share it stands out by.
        value: that share.
        uniform: the share that a head which attends to everything alike would give.
        usual: the median share over all heads of the same part of the model.
    """

    head: Head
    metric: Metric
    value: float
    uniform: float
    usual: float


def highlights(statistics: Statistics) -> tuple[Fact, ...]:
    """Every head that gives most of its attention to one kind of token.

    A head is named once, by the largest of its shares. Those come first whose share is furthest
    above the median head's: one head in a model that looks at the previous token stands out more
    than one of thirty that look at the first.
    """
    facts = []
    for part in {layer.part: None for layer in statistics.layers}:
        heads = [head for head in statistics.heads() if head.layer.part == part]
        shares = {metric: _values(statistics, metric, heads) for metric in METRICS if metric.share}
        facts += [_strongest(statistics, head, shares) for head in heads]
    found = [fact for fact in facts if fact is not None and _says_something(fact)]
    return tuple(sorted(found, key=lambda fact: fact.usual - fact.value))


def _says_something(fact: Fact) -> bool:
    return fact.value > MOSTLY and fact.value >= BEYOND_UNIFORM * fact.uniform


def _values(statistics: Statistics, metric: Metric, heads: list[Head]) -> dict[Head, float]:
    """The heads that the metric has a value for: NaN means that no query could show it."""
    values = {head: statistics.value(metric, head) for head in heads}
    return {head: value for head, value in values.items() if not math.isnan(value)}


def _strongest(
    statistics: Statistics, head: Head, shares: dict[Metric, dict[Head, float]]
) -> Fact | None:
    known = [metric for metric, values in shares.items() if head in values]
    if not known:
        return None
    best = max(known, key=lambda metric: shares[metric][head])
    return Fact(
        head=head,
        metric=best,
        value=shares[best][head],
        uniform=statistics.uniform(best, head.layer),
        usual=median(shares[best].values()),
    )


MOST_CELLS = 2_000_000
"""How many weights a report may draw, over all heads asked for: 16 MB of numbers."""

DRAWN = 3
"""How many heads are drawn when none is asked for."""

EVERY = "all"
"""What asks for every head."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """What was seen.

    Attributes:
        loaded: the model.
        text: what it was given.
        tokens: what the tokenizer made of it, as a person reads it; untrusted text.
        targets: the same for the decoder of an encoder-decoder; otherwise the tokens themselves.
        whole: how many tokens the whole text has; more than ``tokens`` where it was cut.
        statistics: every metric of every head.
        maps: for each head that was asked for, or stands out, its weights (Lq, Lk); NaN where a
            pair is not allowed.
    """

    loaded: Loaded
    text: str
    tokens: tuple[str, ...]
    targets: tuple[str, ...]
    whole: int
    statistics: Statistics
    maps: dict[Head, Tensor]

    def sides(self, head: Head) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens that a head's queries stand for, and those its keys stand for."""
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

    The text is run twice: once for the statistics, which show what stands out, and once for the
    weights of the heads to draw, so that the weights of all heads are never held together.

    Args:
        loaded: the model and its tokenizer.
        text: what it reads. An encoder-decoder's decoder reads the same text, one token behind.
        heads: which heads' weights to keep; "all"; or None for the three that stand out most.
        truncate: cut a text that is longer than the model takes, instead of refusing it.

    Raises:
        BadValue: if the text is empty or too long, a head does not exist, or the heads asked for
            have more weights together than a report can draw.
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
    wanted = _wanted(heads, first.statistics)
    length = inputs["input_ids"].shape[1]
    _drawable(wanted, length)
    with capture(loaded.model, heads=wanted, separators=special) as second:
        run(loaded, inputs)
    read = inputs["input_ids"]
    return Inspection(
        loaded=loaded,
        text=text,
        tokens=tokens(loaded.tokenizer, read[0].tolist()),
        targets=tokens(loaded.target_tokenizer, inputs.get("decoder_input_ids", read)[0].tolist()),
        whole=whole,
        statistics=first.statistics,
        maps={
            head: torch.where(second.allowed[head][0], second.weights[head][0], torch.nan)
            for head in wanted
        },
    )


def _wanted(heads: Collection[Head] | str | None, statistics: Statistics) -> tuple[Head, ...]:
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
            raise BadValue(
                "heads: {head} does not exist; this model has {range}, counted from 0",
                head=head,
                range=_range(statistics),
            )
    return tuple(heads)


def _range(statistics: Statistics) -> str:
    """The first and last head of each part: "L0H0 to L5H11"."""
    parts: dict[str, list[Head]] = {}
    for head in statistics.heads():
        parts.setdefault(head.layer.part, []).append(head)
    return ", ".join(f"{heads[0]} … {heads[-1]}" for heads in parts.values())


def _drawable(heads: tuple[Head, ...], length: int) -> None:
    cells = len(heads) * length * length
    if cells > MOST_CELLS:
        most = MOST_CELLS // (length * length)
        raise BadValue(
            "heads: {num_heads} heads on {length} tokens are {cells} weights to draw, at "
            "most {most_cells} are; ask for {most} heads or fewer, or shorten the text",
            num_heads=len(heads),
            length=length,
            cells=cells,
            most_cells=MOST_CELLS,
            most=most,
        )


def model_facts(loaded: Loaded, statistics: Statistics) -> dict[str, str | int]:
    """The model's name, kind and sizes, in an order fit for reading."""
    return {
        "name": loaded.name,
        "source": loaded.source,
        "class": type(loaded.model).__name__,
        "type": str(loaded.config.model_type),
        "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
        "layers": len(statistics.layers),
        "heads": len(statistics.heads()),
    }

"""What a report says from the statistics alone: what stands out, and the numbers of every head."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headwise.document import Block, Document, Heading, HeatMap, Paragraph, Table
from headwise.heads.inspection import Fact, Inspection, highlights, model_facts
from headwise.heads.metrics import MEASURED, METRICS, Metric
from headwise.heads.names import Head, Layer
from headwise.heads.statistics import Statistics
from headwise.lang import Text, same

MOST_ROWS = 100
"""Up to this many heads each have a row; of more only the extremes are shown."""

MOST_FACTS = 12
LONGEST_TOKEN = 40
EXTREMES = 3

Row = tuple[Text, ...]

_SOURCES = {"packaged": Text("a package"), "directory": Text("a directory"), "hub": Text("the hub")}

_FACTS = (
    ("class", Text("class")),
    ("type", Text("architecture")),
    ("parameters", Text("parameters")),
    ("layers", Text("layers of attention")),
    ("heads", Text("heads")),
)

PLACES = {
    "previous": Text("the previous token"),
    "next": Text("the next token"),
    "self": Text("the token itself"),
    "first": Text("the first token"),
    "separators": Text("separators"),
}
"""What a head looks at that stands out by a share."""


def of_the_model(facts: Mapping[str, str | int], more: Sequence[Row] = ()) -> tuple[Block, ...]:
    """What the model is, and rows about what it read; `facts` as `model_facts` gives them."""
    source = str(facts["source"])
    rows: list[Row] = [(Text("from"), _SOURCES.get(source, same(source)))]
    rows += [(label, written(facts[key])) for key, label in _FACTS]
    return (
        Paragraph(
            Text(
                "L0H2 is layer 0, head 2; layers and heads are counted from 0. Special tokens "
                "take part in every number, padding in none."
            )
        ),
        Table((Text("model"), written(facts["name"])), [*rows, *more]),
    )


def written(value: str | int) -> Text:
    """A name, or a count with its thousands apart."""
    return same(f"{value:,}" if isinstance(value, int) else value)


def outstanding(statistics: Statistics, caution: Text) -> tuple[Block, ...]:
    """How many heads look mostly at one kind of token, and which most of all.

    Args:
        statistics: of all heads.
        caution: what the reader should keep in mind.
    """
    facts = highlights(statistics)
    if not facts:
        return (
            Paragraph(
                Text(
                    "No head gives most of its attention to the previous, next or first token, "
                    "to itself or to separators."
                )
            ),
        )
    return (*_counts(facts, statistics), _facts(facts), _more(facts, caution))


def _counts(facts: tuple[Fact, ...], statistics: Statistics) -> Iterable[Block]:
    """One sentence for each kind of token: how many heads look mostly there."""
    total = len(statistics.heads())
    for name, count in Counter(fact.metric.name for fact in facts).most_common():
        yield Paragraph(
            Text(
                "Heads that give most of their attention to {place}: {count} of {total}.",
                place=PLACES[name],
                count=count,
                total=total,
            )
        )


def _facts(facts: tuple[Fact, ...]) -> Table:
    return Table(
        (Text("head"), Text("looks at"), Text("share"), Text("median head"), Text("uniform head")),
        [
            (
                same(str(fact.head)),
                PLACES[fact.metric.name],
                same(number(fact.value)),
                same(number(fact.usual)),
                same(number(fact.uniform)),
            )
            for fact in facts[:MOST_FACTS]
        ],
    )


def _more(facts: tuple[Fact, ...], caution: Text) -> Paragraph:
    left = max(0, len(facts) - MOST_FACTS)
    order = Text("The most unusual first: furthest above the median head.")
    if not left:
        return Paragraph(Text("{order} {caution}", order=order, caution=caution))
    return Paragraph(
        Text(
            "{order} {left} more heads are not listed. {caution}",
            order=order,
            left=left,
            caution=caution,
        )
    )


def _shown(statistics: Statistics) -> tuple[Metric, ...]:
    return tuple(metric for metric in statistics.metrics if metric in METRICS)


def every_head(statistics: Statistics) -> tuple[Block, ...]:
    """Each head's metrics beside those of a uniform head; of many heads only the extremes."""
    heads, metrics = statistics.heads(), _shown(statistics)
    if len(heads) <= MOST_ROWS:
        head = (Text("head"), *(metric.label for metric in metrics))
        rows = [_row(str(h), [statistics.value(m, h) for m in metrics]) for h in heads]
        return (Heading(Text("Every head")), Table(head, [*_uniform_rows(statistics), *rows]))
    return (
        Heading(Text("The extremes of {num_heads} heads", num_heads=len(heads))),
        _extremes(statistics),
        Table((Text("baseline"), *(metric.label for metric in metrics)), _uniform_rows(statistics)),
    )


def _uniform_rows(statistics: Statistics) -> list[tuple[Text, ...]]:
    """What a uniform head would give: one row for all layers whose masks are alike."""
    alike: dict[tuple[str, ...], list[Layer]] = {}
    metrics = _shown(statistics)
    for layer in statistics.layers:
        values = tuple(number(statistics.uniform(metric, layer)) for metric in metrics)
        alike.setdefault(values, []).append(layer)
    rows = []
    for values, layers in alike.items():
        where = f" {layers[0]}…{layers[-1]}" if len(alike) > 1 else ""
        label = Text("uniform{where}", where=where)
        rows.append((label, *(same(value) for value in values)))
    return rows


def _row(label: str, values: list[float]) -> tuple[Text, ...]:
    return (same(label), *(same(number(value)) for value in values))


def _extremes(statistics: Statistics) -> Table:
    rows = []
    for metric in _shown(statistics):
        values = {head: statistics.value(metric, head) for head in statistics.heads()}
        known = sorted(
            (head for head, value in values.items() if not math.isnan(value)),
            key=lambda head: -values[head],
        )
        highest, lowest = known[:EXTREMES], known[-EXTREMES:][::-1]
        rows.append((metric.label, _listed(highest, values), _listed(lowest, values)))
    return Table((Text("metric"), Text("highest"), Text("lowest")), rows)


def _listed(heads: list[Head], values: dict[Head, float]) -> Text:
    return same(", ".join(f"{head} {number(values[head])}" for head in heads) or "–")


def legend() -> tuple[Block, ...]:
    """What the metrics are."""
    return (
        Heading(Text("The metrics")),
        Paragraph(
            Text(
                "A[i,j] is the weight from query i to key j; a mean runs over the queries that "
                "count. A dash stands where no query can show it."
            )
        ),
        *_further(len(MEASURED) - len(METRICS)),
        Table(
            (Text("name"), Text("meaning"), Text("formula"), Text("published variant")),
            [_explained(metric) for metric in METRICS],
        ),
    )


def _further(count: int) -> tuple[Block, ...]:
    """Where the metrics are that have no column here."""
    if count <= 0:
        return ()
    return (
        Paragraph(
            Text("{count} more metrics are in the JSON, CSV and Parquet files.", count=count)
        ),
    )


def _explained(metric: Metric) -> tuple[Text, Text, Text, Text]:
    return metric.label, metric.title, metric.formula, metric.source


def short(token: str) -> str:
    """A token cut to a length that fits into a line."""
    return token if len(token) <= LONGEST_TOKEN else token[: LONGEST_TOKEN - 1] + "…"


def number(value: float) -> str:
    """A value with two decimals; a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:.2f}"


MOST_TOKENS = 200


def report(seen: Inspection) -> Document:
    """The document that a person reads."""
    return Document(
        Text("The heads of {loaded_name}", loaded_name=seen.loaded.name),
        (
            *of_the_model(model_facts(seen.loaded, seen.statistics)),
            *_text(seen),
            Heading(Text("What stands out on this text")),
            *outstanding(seen.statistics, _ONE_TEXT),
            *_maps(seen),
            *every_head(seen.statistics),
            *legend(),
        ),
        precision=2,
    )


_ONE_TEXT = Text("This is one text; it says what the heads did here, not what they are for.")


def _text(seen: Inspection) -> tuple[Block, ...]:
    count = len(seen.tokens)
    listed = " ".join(f"{i}:{short(t)}" for i, t in enumerate(seen.tokens[:MOST_TOKENS]))
    rest = " …" if count > MOST_TOKENS else ""
    blocks: list[Block] = [
        Heading(Text("The text, {count} tokens", count=count)),
        Paragraph(same(listed + rest)),
    ]
    if seen.whole > count:
        blocks.append(
            Paragraph(
                Text(
                    "The text has {whole} tokens and was cut: the model takes {count}.",
                    whole=seen.whole,
                    count=count,
                )
            )
        )
    if seen.loaded.config.is_encoder_decoder:
        blocks.append(Paragraph(Text("The decoder reads the same text, one token behind.")))
    return tuple(blocks)


def _maps(seen: Inspection) -> Iterable[Block]:
    yield Heading(Text("Attention weights"))
    yield Paragraph(
        Text(
            "Rows are queries, columns are keys. A row sums to 1, or to less where the model "
            "has a learned sink."
        )
    )
    named = {fact.head: fact for fact in highlights(seen.statistics)}
    for head, weights in seen.maps.items():
        rows, columns = seen.sides(head)
        yield HeatMap(
            _title(head, named.get(head)),
            weights.tolist(),
            [short(token) for token in rows],
            [short(token) for token in columns],
        )


def _title(head: Head, fact: Fact | None) -> Text:
    if fact is None:
        return same(str(head))
    place, share = PLACES[fact.metric.name], number(fact.value)
    return Text("{head}: {place} {share}", head=head, place=place, share=share)

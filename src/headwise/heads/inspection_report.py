"""The report of an inspection, and its parts that need only the statistics."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headwise.document import Block, Document, Heading, HeatMap, Paragraph, Table
from headwise.heads.inspection import Inspection, highlights, model_facts
from headwise.heads.metrics import MEASURED, METRICS, Metric
from headwise.heads.names import Head, Layer
from headwise.heads.statistics import Statistics
from headwise.lang import Text, same

MOST_ROWS = 100  # for more heads, only the highest and lowest values of each metric are shown
MOST_FACTS = 12
LONGEST_TOKEN = 40
MOST_TOKENS = 200
EXTREMES = 3
Row = tuple[Text, ...]
_SOURCES = {"packaged": Text("package"), "directory": Text("directory"), "hub": Text("hub")}

_FACTS = (
    ("class", Text("class")),
    ("type", Text("architecture")),
    ("parameters", Text("parameters")),
    ("layers", Text("attention layers")),
    ("heads", Text("heads")),
)

PLACES = {
    "previous": Text("the previous token"),
    "next": Text("the next token"),
    "self": Text("the token itself"),
    "first": Text("the first token"),
    "separators": Text("separators"),
}
"""The kinds of tokens whose share of the attention a metric measures."""


def place_of(metric: Metric) -> Text:
    """Return the kind of tokens whose share of the attention a metric measures."""
    return PLACES.get(metric.name, metric.title)


def of_the_model(facts: Mapping[str, str | int], more: Sequence[Row] = ()) -> tuple[Block, ...]:
    """Return a table of `model_facts` and ``more`` rows, with a note on the notation."""
    source = str(facts["source"])
    rows: list[Row] = [(Text("source"), _SOURCES.get(source, same(source)))]
    rows += [(label, written(facts[key])) for key, label in _FACTS]
    notation = Text(
        "L0H2 is layer 0, head 2; layers and heads are counted from 0. All values include special "
        "tokens and exclude padding."
    )
    return Paragraph(notation), Table((Text("model"), written(facts["name"])), [*rows, *more])


def written(value: str | int) -> Text:
    """Format a name, or a count with commas between thousands."""
    return same(f"{value:,}" if isinstance(value, int) else value)


def outstanding(statistics: Statistics, caution: Text) -> tuple[Block, ...]:
    """Return counts and a table of the highlights of `highlights`, and a caution."""
    facts, total = highlights(statistics), len(statistics.heads())
    if not facts:
        no_head = Text(
            "No head gives most of its attention to the previous token, the next token, the token "
            "itself, the first token or separators."
        )
        return (Paragraph(no_head),)
    blocks: list[Block] = []
    places = {fact.metric.name: place_of(fact.metric) for fact in facts}
    for name, count in Counter(fact.metric.name for fact in facts).most_common():
        sentence = Text(
            "Heads with most of their attention on {place}: {count} of {total}.",
            place=places[name],
            count=count,
            total=total,
        )
        blocks.append(Paragraph(sentence))
    rows = []
    for fact in facts[:MOST_FACTS]:
        shares = map(number, (fact.value, fact.usual, fact.uniform))
        rows.append((same(str(fact.head)), place_of(fact.metric), *map(same, shares)))
    shares_of = (Text("share"), Text("median head"), Text("uniform head"))
    blocks.append(Table((Text("head"), Text("attends to"), *shares_of), rows))
    order = Text("Heads are sorted by the difference from the median head.")
    closing = Text("{order} {caution}", order=order, caution=caution)
    if len(facts) > MOST_FACTS:
        closing = Text(
            "{order} {left} more heads are not listed. {caution}",
            order=order,
            left=len(facts) - MOST_FACTS,
            caution=caution,
        )
    return (*blocks, Paragraph(closing))


def _shown(statistics: Statistics) -> tuple[Metric, ...]:
    return tuple(metric for metric in statistics.metrics if metric in METRICS)


def every_head(statistics: Statistics) -> tuple[Block, ...]:
    """Return the metrics of all heads and of a uniform head; for many heads only the extremes."""
    heads, metrics = statistics.heads(), _shown(statistics)
    labels, uniform = [metric.label for metric in metrics], _uniform_rows(statistics)
    if len(heads) <= MOST_ROWS:
        rows = [
            (same(str(head)), *(same(number(statistics.value(metric, head))) for metric in metrics))
            for head in heads
        ]
        return Heading(Text("All heads")), Table((Text("head"), *labels), [*uniform, *rows])
    heading = Heading(Text("Highest and lowest of {num_heads} heads", num_heads=len(heads)))
    return heading, _extremes(statistics), Table((Text("baseline"), *labels), uniform)


def _uniform_rows(statistics: Statistics) -> list[tuple[Text, ...]]:
    """Return the metrics of a uniform head, in one row for all layers with equal values."""
    alike: dict[tuple[str, ...], list[Layer]] = {}
    for layer in statistics.layers:
        values = tuple(number(statistics.uniform(m, layer)) for m in _shown(statistics))
        alike.setdefault(values, []).append(layer)
    rows = []
    for values, layers in alike.items():
        where = f" {layers[0]}…{layers[-1]}" if len(alike) > 1 else ""
        label = Text("uniform{where}", where=where)
        rows.append((label, *(same(value) for value in values)))
    return rows


def _extremes(statistics: Statistics) -> Table:
    rows = []
    for metric in _shown(statistics):
        values = {head: statistics.value(metric, head) for head in statistics.heads()}
        shown = [head for head, value in values.items() if not math.isnan(value)]
        shown.sort(key=lambda head: -values[head])
        highest, lowest = shown[:EXTREMES], shown[-EXTREMES:][::-1]
        rows.append((metric.label, _listed(highest, values), _listed(lowest, values)))
    return Table((Text("metric"), Text("highest"), Text("lowest")), rows)


def _listed(heads: list[Head], values: dict[Head, float]) -> Text:
    return same(", ".join(f"{head} {number(values[head])}" for head in heads) or "–")


def legend() -> tuple[Block, ...]:
    """Return the definitions of the metrics."""
    notation = Text(
        "A[i,j] is the attention weight from query i to key j; means are over queries that are not "
        "padding. A dash means that the metric is undefined for all queries."
    )
    others = len(MEASURED) - len(METRICS)
    more = Text("{count} more metrics are in the JSON, CSV and Parquet files.", count=others)
    columns = (Text("name"), Text("meaning"), Text("formula"), Text("published source"))
    rows = [(metric.label, metric.title, metric.formula, metric.source) for metric in METRICS]
    return (Heading(Text("Metrics")), Paragraph(notation), Paragraph(more), Table(columns, rows))


def short(token: str) -> str:
    """Cut a token to `LONGEST_TOKEN` characters."""
    return token if len(token) <= LONGEST_TOKEN else token[: LONGEST_TOKEN - 1] + "…"


def number(value: float) -> str:
    """Format a value with two decimals; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.2f}"


def report(seen: Inspection) -> Document:
    """Return the report of an inspection as a document."""
    caution = Text("The values describe the attention on one text, not the purpose of a head.")
    return Document(
        Text("The heads of {loaded_name}", loaded_name=seen.loaded.name),
        (
            *of_the_model(model_facts(seen.loaded, seen.statistics.heads())),
            *_text(seen),
            Heading(Text("Highlights on this text")),
            *outstanding(seen.statistics, caution),
            *_maps(seen),
            *every_head(seen.statistics),
            *legend(),
        ),
        precision=2,
    )


def _text(seen: Inspection) -> tuple[Block, ...]:
    count = len(seen.tokens)
    listed = " ".join(f"{i}:{short(t)}" for i, t in enumerate(seen.tokens[:MOST_TOKENS]))
    rest = " …" if count > MOST_TOKENS else ""
    blocks: list[Block] = [
        Heading(Text("Text of {count} tokens", count=count)),
        Paragraph(same(listed + rest)),
    ]
    if seen.whole > count:
        cut = Text(
            "The text has {whole} tokens and was truncated to {count}, the limit of the model.",
            whole=seen.whole,
            count=count,
        )
        blocks.append(Paragraph(cut))
    if seen.loaded.config.is_encoder_decoder:
        blocks.append(Paragraph(Text("The decoder receives the same text, shifted by one token.")))
    return tuple(blocks)


def _maps(seen: Inspection) -> Iterable[Block]:
    yield Heading(Text("Attention weights"))
    explanation = Text(
        "Rows are queries, columns are keys. Each row sums to 1, or to less if the model has a "
        "learned sink."
    )
    yield Paragraph(explanation)
    titles = {}
    for fact in highlights(seen.statistics):
        head, place, share = fact.head, place_of(fact.metric), number(fact.value)
        titles[head] = Text("{head}: {place} {share}", head=head, place=place, share=share)
    for head, weights in seen.maps.items():
        rows, columns = ([short(token) for token in side] for side in seen.sides(head))
        yield HeatMap(titles.get(head, same(str(head))), weights.tolist(), rows, columns)

"""The report of a corpus run: a document, a table, and JSON of ``heads/inspect.schema.json``."""

import math

import headwise
from headwise.document import Block, Document, Heading, Paragraph, Table
from headwise.document.csv_text import Column
from headwise.heads.analysis.alignment import Alignment
from headwise.heads.analysis.similarity import NOT_COMPARED, is_comparable
from headwise.heads.corpus.accumulated import COUNTS, Half
from headwise.heads.corpus.checkpoint import Run
from headwise.heads.inspection_export import explained, known, measured, table, values
from headwise.heads.inspection_export import written as as_text
from headwise.heads.inspection_report import (
    Row,
    every_head,
    legend,
    number,
    of_the_model,
    outstanding,
    written,
)
from headwise.heads.names import Head
from headwise.heads.naming import UNEXPLAINED, Named
from headwise.heads.statistics import Statistics
from headwise.lang import Text, same

MOST_NAMED = 5  # the number of heads listed for each name
WITH = " with "  # separates the name of a pair from its second head, as in "redundant with L0H1"
MOST_ALIGNED = 10  # the number of heads listed with their agreement with gold pairs


def report(run: Run) -> Document:
    """The run as a document."""
    whole, name = run.gathered.whole(), str(run.model["name"])
    count = whole.number("documents")
    return Document(
        Text("The heads of {name} on {count:,} documents", name=name, count=count),
        (
            *of_the_model(run.model, _corpus(run, whole)),
            Heading(Text("What stands out on this corpus")),
            *outstanding(whole.statistics, _A_CORPUS),
            *_alignment(whole.alignment),
            *_names(run.names, whole.statistics.heads()),
            *every_head(whole.statistics),
            *legend(),
        ),
        precision=2,
    )


def run_table(run: Run) -> dict[str, Column]:
    """A row for each head, with all its numbers and names."""
    names: dict[Head, list[str]] = {}
    for named in run.names:
        names.setdefault(named.head, []).append(named.name)
    return table(run.gathered.whole().statistics, names)


_A_CORPUS = Text(
    "Every number is a mean over all tokens of the corpus. It says what the heads "
    "did there, not what they are for."
)


def _names(names: tuple[Named, ...], measured: tuple[Head, ...]) -> tuple[Block, ...]:
    if not names:
        return ()
    explained_names = [named for named in names if named.name != UNEXPLAINED]
    explained, heads = len({named.head for named in explained_names}), len(measured)
    summary = Paragraph(
        Text(
            "{explained} of {heads} heads have a name; the others are unexplained. Every "
            "second document suggested the names, the others tested them. A model without "
            "structure would be given any name at all with a chance of 5 %. The last four "
            "columns are about the first head of a row.",
            explained=explained,
            heads=heads,
        )
    )
    kinds: dict[str, list[Named]] = {}
    for named in sorted(explained_names, key=lambda named: -_clear(named)):
        kinds.setdefault(named.name.partition(WITH)[0], []).append(named)
    blocks: list[Block] = [Heading(Text("Names of heads")), summary]
    if not is_comparable(measured):
        uncompared = Text("No head is called redundant: {reason}.", reason=NOT_COMPARED)
        blocks.append(Paragraph(uncompared))
    if kinds:
        blocks.append(Table(_NAME_COLUMNS, [_name_row(same_name) for same_name in kinds.values()]))
    return tuple(blocks)


_BARS = (Text("must pass"), Text("uniform"), Text("random weights"), Text("best offset"))
_NAME_COLUMNS = (Text("name"), Text("heads"), Text("the clearest"), *_BARS)


def _clear(named: Named) -> float:
    return named.value - named.bar if math.isfinite(named.value - named.bar) else 0.0


def _name_row(same_name: list[Named]) -> Row:
    first = same_name[0]
    title = Text("redundant with another") if WITH in first.name else first.title
    listed = ", ".join(f"{_who(named)} {number(named.value)}" for named in same_name[:MOST_NAMED])
    numbers = (first.bar, first.uniform, first.random, first.rule)
    return (
        title,
        written(len({named.head for named in same_name})),
        same(listed + (" …" if len(same_name) > MOST_NAMED else "")),
        *(same(number(named)) for named in numbers),
    )


def _who(named: Named) -> str:
    _, pair, other = named.name.partition(WITH)
    return f"{named.head}~{other}" if pair else str(named.head)


def _corpus(run: Run, whole: Half) -> list[Row]:
    labels = {"documents": Text("documents"), "tokens": Text("tokens")}
    if whole.number("cut"):
        labels["cut"] = Text("documents cut")
    counts = [(label, written(whole.number(name))) for name, label in labels.items()]
    return [(Text("corpus"), same(str(run.corpus["file"]))), *counts]


def _alignment(alignment: Alignment) -> tuple[Block, ...]:
    """The heads that agree best with gold pairs; nothing without gold pairs."""
    heads = alignment.heads()
    if not heads:
        return ()
    best = sorted(heads, key=lambda head: -alignment.accuracy(head))[:MOST_ALIGNED]
    columns = (Text("head"), Text("right"), Text("mean weight"), Text("AER"))
    measures = (alignment.accuracy, alignment.mean_weight, alignment.error_rate)
    rows = [(same(str(h)), *(same(number(measure(h))) for measure in measures)) for h in best]
    title = Text("Agreement with gold pairs: the best of {num_heads} heads", num_heads=len(heads))
    return Heading(title), Table(columns, rows)


SCHEMA = "headwise.inspect.corpus/1"


def as_json(run: Run) -> str:
    """The run as JSON text in ASCII, ending in a line break."""
    whole = run.gathered.whole()
    counts = {name: whole.number(name) for name in COUNTS}
    halves = (run.gathered.first, run.gathered.second)
    return as_text(
        {
            "schema": SCHEMA,
            "headwise": headwise.__version__,
            "model": dict(run.model),
            "corpus": {**run.corpus, **counts},
            "metrics": explained(whole.statistics.metrics),
            **measured(whole.statistics),
            "halves": [_half(half.statistics) for half in halves],
            "alignment": _aligned(whole.alignment),
            "names": [_named(name) for name in run.names],
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

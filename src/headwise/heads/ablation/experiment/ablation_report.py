"""The report of an ablation experiment: a document, JSON, and CSV with a row for each step.

The JSON schema is ``ablate.schema.json`` beside this file; docs/ablation.md describes it.
"""

import json
from importlib.resources import files
from typing import Any

import headwise
from headwise.document import Block, Document, Heading, Paragraph, Table
from headwise.document.csv_text import Column
from headwise.document.csv_text import as_csv as table_as_csv
from headwise.heads.ablation.experiment.experiment import AblationResult
from headwise.heads.ablation.loss_effects import CONFIDENCE, Interval
from headwise.heads.ablation.methods import Method
from headwise.heads.corpus.probe import TIMES, TOKENS
from headwise.heads.inspection_export import written as as_text
from headwise.heads.inspection_report import Row, of_the_model, written
from headwise.lang import Text, same
from headwise.verify.report.formats import faults as schema_faults

MOST_HEADS = 40  # the number of heads listed in the order of removal
MORE = Text("more than random")


def report(result: AblationResult) -> Document:
    """The experiment as a document."""
    return Document(
        title(result),
        (
            *of_the_model(result.model, _read(result)),
            Heading(Text("What it loses")),
            Paragraph(_result(result)),
            _table(result),
            Paragraph(_intervals(result)),
            Paragraph(_method(result.plan.method)),
            *_order(result),
            *_cautions(result),
        ),
        precision=3,
    )


def title(result: AblationResult) -> Text:
    """The title of the report."""
    name, count, total = result.model["name"], len(result.order), result.model["heads"]
    if result.all_heads:
        return Text("{name} as all of its {total} heads go", name=name, total=total)
    return Text("{name} without {count} of its {total} heads", name=name, count=count, total=total)


def shown(interval: Interval | None) -> str:
    """A mean with its interval, as in 1.000 [0.500, 1.250]."""
    if interval is None:
        return "–"
    return f"{_n(interval.mean)} [{_n(interval.low)}, {_n(interval.high)}]"


def _n(value: float) -> str:
    """Three decimals, without negative zero."""
    return f"{value + 0.0:.3f}".replace("-0.000", "0.000")


def _read(result: AblationResult) -> list[Row]:
    texts = result.texts
    rows: list[Row] = [
        (Text("reads"), _source(result)),
        (Text("texts"), written(len(texts.measured))),
        (Text("tokens"), written(texts.tokens)),
    ]
    if texts.others:
        rows.append((Text("other texts"), written(len(texts.others))))
    where = Text(", from token {start} on", start=texts.start) if texts.start > 1 else Text("")
    loss = Text("of the next token{where}, nats", where=where)
    return [*rows, (Text("loss"), loss), (Text("taken out"), same(result.plan.method.name))]


def _source(result: AblationResult) -> Text:
    if result.texts.source == "sentence":
        return Text("a sentence")
    if result.texts.source == "probe":
        return Text(
            "{tokens} random tokens, {times} times, seed {seed}",
            tokens=TOKENS,
            times=TIMES,
            seed=result.plan.options.seed,
        )
    return same(result.texts.file)


def _method(method: Method) -> Text:
    return Text(
        "{kind_name}: {title}, {formula}. After {source}.",
        kind_name=method.name,
        title=method.title,
        formula=method.formula,
        source=method.source,
    )


def _result(result: AblationResult) -> Text:
    intact, last = result.points[0].loss, result.points[-1]
    compared = result.comparison_at(len(result.points) - 1)
    summary = Text(
        "With every head the loss is {mean}, without {heads} {mean_2}: it rises by "
        "{rise} over {texts} texts.",
        mean=_n(intact.mean),
        heads=_removed(result),
        mean_2=_n(last.loss.mean),
        rise=shown(last.rise),
        texts=len(result.texts.measured),
    )
    if compared is None or result.all_heads:
        return summary
    return Text(
        "{said} Without as many random heads it rises by {random} over {draws} seeds; {more}",
        said=summary,
        random=shown(compared.random),
        draws=result.plan.options.num_seeds,
        more=_verdict(compared.more),
    )


def _removed(result: AblationResult) -> Text:
    if result.all_heads:
        return Text("any of them")
    if len(result.order) == 1:
        return same(str(result.order[0]))
    return Text("these {count}", count=len(result.order))


def _verdict(more: Interval) -> Text:
    if more.low > 0:
        return Text("these cost {more} more.", more=shown(more))
    if more.high < 0:
        less = Interval(-more.mean, -more.high, -more.low, more.confidence, more.examples)
        return Text("these cost {less} less.", less=shown(less))
    return Text("the difference, {more}, may be none.", more=shown(more))


def _table(result: AblationResult) -> Table:
    head = [Text("out"), Text("this step")]
    if result.comparisons:
        head += [Text("rise"), Text("random heads"), MORE]
    else:
        head += [Text("loss"), Text("rise")]
    return Table(head, [_row(result, number) for number in range(len(result.points))])


def _row(result: AblationResult, number: int) -> Row:
    point, compared = result.points[number], result.comparison_at(number)
    new = result.removed_at(number)
    names = same(str(new[0])) if len(new) == 1 else Text("{num_new} heads", num_new=len(new))
    first = (same(str(len(point.removed))), names if new else same("–"))
    if not result.comparisons:
        return (*first, same(shown(point.loss)), same(shown(point.rise)))
    cells = [_n(0.0)] * 3
    if compared is not None:
        cells = [_n(compared.theirs.mean), shown(compared.random), shown(compared.more)]
    return (*first, *map(same, cells))


def _intervals(result: AblationResult) -> Text:
    texts, draws = len(result.texts.measured), result.plan.options.num_seeds
    few = Text("For few of them it is somewhat too narrow (Efron & Tibshirani 1993, chapter 13).")
    if not draws:
        return Text(
            "Nats a token; the brackets are 95 % intervals over {texts} texts, those of "
            "the rise paired by text. {few}",
            texts=texts,
            few=few,
        )
    pool = Text("random heads") if result.all_heads else Text("random others")
    return Text(
        "Nats a token; the brackets in the table are 95 % intervals over {draws} seeds. "
        "Each seed has as many {pool} of its own and its own share of the texts, on "
        "which both are measured. {few}",
        draws=draws,
        pool=pool,
        few=few,
    )


def _order(result: AblationResult) -> tuple[Block, ...]:
    if len(result.order) == len(result.points) - 1:
        return ()
    listed = ", ".join(map(str, result.order[:MOST_HEADS]))
    rest = " …" if len(result.order) > MOST_HEADS else ""
    return (Paragraph(Text("In this order: {listed}{rest}", listed=listed, rest=rest)),)


def _cautions(result: AblationResult) -> tuple[Block, ...]:
    caveats = []
    if result.plan.options.order == "importance":
        caveats.append(
            Text(
                "The least important head goes first, by its gradient on these same texts, "
                "anew at each step (Michel et al. 2019, section 4)."
            )
        )
    if result.plan.same_texts:
        caveats.append(
            Text(
                "A run has named these heads on these very texts, which flatters them: measure "
                "on others, with another --seed or corpus."
            )
        )
    return tuple(map(Paragraph, caveats))


SCHEMA = "headwise.ablate/1"


def schema() -> dict[str, Any]:
    """The JSON schema of the reports of `headwise ablate`."""
    text = files(__package__).joinpath("ablate.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def faults(value: object) -> list[str]:
    """The violations of the schema; empty for a valid report."""
    return schema_faults(value, schema())


def as_json(result: AblationResult) -> str:
    """The experiment as JSON text in ASCII, ending in a line break."""
    plan, texts = result.plan, result.texts
    return as_text(
        {
            "schema": SCHEMA,
            "headwise": headwise.__version__,
            "model": dict(result.model),
            "read": {
                "source": texts.source,
                "file": texts.file,
                "sha256": texts.sha256,
                "texts": len(texts.measured),
                "other_texts": len(texts.others),
                "tokens": texts.tokens,
                "length": texts.length,
                "start": texts.start,
            },
            "how": {
                "name": plan.method.name,
                "title": plan.method.title.en,
                "formula": plan.method.formula.en,
                "source": plan.method.source.en,
            },
            "order": plan.options.order,
            "seed": plan.options.seed,
            "seeds": plan.options.num_seeds,
            "confidence": CONFIDENCE,
            "heads": [str(head) for head in result.order],
            "steps": [_step(result, number) for number in range(len(result.points))],
        }
    )


def as_csv(result: AblationResult) -> str:
    """CSV with a row for the intact model and for each step; cells without comparison are empty."""
    numbers = range(len(result.points))
    columns: dict[str, Column] = {
        "count": [len(point.removed) for point in result.points],
        "share": [point.share for point in result.points],
        "heads": ["; ".join(map(str, result.removed_at(number))) for number in numbers],
    }
    columns |= _columns("loss", [point.loss for point in result.points])
    columns |= _columns("rise", [point.rise for point in result.points])
    compared = [result.comparison_at(number) for number in numbers]
    for name, part in (("rise_over_seeds", "theirs"), ("random", "random"), ("more", "more")):
        columns |= _columns(name, [getattr(comparison, part, None) for comparison in compared])
    return table_as_csv(columns)


def _step(result: AblationResult, number: int) -> dict[str, Any]:
    point, compared = result.points[number], result.comparison_at(number)
    parts = ("theirs", "random", "more")
    return {
        "count": len(point.removed),
        "share": point.share,
        "heads": [str(head) for head in result.removed_at(number)],
        "loss": _interval(point.loss),
        "rise": _interval(point.rise),
        "against_random": compared and {part: _interval(getattr(compared, part)) for part in parts},
    }


def _interval(interval: Interval | None) -> dict[str, float | int] | None:
    if interval is None:
        return None
    return {part: getattr(interval, part) for part in ("mean", "low", "high", "examples")}


def _columns(name: str, intervals: list[Interval | None]) -> dict[str, Column]:
    columns = ((name, "mean"), (f"{name}_low", "low"), (f"{name}_high", "high"))
    return {column: [getattr(i, part, None) for i in intervals] for column, part in columns}

"""The report of an ablation experiment as a document, as JSON, and as CSV.

The JSON schema is ``ablate.schema.json`` in this folder; docs/ablation.md describes it.
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

MOST_HEADS = 40  # the most heads listed in the order of removal
MORE = Text("difference")


def report(result: AblationResult) -> Document:
    """Return the report of an experiment as a document."""
    return Document(
        title(result),
        (
            *of_the_model(result.model, _read(result)),
            Heading(Text("Loss after ablation")),
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
    """Return the title of the report."""
    name, count, total = result.model["name"], len(result.order), result.model["heads"]
    if result.all_heads:
        return Text("{name} without its {total} heads, step by step", name=name, total=total)
    return Text("{name} without {count} of its {total} heads", name=name, count=count, total=total)


def shown(interval: Interval | None) -> str:
    """Format a mean with its interval, as in 1.000 [0.500, 1.250]."""
    if interval is None:
        return "–"
    return f"{_n(interval.mean)} [{_n(interval.low)}, {_n(interval.high)}]"


def _n(value: float) -> str:
    """Format a number with three decimals, without negative zero."""
    return f"{value + 0.0:.3f}".replace("-0.000", "0.000")


def _read(result: AblationResult) -> list[Row]:
    texts = result.texts
    rows: list[Row] = [
        (Text("input"), _source(result)),
        (Text("texts"), written(len(texts.measured))),
        (Text("tokens"), written(texts.tokens)),
    ]
    if texts.others:
        rows.append((Text("reference texts"), written(len(texts.others))))
    where = Text(" from token index {start} on", start=texts.start) if texts.start > 1 else Text("")
    loss = Text("next-token cross-entropy{where}, in nats", where=where)
    return [*rows, (Text("loss"), loss), (Text("ablation method"), same(result.plan.method.name))]


def _source(result: AblationResult) -> Text:
    if result.texts.source == "sentence":
        return Text("a sentence")
    if result.texts.source == "probe":
        return Text(
            "{tokens} random tokens repeated {times} times, seed {seed}",
            tokens=TOKENS,
            times=TIMES,
            seed=result.plan.options.seed,
        )
    return same(result.texts.file)


def _method(method: Method) -> Text:
    return Text(
        "Ablation method {kind_name}: {title}, {formula}. Source: {source}.",
        kind_name=method.name,
        title=method.title,
        formula=method.formula,
        source=method.source,
    )


def _result(result: AblationResult) -> Text:
    intact, last = result.points[0].loss, result.points[-1]
    compared = result.comparison_at(len(result.points) - 1)
    summary = Text(
        "The mean loss over {texts} texts is {mean} with all heads and {mean_2} without "
        "{heads}: an increase of {rise}.",
        mean=_n(intact.mean),
        heads=_removed(result),
        mean_2=_n(last.loss.mean),
        rise=shown(last.rise),
        texts=len(result.texts.measured),
    )
    if compared is None or result.all_heads:
        return summary
    return Text(
        "{said} Without equally many random heads, the increase over {draws} seeds is {random}. "
        "{more}",
        said=summary,
        random=shown(compared.random),
        draws=result.plan.options.num_seeds,
        more=_verdict(compared.more),
    )


def _removed(result: AblationResult) -> Text:
    if result.all_heads:
        return Text("any head")
    if len(result.order) == 1:
        return same(str(result.order[0]))
    return Text("these {count} heads", count=len(result.order))


def _verdict(more: Interval) -> Text:
    if more.low > 0:
        return Text("The increase for the selected heads is larger by {more}.", more=shown(more))
    if more.high < 0:
        less = Interval(-more.mean, -more.high, -more.low, more.confidence, more.examples)
        return Text("The increase for the selected heads is smaller by {less}.", less=shown(less))
    return Text("The interval of the difference, {more}, includes 0.", more=shown(more))


def _table(result: AblationResult) -> Table:
    head = [Text("removed"), Text("this step")]
    if result.comparisons:
        head += [Text("increase"), Text("random heads"), MORE]
    else:
        head += [Text("loss"), Text("loss increase")]
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
    few = Text("Intervals of few values are too narrow (Efron & Tibshirani 1993, chapter 13).")
    if not draws:
        return Text(
            "Losses are in nats per token. Brackets show 95 % intervals over {texts} texts; those "
            "of the increase are paired by text. {few}",
            texts=texts,
            few=few,
        )
    pool = Text("random heads") if result.all_heads else Text("random other heads")
    return Text(
        "Loss increases are in nats per token. Brackets show 95 % intervals over {draws} "
        "seeds. Each seed samples equally many {pool} and has its own texts, on which both "
        "groups of heads are measured. {few}",
        draws=draws,
        pool=pool,
        few=few,
    )


def _order(result: AblationResult) -> tuple[Block, ...]:
    if len(result.order) == len(result.points) - 1:
        return ()
    listed = ", ".join(map(str, result.order[:MOST_HEADS]))
    rest = " …" if len(result.order) > MOST_HEADS else ""
    return (Paragraph(Text("Heads in order of removal: {listed}{rest}", listed=listed, rest=rest)),)


def _cautions(result: AblationResult) -> tuple[Block, ...]:
    caveats = []
    if result.plan.options.order == "importance":
        caveats.append(
            Text(
                "The least important heads are removed first. At each step, their importance is "
                "measured by gradients on the same texts (Michel et al. 2019, section 4)."
            )
        )
    if result.plan.same_texts:
        caveats.append(
            Text(
                "The heads were named on these same texts, which biases the loss increase. Measure "
                "on other texts, with another --seed or corpus."
            )
        )
    return tuple(map(Paragraph, caveats))


SCHEMA = "headwise.ablate/1"


def schema() -> dict[str, Any]:
    """Return the JSON schema of the reports of `headwise ablate`."""
    text = files(__package__).joinpath("ablate.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def faults(value: object) -> list[str]:
    """Return the violations of the schema; empty for a valid report."""
    return schema_faults(value, schema())


def as_json(result: AblationResult) -> str:
    """Return the experiment as JSON text in ASCII that ends with a line break."""
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
    """Return CSV with a row for the intact model and for each step; missing values are empty."""
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

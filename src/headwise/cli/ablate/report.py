"""An ablation as a document that a person reads."""

from headwise.cli.ablate.export import compared_at, gone
from headwise.cli.ablate.measured import Measured
from headwise.document import Block, Document, Heading, Paragraph, Table
from headwise.heads.corpus.probe import TIMES, TOKENS
from headwise.heads.effect.against_random import Comparison
from headwise.heads.effect.interval import Interval
from headwise.heads.effect.kinds import Kind
from headwise.heads.sections import Row, of_the_model, written
from headwise.lang import Text, same

MOST_HEADS = 40
"""How many heads of an order are listed."""

MORE = Text("more than random")


def report(found: Measured) -> Document:
    """The document that a person reads."""
    return Document(
        title(found),
        (
            *of_the_model(found.model, _read(found)),
            Heading(Text("What it loses")),
            Paragraph(_result(found)),
            _table(found),
            Paragraph(_intervals(found)),
            Paragraph(_how(found.plan.kind)),
            *_order(found),
            *_cautions(found),
        ),
        precision=3,
    )


def title(found: Measured) -> Text:
    """What was done to which model."""
    name, count, total = found.model["name"], len(found.order), found.model["heads"]
    if found.whole:
        return Text("{name} as all of its {total} heads go", name=name, total=total)
    return Text("{name} without {count} of its {total} heads", name=name, count=count, total=total)


def shown(each: Interval | None) -> str:
    """A mean with its interval, three decimals.

    Example:
        >>> shown(Interval(1.0, 0.5, 1.25, 0.95, 8))
        '1.000 [0.500, 1.250]'
    """
    return "–" if each is None else f"{_n(each.mean)} [{_n(each.low)}, {_n(each.high)}]"


def _n(value: float) -> str:
    """Three decimals; what rounds to nothing has no sign."""
    return f"{value + 0.0:.3f}".replace("-0.000", "0.000")


def _read(found: Measured) -> list[Row]:
    """What was read, and what was done."""
    reading = found.reading
    rows: list[Row] = [
        (Text("reads"), _source(found)),
        (Text("texts"), written(len(reading.measured))),
        (Text("tokens"), written(reading.tokens)),
    ]
    if reading.others:
        rows.append((Text("other texts"), written(len(reading.others))))
    where = Text("")
    if reading.start > 1:
        where = Text(", from token {start} on", start=reading.start)
    loss = Text("of the next token{where}, nats", where=where)
    return [*rows, (Text("loss"), loss), (Text("taken out"), same(found.plan.kind.name))]


def _source(found: Measured) -> Text:
    """What was read."""
    reading = found.reading
    if reading.source == "sentence":
        return Text("a sentence")
    if reading.source == "probe":
        seed = found.plan.seed
        return Text(reading.file, f"重复 {TIMES} 次的 {TOKENS} 个随机词元，种子 {seed}")
    return same(reading.file)


def _how(kind: Kind) -> Text:
    """What is done to a head, and after whom."""
    return Text(
        "{kind_name}: {title}, {formula}. After {source}.",
        kind_name=kind.name,
        title=kind.title,
        formula=kind.formula,
        source=kind.source,
    )


def _result(found: Measured) -> Text:
    """What the last step says."""
    whole, last = found.points[0].loss, found.points[-1]
    heads, compared = _gone(found), compared_at(found, len(found.points) - 1)
    texts = len(found.reading.measured)
    said = Text(
        "With every head the loss is {mean}, without {heads} {mean_2}: it rises by "
        "{rise} over {texts} texts.",
        mean=_n(whole.mean),
        heads=heads,
        mean_2=_n(last.loss.mean),
        rise=shown(last.rise),
        texts=texts,
    )
    if compared is None or found.whole:
        return said
    more = _verdict(compared)
    return Text(
        "{said} Without as many random heads it rises by {random} over {draws} seeds; {more}",
        said=said,
        random=shown(compared.random),
        draws=found.plan.draws,
        more=more,
    )


def _gone(found: Measured) -> Text:
    """The heads that went, in a sentence."""
    if found.whole:
        return Text("any of them")
    if len(found.order) == 1:
        return same(str(found.order[0]))
    count = len(found.order)
    return Text("these {count}", count=count)


def _verdict(compared: Comparison) -> Text:
    """What the difference shows, if anything."""
    more = compared.more
    if more.low > 0:
        return Text("these cost {more} more.", more=shown(more))
    if more.high < 0:
        less = Interval(-more.mean, -more.high, -more.low, more.confidence, more.examples)
        return Text("these cost {less} less.", less=shown(less))
    return Text("the difference, {more}, may be none.", more=shown(more))


def _table(found: Measured) -> Table:
    """A row for the whole model and for each step."""
    head = [Text("out"), Text("this step")]
    if found.comparisons:
        head += [Text("rise"), Text("random heads"), MORE]
    else:
        head += [Text("loss"), Text("rise")]
    return Table(head, [_row(found, number) for number in range(len(found.points))])


def _row(found: Measured, number: int) -> Row:
    point, compared = found.points[number], compared_at(found, number)
    new = gone(found, number)
    names = same(str(new[0])) if len(new) == 1 else Text("{num_new} heads", num_new=len(new))
    first = (same(str(len(point.removed))), names if new else same("–"))
    if not found.comparisons:
        return (*first, same(shown(point.loss)), same(shown(point.rise)))
    if compared is None:
        return (*first, same(_n(0.0)), same(_n(0.0)), same(_n(0.0)))
    return (
        *first,
        same(_n(compared.theirs.mean)),
        same(shown(compared.random)),
        same(shown(compared.more)),
    )


def _intervals(found: Measured) -> Text:
    """What the brackets are."""
    texts, draws = len(found.reading.measured), found.plan.draws
    few = Text("For few of them it is somewhat too narrow (Efron & Tibshirani 1993, chapter 13).")
    if not draws:
        return Text(
            "Nats a token; the brackets are 95 % intervals over {texts} texts, those of "
            "the rise paired by text. {few}",
            texts=texts,
            few=few,
        )
    pool = Text("random heads") if found.whole else Text("random others")
    return Text(
        "Nats a token; the brackets in the table are 95 % intervals over {draws} seeds. "
        "Each seed has as many {pool} of its own and its own share of the texts, on "
        "which both are measured. {few}",
        draws=draws,
        pool=pool,
        few=few,
    )


def _order(found: Measured) -> tuple[Block, ...]:
    """The order, where a step takes several heads."""
    if len(found.order) == len(found.points) - 1:
        return ()
    listed = ", ".join(map(str, found.order[:MOST_HEADS]))
    rest = " …" if len(found.order) > MOST_HEADS else ""
    return (Paragraph(Text("In this order: {listed}{rest}", listed=listed, rest=rest)),)


def _cautions(found: Measured) -> tuple[Block, ...]:
    """What the reader should keep in mind."""
    said = []
    if found.plan.order == "importance":
        said.append(
            Text(
                "The least important head goes first, by its gradient on these same texts, "
                "anew at each step (Michel et al. 2019, section 4)."
            )
        )
    if found.plan.same:
        said.append(
            Text(
                "A run has named these heads on these very texts, which flatters them: measure "
                "on others, with another --seed or corpus."
            )
        )
    return tuple(map(Paragraph, said))

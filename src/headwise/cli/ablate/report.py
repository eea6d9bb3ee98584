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

MORE = Text("more than random", "比随机多")


def report(found: Measured) -> Document:
    """The document that a person reads."""
    return Document(
        title(found),
        (
            *of_the_model(found.model, _read(found)),
            Heading(Text("What it loses", "损失的变化")),
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
        return Text(f"{name} as all of its {total} heads go", f"{name} 逐步移除全部 {total} 个头")
    return Text(
        f"{name} without {count} of its {total} heads", f"{name} 移除 {total} 个头中的 {count} 个"
    )


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
        (Text("reads", "读"), _source(found)),
        (Text("texts", "文本数"), written(len(reading.measured))),
        (Text("tokens", "词元数"), written(reading.tokens)),
    ]
    if reading.others:
        rows.append((Text("other texts", "其他文本数"), written(len(reading.others))))
    where = Text("", "")
    if reading.start > 1:
        where = Text(f", from token {reading.start} on", f"，从第 {reading.start} 个词元起")
    loss = Text(f"of the next token{where.en}, nats", f"下一词元{where.zh}，奈特")
    return [
        *rows,
        (Text("loss", "损失"), loss),
        (Text("taken out", "移除方式"), same(found.plan.kind.name)),
    ]


def _source(found: Measured) -> Text:
    """What was read."""
    reading = found.reading
    if reading.source == "sentence":
        return Text("a sentence", "一个句子")
    if reading.source == "probe":
        seed = found.plan.seed
        return Text(reading.file, f"重复 {TIMES} 次的 {TOKENS} 个随机词元，种子 {seed}")
    return same(reading.file)


def _how(kind: Kind) -> Text:
    """What is done to a head, and after whom."""
    return Text(
        f"{kind.name}: {kind.title.en}, {kind.formula.en}. After {kind.source.en}.",
        f"{kind.name}：{kind.title.zh}，{kind.formula.zh}。出处：{kind.source.zh}。",
    )


def _result(found: Measured) -> Text:
    """What the last step says."""
    whole, last = found.points[0].loss, found.points[-1]
    heads, compared = _gone(found), compared_at(found, len(found.points) - 1)
    texts = len(found.reading.measured)
    said = Text(
        f"With every head the loss is {_n(whole.mean)}, without {heads.en} "
        f"{_n(last.loss.mean)}: it rises by {shown(last.rise)} over {texts} texts.",
        f"所有的头都在时损失为 {_n(whole.mean)}，移除{heads.zh}后为 {_n(last.loss.mean)}："
        f"上升 {shown(last.rise)}（{texts} 个文本）。",
    )
    if compared is None or found.whole:
        return said
    more = _verdict(compared)
    return Text(
        f"{said.en} Without as many random heads it rises by {shown(compared.random)} over "
        f"{found.plan.draws} seeds; {more.en}",
        f"{said.zh}移除同样多的随机头则上升 {shown(compared.random)}（{found.plan.draws} 个种子）；"
        f"{more.zh}",
    )


def _gone(found: Measured) -> Text:
    """The heads that went, in a sentence."""
    if found.whole:
        return Text("any of them", "全部")
    if len(found.order) == 1:
        return same(str(found.order[0]))
    count = len(found.order)
    return Text(f"these {count}", f"这 {count} 个头")


def _verdict(compared: Comparison) -> Text:
    """What the difference shows, if anything."""
    more = compared.more
    if more.low > 0:
        return Text(f"these cost {shown(more)} more.", f"这些头多损失 {shown(more)}。")
    if more.high < 0:
        less = Interval(-more.mean, -more.high, -more.low, more.confidence, more.examples)
        return Text(f"these cost {shown(less)} less.", f"这些头少损失 {shown(less)}。")
    return Text(f"the difference, {shown(more)}, may be none.", f"差值 {shown(more)} 可能为零。")


def _table(found: Measured) -> Table:
    """A row for the whole model and for each step."""
    head = [Text("out", "已移除"), Text("this step", "本步")]
    if found.comparisons:
        head += [Text("rise", "上升"), Text("random heads", "随机的头"), MORE]
    else:
        head += [Text("loss", "损失"), Text("rise", "上升")]
    return Table(head, [_row(found, number) for number in range(len(found.points))])


def _row(found: Measured, number: int) -> Row:
    point, compared = found.points[number], compared_at(found, number)
    new = gone(found, number)
    names = same(str(new[0])) if len(new) == 1 else Text(f"{len(new)} heads", f"{len(new)} 个头")
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
    few = Text(
        "For few of them it is somewhat too narrow (Efron & Tibshirani 1993, chapter 13).",
        "个数少时区间略窄（Efron & Tibshirani 1993，第 13 章）。",
    )
    if not draws:
        return Text(
            f"Nats a token; the brackets are 95 % intervals over {texts} texts, those of the rise "
            f"paired by text. {few.en}",
            f"单位为奈特每词元；方括号内是对 {texts} 个文本的 95 % 区间，上升按文本配对。{few.zh}",
        )
    pool = Text("random heads", "随机头") if found.whole else Text("random others", "随机的其他头")
    return Text(
        f"Nats a token; the brackets in the table are 95 % intervals over {draws} seeds. Each seed "
        f"has as many {pool.en} of its own and its own share of the texts, on which both are "
        f"measured. {few.en}",
        f"单位为奈特每词元；表中方括号内是对 {draws} 个种子的 95 % 区间。"
        f"每个种子抽取同样多的{pool.zh}，并分得一份文本，两者都在其上测量。{few.zh}",
    )


def _order(found: Measured) -> tuple[Block, ...]:
    """The order, where a step takes several heads."""
    if len(found.order) == len(found.points) - 1:
        return ()
    listed = ", ".join(map(str, found.order[:MOST_HEADS]))
    rest = " …" if len(found.order) > MOST_HEADS else ""
    return (Paragraph(Text(f"In this order: {listed}{rest}", f"移除顺序：{listed}{rest}")),)


def _cautions(found: Measured) -> tuple[Block, ...]:
    """What the reader should keep in mind."""
    said = []
    if found.plan.order == "importance":
        said.append(
            Text(
                "The least important head goes first, by its gradient on these same texts, anew at "
                "each step (Michel et al. 2019, section 4).",
                "按在同样文本上的梯度，最不重要的头先移除，每步重算（Michel 等 2019，第 4 节）。",
            )
        )
    if found.plan.same:
        said.append(
            Text(
                "A run has named these heads on these very texts, which flatters them: measure on "
                "others, with another --seed or corpus.",
                "这些头正是在同样的文本上得到名称的，结果会偏大：请换一个 --seed 或语料再测。",
            )
        )
    return tuple(map(Paragraph, said))

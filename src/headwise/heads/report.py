"""An inspection as a document: the model, what stands out, heat maps, every head's numbers."""

import math
from collections import Counter
from collections.abc import Iterable

from headwise.document import Block, Document, Heading, HeatMap, Paragraph, Table
from headwise.heads.facts import facts_of
from headwise.heads.inspection import Inspection
from headwise.heads.metrics import METRICS, Metric
from headwise.heads.names import Head, Layer
from headwise.heads.standing_out import Fact, standing_out
from headwise.heads.statistics import Statistics
from headwise.lang import Text, same

MOST_ROWS = 100
"""Up to this many heads each have a row; of more only the extremes are shown."""

MOST_FACTS = 12
MOST_TOKENS = 200
LONGEST_TOKEN = 40
EXTREMES = 3


def report(seen: Inspection) -> Document:
    """The document that a person reads."""
    return Document(
        Text(f"The heads of {seen.loaded.name}", f"{seen.loaded.name} 的注意力头"),
        (*_model(seen), *_outstanding(seen), *_maps(seen), *_numbers(seen), *_legend()),
        precision=2,
    )


def _model(seen: Inspection) -> tuple[Block, ...]:
    facts = facts_of(seen.loaded, seen.statistics)
    names = {
        "class": Text("class", "类"),
        "type": Text("architecture", "结构"),
        "parameters": Text("parameters", "参数量"),
        "layers": Text("layers of attention", "注意力层数"),
        "heads": Text("heads", "注意力头数"),
    }
    rows = [(label, _fact(facts[key])) for key, label in names.items()]
    rows.insert(0, (Text("from", "来源"), _SOURCES[seen.loaded.source]))
    return (
        Paragraph(
            Text(
                "L0H2 is layer 0, head 2; layers and heads are counted from 0. Special tokens take "
                "part in every number, padding in none.",
                "L0H2 表示第 0 层第 2 头；层和头都从 0 数起。特殊词元计入所有数值，填充不计入。",
            )
        ),
        Table((Text("model", "模型"), _fact(facts["name"])), rows),
        *_text(seen),
    )


_SOURCES = {
    "packaged": Text("a package", "内置软件包"),
    "directory": Text("a directory", "文件夹"),
    "hub": Text("the hub", "hub"),
}


def _fact(value: str | int) -> Text:
    return same(f"{value:,}" if isinstance(value, int) else value)


def _text(seen: Inspection) -> tuple[Block, ...]:
    count = len(seen.tokens)
    listed = " ".join(f"{i}:{_short(t)}" for i, t in enumerate(seen.tokens[:MOST_TOKENS]))
    rest = " …" if count > MOST_TOKENS else ""
    blocks: list[Block] = [
        Heading(Text(f"The text, {count} tokens", f"文本，{count} 个词元")),
        Paragraph(same(listed + rest)),
    ]
    if seen.whole > count:
        blocks.append(
            Paragraph(
                Text(
                    f"The text has {seen.whole} tokens and was cut: the model takes {count}.",
                    f"文本共 {seen.whole} 个词元，已截断：模型最多接受 {count} 个。",
                )
            )
        )
    if seen.loaded.config.is_encoder_decoder:
        blocks.append(
            Paragraph(
                Text(
                    "The decoder reads the same text, one token behind.",
                    "解码器读同一段文本，错后一个词元。",
                )
            )
        )
    return tuple(blocks)


def _outstanding(seen: Inspection) -> tuple[Block, ...]:
    facts = standing_out(seen.statistics)
    heading = Heading(Text("What stands out on this text", "在这段文本上突出的头"))
    if not facts:
        return (
            heading,
            Paragraph(
                Text(
                    "No head gives most of its attention to the previous, next or first token, to "
                    "itself or to separators.",
                    "没有哪个头把大部分注意力给予前一个、后一个或首个词元、自身或分隔符。",
                )
            ),
        )
    return (heading, *_counts(facts, seen), _facts(facts), _more(facts))


def _counts(facts: tuple[Fact, ...], seen: Inspection) -> Iterable[Block]:
    """One sentence for each kind of token: how many heads look mostly there."""
    total = len(seen.statistics.heads())
    for name, count in Counter(fact.metric.name for fact in facts).most_common():
        place = _PLACES[name]
        yield Paragraph(
            Text(
                f"{count} of {total} heads {'gives' if count == 1 else 'give'} most of "
                f"{'its' if count == 1 else 'their'} attention to {place.en}.",
                f"{total} 个头中有 {count} 个把大部分注意力给予{place.zh}。",
            )
        )


_PLACES = {
    "previous": Text("the previous token", "前一个词元"),
    "next": Text("the next token", "后一个词元"),
    "self": Text("the token itself", "词元自身"),
    "first": Text("the first token", "首个词元"),
    "separators": Text("separators", "分隔符"),
}


def _facts(facts: tuple[Fact, ...]) -> Table:
    return Table(
        (
            Text("head", "头"),
            Text("looks at", "关注"),
            Text("share", "份额"),
            Text("median head", "头的中位数"),
            Text("uniform head", "均匀的头"),
        ),
        [
            (
                same(str(fact.head)),
                _PLACES[fact.metric.name],
                same(_number(fact.value)),
                same(_number(fact.usual)),
                same(_number(fact.uniform)),
            )
            for fact in facts[:MOST_FACTS]
        ],
    )


def _more(facts: tuple[Fact, ...]) -> Paragraph:
    left = max(0, len(facts) - MOST_FACTS)
    return Paragraph(
        Text(
            "The most unusual first: furthest above the median head. "
            + (f"{left} more heads are not listed. " if left else "")
            + "This is one text; it says what the heads did here, not what they are for.",
            "最不寻常的在前：高出中位数最多。"
            + (f"另有 {left} 个头未列出。" if left else "")
            + "这只是一段文本：它说明这些头在此做了什么，而不是它们的用途。",
        )
    )


def _numbers(seen: Inspection) -> tuple[Block, ...]:
    heads = seen.statistics.heads()
    if len(heads) <= MOST_ROWS:
        head = (Text("head", "头"), *(metric.label for metric in METRICS))
        rows = [_row(str(h), [seen.statistics.value(m, h) for m in METRICS]) for h in heads]
        return (
            Heading(Text("Every head", "所有的头")),
            Table(head, [*_uniform_rows(seen.statistics), *rows]),
        )
    return (
        Heading(Text(f"The extremes of {len(heads)} heads", f"{len(heads)} 个头中的极值")),
        _extremes(seen.statistics),
        Table(
            (Text("baseline", "基线"), *(metric.label for metric in METRICS)),
            _uniform_rows(seen.statistics),
        ),
    )


def _uniform_rows(statistics: Statistics) -> list[tuple[Text, ...]]:
    """What a uniform head would give: one row for all layers whose masks are alike."""
    alike: dict[tuple[str, ...], list[Layer]] = {}
    for layer in statistics.layers:
        values = tuple(_number(statistics.uniform(metric, layer)) for metric in METRICS)
        alike.setdefault(values, []).append(layer)
    rows = []
    for values, layers in alike.items():
        where = f" {layers[0]}…{layers[-1]}" if len(alike) > 1 else ""
        label = Text(f"uniform{where}", f"均匀{where}")
        rows.append((label, *(same(value) for value in values)))
    return rows


def _row(label: str, values: list[float]) -> tuple[Text, ...]:
    return (same(label), *(same(_number(value)) for value in values))


def _extremes(statistics: Statistics) -> Table:
    rows = []
    for metric in METRICS:
        values = {head: statistics.value(metric, head) for head in statistics.heads()}
        known = sorted(
            (head for head, value in values.items() if not math.isnan(value)),
            key=lambda head: -values[head],
        )
        highest, lowest = known[:EXTREMES], known[-EXTREMES:][::-1]
        rows.append((metric.label, _listed(highest, values), _listed(lowest, values)))
    return Table((Text("metric", "指标"), Text("highest", "最高"), Text("lowest", "最低")), rows)


def _listed(heads: list[Head], values: dict[Head, float]) -> Text:
    return same(", ".join(f"{head} {_number(values[head])}" for head in heads) or "–")


def _maps(seen: Inspection) -> Iterable[Block]:
    yield Heading(Text("Attention weights", "注意力权重"))
    yield Paragraph(
        Text(
            "Rows are queries, columns are keys. A row sums to 1, or to less where the model has a "
            "learned sink.",
            "行是查询，列是键。每一行之和为 1；模型带有可学习的 sink 时小于 1。",
        )
    )
    named = {fact.head: fact for fact in standing_out(seen.statistics)}
    for head, weights in seen.maps.items():
        rows, columns = seen.sides(head)
        yield HeatMap(
            _title(head, named.get(head)),
            weights.tolist(),
            [_short(token) for token in rows],
            [_short(token) for token in columns],
        )


def _title(head: Head, fact: Fact | None) -> Text:
    if fact is None:
        return same(str(head))
    place, share = _PLACES[fact.metric.name], _number(fact.value)
    return Text(f"{head}: {place.en} {share}", f"{head}：{place.zh} {share}")


def _legend() -> tuple[Block, ...]:
    return (
        Heading(Text("The metrics", "指标说明")),
        Paragraph(
            Text(
                "A[i,j] is the weight from query i to key j; a mean runs over the queries that "
                "count. A dash stands where no query can show it.",
                "A[i,j] 是查询 i 对键 j 的权重；平均只对计入的查询进行。"
                "短横线表示没有查询能体现该指标。",
            )
        ),
        Table(
            (
                Text("name", "名称"),
                Text("what", "含义"),
                Text("formula", "公式"),
                Text("published variant", "出处与变体"),
            ),
            [_explained(metric) for metric in METRICS],
        ),
    )


def _explained(metric: Metric) -> tuple[Text, Text, Text, Text]:
    return metric.label, metric.title, metric.formula, metric.source


def _short(token: str) -> str:
    return token if len(token) <= LONGEST_TOKEN else token[: LONGEST_TOKEN - 1] + "…"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"

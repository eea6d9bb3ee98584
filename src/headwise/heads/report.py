"""An inspection as a document: the model, what stands out, heat maps, every head's numbers."""

from collections.abc import Iterable

from headwise.document import Block, Document, Heading, HeatMap, Paragraph
from headwise.heads.facts import facts_of
from headwise.heads.inspection import Inspection
from headwise.heads.names import Head
from headwise.heads.sections import (
    PLACES,
    every_head,
    legend,
    number,
    of_the_model,
    outstanding,
    short,
)
from headwise.heads.standing_out import Fact, standing_out
from headwise.lang import Text, same

MOST_TOKENS = 200


def report(seen: Inspection) -> Document:
    """The document that a person reads."""
    return Document(
        Text(f"The heads of {seen.loaded.name}", f"{seen.loaded.name} 的注意力头"),
        (
            *of_the_model(facts_of(seen.loaded, seen.statistics)),
            *_text(seen),
            Heading(Text("What stands out on this text", "在这段文本上突出的头")),
            *outstanding(seen.statistics, _ONE_TEXT),
            *_maps(seen),
            *every_head(seen.statistics),
            *legend(),
        ),
        precision=2,
    )


_ONE_TEXT = Text(
    "This is one text; it says what the heads did here, not what they are for.",
    "这只是一段文本：它说明这些头在此做了什么，而不是它们的用途。",
)


def _text(seen: Inspection) -> tuple[Block, ...]:
    count = len(seen.tokens)
    listed = " ".join(f"{i}:{short(t)}" for i, t in enumerate(seen.tokens[:MOST_TOKENS]))
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
            [short(token) for token in rows],
            [short(token) for token in columns],
        )


def _title(head: Head, fact: Fact | None) -> Text:
    if fact is None:
        return same(str(head))
    place, share = PLACES[fact.metric.name], number(fact.value)
    return Text(f"{head}: {place.en} {share}", f"{head}：{place.zh} {share}")

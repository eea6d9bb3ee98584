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
        Text("The heads of {loaded_name}", loaded_name=seen.loaded.name),
        (
            *of_the_model(facts_of(seen.loaded, seen.statistics)),
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
    return Text("{head}: {place} {share}", head=head, place=place, share=share)

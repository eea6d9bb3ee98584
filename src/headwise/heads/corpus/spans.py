"""Where the words of a text stand in it, and whether what is said about them can be true."""

from collections.abc import Sequence

from headwise.heads.corpus.document import Entity, Parse
from headwise.heads.corpus.lines import Place

Spans = tuple[tuple[int, int], ...]
"""(start, stop) in characters of each word."""

LONGEST_NAME = 100
"""Characters in the name of a relation or of a kind of entity."""


def located(
    place: Place, text: str, words: Sequence[str], written: Sequence[tuple[Place, str]] = ()
) -> Spans:
    """Where the words stand in the text: each after the one before, only blanks between.

    Args:
        place: of the text, for messages.
        text: it.
        words: in their order.
        written: for each word its own line and its number there, where the file has them.

    Raises:
        BadFile: if the text is made of other words.
    """
    spans, at = [], 0
    for index, word in enumerate(words):
        while at < len(text) and text[at].isspace():
            at += 1
        if not word or not text.startswith(word, at):
            rest = text[at : at + 20]
            line, number = written[index] if written else (place, str(index + 1))
            raise line.wrong(
                f"word {number} is {word[:40]!a}, and the text goes on with {rest!a}; words must "
                "be those of the text, in its order",
                f"第 {number} 个词是 {word[:40]!a}，而文本接下来是 {rest!a}；"
                "词应与文本一致、顺序相同",
            )
        spans.append((at, at + len(word)))
        at += len(word)
    if text[at:].strip():
        raise (written[-1][0] if written else place).wrong(
            f"after the last word the text goes on with {text[at:].strip()[:20]!a}; words must be "
            "those of the text, all of them",
            f"最后一个词之后文本还有 {text[at:].strip()[:20]!a}；词应覆盖全部文本",
        )
    return tuple(spans)


def check_spans(place: Place, text: str, spans: Spans) -> None:
    """Refuse words that overlap, go backwards or leave the text.

    Raises:
        BadFile: if they do.
    """
    before = 0
    for number, (start, stop) in enumerate(spans, 1):
        if not before <= start <= stop <= len(text):
            raise place.wrong(
                f"word {number} is [{start}, {stop}], expected within {before} to {len(text)}: "
                "characters of the text, each word after the one before",
                f"第 {number} 个词为 [{start}, {stop}]，应在 {before} 到 {len(text)} 之内："
                "按文本字符计，各词依次排列",
            )
        before = stop


def check_parse(place: Place, words: int, parse: Parse) -> None:
    """Refuse a parse of another number of words, or with heads that are none of them.

    Raises:
        BadFile: if it does not fit.
    """
    for what, count in (("heads", len(parse.heads)), ("relations", len(parse.relations))):
        if count != words:
            raise place.wrong(
                f"{what}: expected one for each of the {words} words, got {count}; a parse must "
                "be over the words of the text",
                f"{what}：应为 {words} 个词各一项，收到 {count} 项；句法分析应针对文本的词",
            )
    for number, head in enumerate(parse.heads):
        if not -1 <= head < words or head == number:
            raise place.wrong(
                f"heads: word {number} has the head {head}, expected -1 for the root or another of "
                f"the words 0 to {words - 1}; count words from 0",
                f"heads：第 {number} 个词的中心词为 {head}，应为 -1（根）或 0 到 {words - 1} "
                "中的另一个词；词从 0 数起",
            )
    for name in parse.relations:
        check_name(place, "relations", name)


def check_entities(place: Place, words: int, entities: tuple[Entity, ...]) -> None:
    """Refuse entities that are not runs of the words.

    Raises:
        BadFile: if one is not.
    """
    for entity in entities:
        if not 0 <= entity.start < entity.stop <= words:
            raise place.wrong(
                f"entities: [{entity.start}, {entity.stop}] is no run of the {words} words; count "
                "words from 0, the second number is the one after the last",
                f"entities：[{entity.start}, {entity.stop}] 不是 {words} 个词中的一段；"
                "词从 0 数起，第二个数是最后一词之后的位置",
            )
        check_name(place, "entities", entity.kind)


def check_name(place: Place, what: str, name: str) -> None:
    """Refuse a name that is empty or too long.

    Raises:
        BadFile: if it is.
    """
    if not 0 < len(name) <= LONGEST_NAME:
        raise place.wrong(
            f"{what}: expected names of 1 to {LONGEST_NAME} characters, got one of {len(name)}",
            f"{what}：名称应有 1 到 {LONGEST_NAME} 个字符，收到 {len(name)} 个字符的名称",
        )

"""The texts that the loss is measured on, and those that stand in for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from headwise.cli.ablate.asked import Asked
from headwise.cli.inspect.text import text_of
from headwise.document.plain import clean
from headwise.errors import BadFile, BadValue
from headwise.heads.corpus.document import Document
from headwise.heads.corpus.measuring import Measurer
from headwise.heads.corpus.probe import TIMES, TOKENS, named, sequences
from headwise.heads.corpus.reading import look_through
from headwise.heads.effect.kinds import kind_named
from headwise.heads.inputs import check_text, encode
from headwise.heads.models.load import Loaded
from headwise.heads.models.speech import hears
from headwise.lang import Text

Example = Mapping[str, Tensor]
"""One text as the model is given it, (1, L) each."""

PIECE = 128
"""Tokens of a piece of a text."""

TOGETHER = 512
"""Tokens that are read in one pass at most, where texts are of one length; of an encoder-decoder
those of its longer text."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What the model reads.

    Attributes:
        source: the option that named it, without dashes; or "sentence".
        file: the name of what was read; "" for a sentence.
        sha256: of a corpus; "" for anything else.
        length: tokens of a piece; None where texts are whole.
        start: the first token of a text that is predicted.
        measured: the texts that the loss is of.
        others: the texts that "mean" and "resample" take from.
    """

    source: str
    file: str
    sha256: str
    length: int | None
    start: int
    measured: tuple[Example, ...]
    others: tuple[Example, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens the texts have that the loss is of."""
        return sum(tokens(text) for text in self.measured)

    def batches(self) -> list[Example]:
        """The texts that the loss is of, as they are read."""
        return together(self.measured)

    def reference(self) -> list[Example]:
        """The other texts, as they are read."""
        return together(self.others)

    def share(self, number: int, shares: int) -> list[Example]:
        """The texts of one seed of several, to which they are dealt out in turn."""
        return together(self.measured[number::shares])


def read(asked: Asked, loaded: Loaded) -> Reading:
    """Read what was asked for.

    Raises:
        BadFile, BadValue: if it cannot be read, the model does not take it, or there is too little.
    """
    readers = {"--probe": _probe, "--corpus": _corpus}
    found = readers.get(asked.source, _text)(asked, loaded)
    texts = found.measured[: asked.texts]
    others: tuple[Example, ...] = ()
    if kind_named(asked.how).reference:
        texts, others = texts[::2], texts[1::2]
    chosen = replace(found, measured=texts, others=others)
    _check(asked, chosen)
    each = len(texts) // asked.draws if asked.draws else 0  # the same number for each seed
    return replace(chosen, measured=texts[: each * asked.draws]) if each else chosen


def together(texts: Sequence[Example]) -> list[Example]:
    """Neighbours of one length in one batch, up to `TOGETHER` tokens.

    Example:
        >>> texts = [{"input_ids": torch.zeros(1, n)} for n in (3, 3, 5)]
        >>> [tuple(batch["input_ids"].shape) for batch in together(texts)]
        [(2, 3), (1, 5)]
    """
    groups: list[list[Example]] = []
    for text in texts:
        last = groups[-1] if groups else []
        size = (len(last) + 1) * max(each.shape[-1] for each in text.values())
        if last and _shapes(last[0]) == _shapes(text) and size <= TOGETHER:
            last.append(text)
        else:
            groups.append([text])
    return [
        {name: torch.cat([text[name] for text in group]) for name in group[0]} for group in groups
    ]


def tokens(text: Example, part: str = "") -> int:
    """How many tokens a text has: those that are predicted, or those that the encoder reads."""
    if part != "encoder":
        return _ids(text).shape[1]
    heard = text.get("input_features")
    return text["input_ids"].shape[1] if heard is None else heard.shape[-1] // 2  # by convolution


def _probe(asked: Asked, loaded: Loaded) -> Reading:
    if loaded.longest < TOKENS * TIMES:
        name, most = clean(loaded.name), loaded.longest
        raise BadValue(
            "probe: it has {tokens} tokens, and {name} takes at most {most}; give a text "
            "with --text, or a corpus with --corpus",
            tokens=TOKENS * TIMES,
            name=name,
            most=most,
        )
    found = sequences(loaded, asked.seed)
    texts = tuple(_example(ids) for ids in found)
    return Reading("probe", named(TOKENS, TIMES, asked.seed), "", None, TOKENS, texts)


def _text(asked: Asked, loaded: Loaded) -> Reading:
    source = "sentence" if asked.text is None else "text"
    words = (asked.sentence or "") if asked.text is None else text_of(asked.text)
    check_text(words)
    _check_one_stack(source, loaded)
    length = min(PIECE, loaded.longest) if asked.length is None else asked.length
    texts = pieces(loaded, words, length)
    name = "" if asked.text is None else Path(asked.text).name
    return Reading(source, name, "", length, 1, tuple(texts))


def _corpus(asked: Asked, loaded: Loaded) -> Reading:
    file = asked.corpus or Path()
    if asked.length is not None:
        _check_one_stack("length", loaded)
    measurer = Measurer.of(loaded, truncate=asked.truncate, names=False, folder=file.parent)
    check = None if asked.length is not None else measurer.check
    corpus = look_through(file, paragraphs=asked.paragraphs, check=check)
    texts: list[Example] = []
    for document in corpus:
        if asked.texts is not None and len(texts) >= asked.texts:
            break
        if asked.length is None:
            texts.append(_whole(document, measurer))
        else:
            texts += pieces(loaded, document.text, asked.length)
    corpus.check_unchanged()
    return Reading("corpus", file.name, corpus.sha256, asked.length, 1, tuple(texts))


def _whole(document: Document, measurer: Measurer) -> Example:
    """A document as the model is given it."""
    text = document.text
    if hears(measurer.loaded.model):
        text = str(measurer.folder / text)
    found, _ = encode(measurer.loaded, text, truncate=measurer.truncate, target=document.target)
    if tokens(found) < 2:
        raise BadFile(
            "corpus: {document_name}: it has one token, and no next one to predict; leave it out",
            document_name=document.name,
        )
    return found


def pieces(loaded: Loaded, text: str, length: int) -> list[Example]:
    """A text in pieces of so many tokens; what is left at its end is left out.

    Each piece has the special tokens that the tokenizer puts around a text.

    Raises:
        BadValue: if the model takes fewer tokens, or there is no room beside the special ones.
    """
    if length > loaded.longest:
        name, most = clean(loaded.name), loaded.longest
        raise BadValue(
            "length: {length} tokens, and {name} takes at most {most}; give --length "
            "{most} or less",
            length=length,
            name=name,
            most=most,
        )
    whole, bare = (_tokens(loaded, text, special) for special in (True, False))
    room = length - (len(whole) - len(bare))
    if room < 1:
        raise BadValue(
            "length: {length} tokens leave no room beside {num_whole} special ones; give more",
            length=length,
            num_whole=len(whole) - len(bare),
        )
    before = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    first, last = whole[:before], whole[before + len(bare) :]
    starts = range(0, len(bare) - room + 1, room)
    return [_example([*first, *bare[start : start + room], *last]) for start in starts]


def _tokens(loaded: Loaded, text: str, special: bool) -> list[int]:
    found = loaded.tokenizer(
        text, verbose=False, padding=False, truncation=False, add_special_tokens=special
    )
    return list(found["input_ids"])


def _example(ids: Sequence[int]) -> Example:
    tokens = torch.tensor([list(ids)])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _ids(text: Example) -> Tensor:
    """The tokens that are predicted, (1, L)."""
    return text.get("decoder_input_ids", text.get("input_ids", torch.empty(1, 0)))


def _shapes(text: Example) -> dict[str, torch.Size]:
    return {name: each.shape for name, each in text.items()}


def _check_one_stack(option: str, loaded: Loaded) -> None:
    if getattr(loaded.config, "is_encoder_decoder", False):
        name = clean(loaded.name)
        raise BadValue(
            "{option}: {name} has a decoder that reads another text, and cannot read in "
            "pieces; give whole documents with --corpus, their targets in .jsonl",
            option=option,
            name=name,
        )


def _check(asked: Asked, found: Reading) -> None:
    """Refuse fewer texts than an interval takes."""
    count, least = len(found.measured), max(2, 2 * asked.draws)
    if count < least:
        raise _too_few(asked, found.source, count, least)


def _too_few(asked: Asked, source: str, count: int, least: int) -> BadValue:
    needs, ways = (Text(""), Text("give more text, or cut it shorter with --length"))
    if source == "probe":
        ways = Text("give more --texts")
    if kind_named(asked.how).reference:
        needs = Text(", beside as many others for --how {how}", how=asked.how)
    if asked.draws > 2:
        ways = Text("{ways}, or fewer --seeds", ways=ways)
    return BadValue(
        "{source}: {count} texts to measure on, and at least {least} are needed{needs}; {ways}",
        source=source,
        count=count,
        least=least,
        needs=needs,
        ways=ways,
    )

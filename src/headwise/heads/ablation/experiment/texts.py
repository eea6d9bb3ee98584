"""The texts for the loss, and the reference texts of mean and resample ablation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue
from headwise.heads.ablation.experiment.options import AblationOptions
from headwise.heads.ablation.methods import MOST_NUMBERS, method_named
from headwise.heads.ablation.sites import Site
from headwise.heads.corpus.documents import CorpusDocument, read_text
from headwise.heads.corpus.measurement import Measurer
from headwise.heads.corpus.probe import TIMES, TOKENS, named, sequences
from headwise.heads.corpus.readers import look_through
from headwise.heads.model_inputs import check_text
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head
from headwise.lang import Text, same

Example = Mapping[str, Tensor]  # the model inputs of one text, (1, L) each
PIECE = 128  # the default number of tokens of a piece
TOGETHER = 512  # the most tokens of a batch of texts of equal length


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of an experiment.

    Attributes:
        source: "sentence", "text", "corpus" or "probe".
        file: the file name, or the name of the probe; "" for a sentence.
        sha256: the hash of a corpus; otherwise "".
        length: the number of tokens of a piece; None for whole documents.
        start: the index of the first predicted token of a text.
        measured: the texts for the loss.
        others: the reference texts of "mean" and "resample".
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
        """The number of tokens of the texts for the loss."""
        return sum(tokens(text) for text in self.measured)

    def share(self, number: int, shares: int) -> list[Example]:
        """Return the batches of one seed; the seeds take the texts in turn."""
        return together(self.measured[number::shares])


def read_texts(options: AblationOptions, loaded: Loaded) -> Texts:
    """Read, tokenize and check the texts that the options select."""
    readers = {"--probe": _probe, "--corpus": _corpus}
    texts = readers.get(options.source, _text)(options, loaded)
    measured = texts.measured[: options.texts]
    others: tuple[Example, ...] = ()
    if method_named(options.how).reference:
        measured, others = measured[::2], measured[1::2]
    _check_count(options, replace(texts, measured=measured))
    if options.num_seeds:  # the same number of texts for each seed
        measured = measured[: len(measured) // options.num_seeds * options.num_seeds]
    return replace(texts, measured=measured, others=others)


def together(texts: Sequence[Example]) -> list[Example]:
    """Batch neighbouring texts of equal length, up to `TOGETHER` tokens.

    Example:
        >>> texts = [{"input_ids": torch.zeros(1, n)} for n in (3, 3, 5)]
        >>> [tuple(batch["input_ids"].shape) for batch in together(texts)]
        [(2, 3), (1, 5)]
    """
    groups: list[list[Example]] = []
    for text in texts:
        last = groups[-1] if groups else []
        size = (len(last) + 1) * max(tensor.shape[-1] for tensor in text.values())
        if last and _shapes(last[0]) == _shapes(text) and size <= TOGETHER:
            last.append(text)
        else:
            groups.append([text])
    return [
        {name: torch.cat([text[name] for text in group]) for name in group[0]} for group in groups
    ]


def tokens(text: Example, part: str = "") -> int:
    """Return the number of tokens of a text, in the decoder unless ``part`` is "encoder"."""
    if part != "encoder":
        return text.get("decoder_input_ids", text.get("input_ids", torch.empty(1, 0))).shape[1]
    sound = text.get("input_features")
    return text["input_ids"].shape[1] if sound is None else sound.shape[-1] // 2  # by convolution


def _probe(options: AblationOptions, loaded: Loaded) -> Texts:
    if loaded.longest < TOKENS * TIMES:
        raise BadValue(
            "probe: the probe has {tokens} tokens, but {name} accepts at most {most}; use "
            "--text or --corpus",
            tokens=TOKENS * TIMES,
            name=clean(loaded.name),
            most=loaded.longest,
        )
    texts = tuple(_example(ids) for ids in sequences(loaded, options.seed))
    return Texts("probe", named(TOKENS, TIMES, options.seed), "", None, TOKENS, texts)


def _text(options: AblationOptions, loaded: Loaded) -> Texts:
    source = "sentence" if options.text is None else "text"
    content = (options.sentence or "") if options.text is None else read_text(options.text)
    check_text(content)
    _check_one_stack(source, loaded)
    length = min(PIECE, loaded.longest) if options.length is None else options.length
    texts = pieces(loaded, content, length)
    name = "" if options.text is None else Path(options.text).name
    return Texts(source, name, "", length, 1, tuple(texts))


def _corpus(options: AblationOptions, loaded: Loaded) -> Texts:
    file = options.corpus or Path()
    if options.length is not None:
        _check_one_stack("length", loaded)
    measurer = Measurer.of(loaded, truncate=options.truncate, names=False, folder=file.parent)
    check = None if options.length is not None else measurer.check
    corpus = look_through(file, paragraphs=options.paragraphs, check=check)
    texts: list[Example] = []
    for document in corpus:
        if options.texts is not None and len(texts) >= options.texts:
            break
        if options.length is None:
            texts.append(_whole(document, measurer))
        else:
            texts += pieces(loaded, document.text, options.length)
    corpus.check_unchanged()
    return Texts("corpus", file.name, corpus.sha256, options.length, 1, tuple(texts))


def _whole(document: CorpusDocument, measurer: Measurer) -> Example:
    inputs, _ = measurer.encode(document)
    if tokens(inputs) < 2:
        raise BadFile(
            "corpus: {document_name}: expected at least 2 tokens, got 1; leave out the document",
            document_name=document.name,
        )
    return inputs


def pieces(loaded: Loaded, text: str, length: int) -> list[Example]:
    """Cut a text into pieces of ``length`` tokens; drop a shorter last piece.

    Each piece includes the special tokens that the tokenizer adds to a text. Raises `BadValue` if
    ``length`` exceeds the limit of the model or is too small for the special tokens.
    """
    if length > loaded.longest:
        raise BadValue(
            "length: got {length} tokens, but {name} accepts at most {most}; use --length "
            "{most} or less",
            length=length,
            name=clean(loaded.name),
            most=loaded.longest,
        )
    whole, plain = (_token_ids(loaded, text, special) for special in (True, False))
    room = length - (len(whole) - len(plain))
    if room < 1:
        raise BadValue(
            "length: {length} tokens leave no room for text beside {num_whole} special tokens; "
            "use a larger --length",
            length=length,
            num_whole=length - room,
        )
    before = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    first, last = whole[:before], whole[before + len(plain) :]
    starts = range(0, len(plain) - room + 1, room)
    return [_example([*first, *plain[start : start + room], *last]) for start in starts]


def _token_ids(loaded: Loaded, text: str, special: bool) -> list[int]:
    encoded = loaded.tokenizer(
        text, verbose=False, padding=False, truncation=False, add_special_tokens=special
    )
    return list(encoded["input_ids"])


def _example(ids: Sequence[int]) -> Example:
    tokens = torch.tensor([list(ids)])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _shapes(text: Example) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in text.items()}


def _check_one_stack(option: str, loaded: Loaded) -> None:
    if getattr(loaded.config, "is_encoder_decoder", False):
        raise BadValue(
            "{option}: {name} is an encoder-decoder, which needs a target for each text; use "
            "--corpus with whole documents and their targets in .jsonl",
            option=option,
            name=clean(loaded.name),
        )


def _check_count(options: AblationOptions, texts: Texts) -> None:
    count, minimum = len(texts.measured), max(2, 2 * options.num_seeds)
    if count >= minimum:
        return
    reference: Text = same("")
    if method_named(options.how).reference:
        reference = Text(" and as many reference texts for --how {how}", how=options.how)
    remedy = Text("use more text or a smaller --length")
    if texts.source == "probe":
        remedy = Text("use a larger --texts")
    if options.num_seeds > 2:
        remedy = Text("{remedy}, or fewer --seeds", remedy=remedy)
    raise BadValue(
        "{source}: expected at least {minimum} texts for the loss{reference}, got {count}; "
        "{remedy}",
        source=texts.source,
        count=count,
        minimum=minimum,
        reference=reference,
        remedy=remedy,
    )


def check_resampling(
    heads: tuple[Head, ...], removed: int, attentions: tuple[Site, ...], texts: Texts
) -> None:
    """Raise `BadValue` if texts differ in length, or resampling would store too many values.

    ``removed`` is the number of heads that are ablated together.
    """
    lengths = {}
    for part in sorted({head.layer.part for head in heads}):
        _check_lengths(part, texts)
        lengths[part] = sum(tokens(text, part) for text in texts.others)
    widths = {layer: site.size for site in attentions for layer in site.layers}
    numbers = sorted(widths[head.layer] * lengths[head.layer.part] for head in heads)
    kept = sum(numbers[-removed:])
    if kept > MOST_NUMBERS:
        raise BadValue(
            "how: 'resample' would store {kept} values of reference outputs; the limit is "
            "{most_numbers}; use fewer --texts or heads, or --how mean",
            kept=kept,
            most_numbers=MOST_NUMBERS,
        )


def _check_lengths(part: str, texts: Texts) -> None:
    lengths = {tokens(text, part) for text in (*texts.measured, *texts.others)}
    if len(lengths) == 1:
        return
    remedy, where = Text("use --length or --how mean"), same("")
    if part:
        remedy, stack = Text("use --how mean"), Text("encoder" if part == "encoder" else "decoder")
        where = Text(" in the {stack}", stack=stack)
    raise BadValue(
        "how: 'resample' needs texts of equal length, got {min} to {max} tokens{where}; {remedy}",
        min=min(lengths),
        max=max(lengths),
        where=where,
        remedy=remedy,
    )

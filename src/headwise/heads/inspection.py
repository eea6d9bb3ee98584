"""One text through one model: what every head does on it, and the weights of some."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadFile, BadValue
from headwise.heads.capture import capture
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head
from headwise.heads.standing_out import standing_out
from headwise.heads.statistics import Statistics

MOST_CELLS = 2_000_000
"""How many weights a report may draw, over all heads asked for: 16 MB of numbers."""

DRAWN = 3
"""How many heads are drawn when none is asked for."""

EVERY = "all"
"""What asks for every head."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """What was seen.

    Attributes:
        loaded: the model.
        text: what it was given.
        tokens: what the tokenizer made of it, as a person reads it; untrusted text.
        targets: the same for the decoder of an encoder-decoder; otherwise the tokens themselves.
        whole: how many tokens the whole text has; more than ``tokens`` where it was cut.
        statistics: every metric of every head.
        maps: for each head that was asked for, or stands out, its weights (Lq, Lk); NaN where a
            pair is not allowed.
    """

    loaded: Loaded
    text: str
    tokens: tuple[str, ...]
    targets: tuple[str, ...]
    whole: int
    statistics: Statistics
    maps: dict[Head, Tensor]

    def sides(self, head: Head) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens that a head's queries stand for, and those its keys stand for."""
        asked = self.tokens if head.layer.part in ("", "encoder") else self.targets
        read = self.targets if head.layer.part == "decoder" else self.tokens
        return asked, read


def inspect(
    loaded: Loaded,
    text: str,
    *,
    heads: Collection[Head] | str | None = None,
    truncate: bool = False,
) -> Inspection:
    """Run a text through a model and measure every head.

    The text is run twice: once for the statistics, which show what stands out, and once for the
    weights of the heads to draw, so that the weights of all heads are never held together.

    Args:
        loaded: the model and its tokenizer.
        text: what it reads. An encoder-decoder's decoder reads the same text, one token behind.
        heads: which heads' weights to keep; "all"; or None for the three that stand out most.
        truncate: cut a text that is longer than the model takes, instead of refusing it.

    Raises:
        BadValue: if the text is empty or too long, a head does not exist, or the heads asked for
            have more weights together than a report can draw.
        BadFile: if the model does not run on text.
    """
    inputs, whole = _encode(loaded, text, truncate)
    separators = _separators(loaded.tokenizer)
    with capture(loaded.model, separators=separators) as first:
        _run(loaded, inputs)
    wanted = _wanted(heads, first.statistics)
    length = inputs["input_ids"].shape[1]
    _drawable(wanted, length)
    with capture(loaded.model, heads=wanted, separators=separators) as second:
        _run(loaded, inputs)
    read = inputs["input_ids"]
    return Inspection(
        loaded=loaded,
        text=text,
        tokens=_tokens(loaded.tokenizer, read[0].tolist()),
        targets=_tokens(loaded.tokenizer, inputs.get("decoder_input_ids", read)[0].tolist()),
        whole=whole,
        statistics=first.statistics,
        maps={
            head: torch.where(second.allowed[head][0], second.weights[head][0], torch.nan)
            for head in wanted
        },
    )


def check_text(text: str) -> None:
    """Refuse a text with nothing in it, which takes no model to see.

    Raises:
        BadValue: if it is empty or blank.
    """
    if not text.strip():
        raise BadValue(
            "sentence: expected some text, got an empty one; write it in quotes after the model, "
            "or give a file with --text",
            "sentence：应有文本，收到空文本；请在模型名后用引号写出句子，或用 --text 指定文件",
        )


def _encode(loaded: Loaded, text: str, truncate: bool) -> tuple[dict[str, Tensor], int]:
    """The model's inputs, and how many tokens the whole text has."""
    check_text(text)
    ids = loaded.tokenizer(text, verbose=False, padding=False, truncation=False)["input_ids"]
    most = loaded.longest
    if not ids:
        raise BadValue(
            f"sentence: the tokenizer of {clean(loaded.name)} makes no token of it; write in the "
            "model's language",
            f"sentence：{clean(loaded.name)} 的分词器没有得到任何词元；请使用该模型的语言",
        )
    if len(ids) > most and not truncate:
        raise BadValue(
            f"sentence: {len(ids)} tokens, and {clean(loaded.name)} takes at most {most}; shorten "
            "it, or cut it with --truncate",
            f"sentence：共 {len(ids)} 个词元，而 {clean(loaded.name)} 最多接受 {most} 个；"
            "请缩短，或用 --truncate 截断",
        )
    encoded = loaded.tokenizer(
        text, padding=False, truncation=truncate, max_length=most, return_tensors="pt"
    )
    inputs = {key: encoded[key] for key in encoded if isinstance(encoded[key], Tensor)}
    return _with_decoder(loaded.config, inputs), len(ids)


def _with_decoder(config: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """A decoder that has its own input is given the same text, shifted by its start token."""
    if not getattr(config, "is_encoder_decoder", False):
        return inputs
    ids, start = inputs["input_ids"], getattr(config, "decoder_start_token_id", None)
    begin = torch.full_like(ids[:, :1], config.pad_token_id or 0 if start is None else start)
    return {**inputs, "decoder_input_ids": torch.cat((begin, ids[:, :-1]), dim=1)}


def _run(loaded: Loaded, inputs: dict[str, Tensor]) -> None:
    try:
        with torch.no_grad():
            loaded.model(**inputs)
    except (TypeError, IndexError, KeyError, RuntimeError, AttributeError) as error:
        reason = clean(f"{type(error).__name__}: {error}")[:300]
        raise BadFile(
            f"model: {clean(loaded.name)} does not run on this text ({reason}); give a model that "
            "reads text, with its own tokenizer",
            f"model：{clean(loaded.name)} 无法处理这段文本（{reason}）；"
            "请给出处理文本的模型及其自带的分词器",
        ) from error


def _separators(tokenizer: Any) -> frozenset[int]:
    """The ids of special tokens that stand between or around texts; [UNK] and [MASK] are words."""
    words = {tokenizer.unk_token_id, getattr(tokenizer, "mask_token_id", None)}
    return frozenset(tokenizer.all_special_ids) - words


def _wanted(heads: Collection[Head] | str | None, statistics: Statistics) -> tuple[Head, ...]:
    every = statistics.heads()
    if heads is None:
        return tuple(fact.head for fact in standing_out(statistics)[:DRAWN]) or every[:1]
    if isinstance(heads, str):
        if heads != EVERY:
            raise BadValue(
                f"heads: expected heads or 'all', got {heads!r}; parse_heads reads 'L0H2,L1H8'",
                f"heads：应为若干头或 'all'，收到 {heads!r}；可用 parse_heads 读取 'L0H2,L1H8'",
            )
        return every
    for head in heads:
        if head not in every:
            raise BadValue(
                f"heads: {head} does not exist; this model has {_range(statistics)}, counted from "
                "0",
                f"heads：不存在 {head}；该模型有 {_range(statistics)}，从 0 数起",
            )
    return tuple(heads)


def _range(statistics: Statistics) -> str:
    """The first and last head of each part: "L0H0 to L5H11"."""
    parts: dict[str, list[Head]] = {}
    for head in statistics.heads():
        parts.setdefault(head.layer.part, []).append(head)
    return ", ".join(f"{heads[0]} … {heads[-1]}" for heads in parts.values())


def _drawable(heads: tuple[Head, ...], length: int) -> None:
    cells = len(heads) * length * length
    if cells > MOST_CELLS:
        most = MOST_CELLS // (length * length)
        raise BadValue(
            f"heads: {len(heads)} heads on {length} tokens are {cells} weights to draw, at most "
            f"{MOST_CELLS} are; ask for {most} heads or fewer, or shorten the text",
            f"heads：{length} 个词元上的 {len(heads)} 个头共有 {cells} 个权重，最多可画 "
            f"{MOST_CELLS} 个；请至多选择 {most} 个头，或缩短文本",
        )


def _tokens(tokenizer: Any, ids: list[int]) -> tuple[str, ...]:
    """Each token as a person reads it: pieces of bytes decoded where that gives text."""
    names = tokenizer.convert_ids_to_tokens(ids)
    special = set(tokenizer.all_special_ids)
    shown = []
    for number, name in zip(ids, names, strict=True):
        text = name
        if number not in special and not name.startswith("##"):
            decoded = tokenizer.decode([number])
            text = name if "\ufffd" in decoded or not decoded.strip() else decoded
        shown.append(text)
    return tuple(shown)

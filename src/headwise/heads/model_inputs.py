"""What a model is given for a text, and running it on that."""

from typing import Any

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue, HeadwiseError
from headwise.heads.models.load import Loaded
from headwise.heads.models.whisper import sound_inputs, takes_sound


def check_text(text: str) -> None:
    """Refuse a text with nothing in it, which takes no model to see.

    Raises:
        BadValue: if it is empty or blank.
    """
    if not text.strip():
        raise BadValue(
            "sentence: expected some text, got an empty one; write it in quotes after "
            "the model, or give a file with --text"
        )


def encode(
    loaded: Loaded, text: str, *, truncate: bool = False, target: str | None = None
) -> tuple[dict[str, Tensor], int]:
    """The model's inputs for a text, and how many tokens the whole text has.

    Args:
        loaded: the model and its tokenizer.
        text: what it reads; for a model that hears, the WAV file.
        truncate: cut what is longer than the model takes, instead of refusing it.
        target: what an encoder-decoder's decoder reads, one token behind; None means what it
            writes itself where the model says how, otherwise the text.

    Raises:
        BadValue: if the text is empty, has no token, or is too long.
    """
    check_text(text)
    if takes_sound(loaded.model):
        heard = sound_inputs(loaded.model, loaded.tokenizer, text, target)
        return heard, heard["decoder_input_ids"].shape[1]
    inputs, whole = _encode(loaded, text, truncate)
    if not getattr(loaded.config, "is_encoder_decoder", False):
        return inputs, whole
    decoded = getattr(loaded.model, "decoded", None)  # what it writes itself
    if target is None and decoded is not None:
        return {**inputs, "decoder_input_ids": decoded(inputs["input_ids"])}, whole
    read = inputs if target is None else _encode(loaded, target, truncate)[0]
    return {**inputs, "decoder_input_ids": _behind(loaded.config, read["input_ids"])}, whole


def length(loaded: Loaded, text: str) -> int:
    """How many tokens a text has, as `encode` counts them.

    Raises:
        BadValue: if it has none.
    """
    ids = loaded.tokenizer(text, verbose=False, padding=False, truncation=False)["input_ids"]
    if not ids:
        raise BadValue(
            "sentence: the tokenizer of {loaded_name} makes no token of it; write in the "
            "model's language",
            loaded_name=clean(loaded.name),
        )
    return len(ids)


def check_length(loaded: Loaded, count: int) -> None:
    """Refuse more tokens than the model takes.

    Raises:
        BadValue: if they are.
    """
    if count > loaded.longest:
        name, most = clean(loaded.name), loaded.longest
        raise BadValue(
            "sentence: {count} tokens, and {name} takes at most {most}; shorten it, or "
            "cut it with --truncate",
            count=count,
            name=name,
            most=most,
        )


def run(loaded: Loaded, inputs: dict[str, Tensor]) -> None:
    """Run the model; what it answers is of no interest here.

    Raises:
        BadFile: if it does not run on them.
    """
    try:
        with torch.no_grad():
            loaded.model(**inputs)
    except HeadwiseError:
        raise
    except Exception as error:  # a foreign model on foreign settings fails in any way it likes
        reason = clean(f"{type(error).__name__}: {error}")[:300]
        raise BadFile(
            "model: {loaded_name} does not run on this text ({reason}); give a model "
            "that reads text, with its own tokenizer",
            loaded_name=clean(loaded.name),
            reason=reason,
        ) from error


def separators(tokenizer: Any) -> frozenset[int]:
    """The ids of special tokens that stand between or around texts; [UNK] and [MASK] are words."""
    words = {tokenizer.unk_token_id, getattr(tokenizer, "mask_token_id", None)}
    return frozenset(tokenizer.all_special_ids) - words


def tokens(tokenizer: Any, ids: list[int]) -> tuple[str, ...]:
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


def _encode(loaded: Loaded, text: str, truncate: bool) -> tuple[dict[str, Tensor], int]:
    whole = length(loaded, text)
    if not truncate:
        check_length(loaded, whole)
    encoded = loaded.tokenizer(
        text, padding=False, truncation=truncate, max_length=loaded.longest, return_tensors="pt"
    )
    return {key: encoded[key] for key in encoded if isinstance(encoded[key], Tensor)}, whole


def _behind(config: Any, ids: Tensor) -> Tensor:
    """The tokens shifted by the decoder's start token."""
    start = getattr(config, "decoder_start_token_id", None)
    begin = torch.full_like(ids[:, :1], config.pad_token_id or 0 if start is None else start)
    return torch.cat((begin, ids[:, :-1]), dim=1)

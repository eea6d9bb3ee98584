"""The inputs of a model for a text, and a run on them."""

from typing import Any

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue, HeadwiseError
from headwise.heads.models.load import Loaded
from headwise.heads.models.whisper import sound_inputs, takes_sound


def check_text(text: str) -> None:
    """Raise `BadValue` if a text is empty or blank."""
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
        text: its input; for a speech model the WAV file.
        truncate: cut a text that is longer than the model takes, instead of refusing it.
        target: the text that a decoder reads, one token behind; None means its own output where
            the model can give it, otherwise ``text``.

    Raises:
        BadValue: if the text is empty, has no token, or is too long.
    """
    check_text(text)
    if takes_sound(loaded.model):
        inputs = sound_inputs(loaded.model, loaded.tokenizer, text, target)
        return inputs, inputs["decoder_input_ids"].shape[1]
    inputs, whole = _encode(loaded, text, truncate)
    if not getattr(loaded.config, "is_encoder_decoder", False):
        return inputs, whole
    decoded = getattr(loaded.model, "decoded", None)  # gives the decoder's own output
    if target is None and decoded is not None:
        return {**inputs, "decoder_input_ids": decoded(inputs["input_ids"])}, whole
    ids = (inputs if target is None else _encode(loaded, target, truncate)[0])["input_ids"]
    start = getattr(loaded.config, "decoder_start_token_id", None)
    start = loaded.config.pad_token_id or 0 if start is None else start
    shifted = torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), dim=1)
    return {**inputs, "decoder_input_ids": shifted}, whole


def length(loaded: Loaded, text: str) -> int:
    """The number of tokens of a text in `encode`; raises `BadValue` if it has none."""
    ids = loaded.tokenizer(text, verbose=False, padding=False, truncation=False)["input_ids"]
    if not ids:
        raise BadValue(
            "sentence: the tokenizer of {loaded_name} makes no token of it; write in the "
            "model's language",
            loaded_name=clean(loaded.name),
        )
    return len(ids)


def check_length(loaded: Loaded, count: int) -> None:
    """Raise `BadValue` for more tokens than the model takes."""
    if count > loaded.longest:
        raise BadValue(
            "sentence: {count} tokens, and {name} takes at most {most}; shorten it, or "
            "cut it with --truncate",
            count=count,
            name=clean(loaded.name),
            most=loaded.longest,
        )


def run(loaded: Loaded, inputs: dict[str, Tensor]) -> None:
    """Run the model; raises `BadFile` if it does not run on the inputs."""
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
    """The ids of special tokens between or around texts; [UNK] and [MASK] count as words."""
    words = {tokenizer.unk_token_id, getattr(tokenizer, "mask_token_id", None)}
    return frozenset(tokenizer.all_special_ids) - words


def tokens(tokenizer: Any, ids: list[int]) -> tuple[str, ...]:
    """The tokens in readable form: byte-level tokens are decoded where that gives text."""
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

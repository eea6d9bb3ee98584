"""Create the inputs of a model for a text, and run the model."""

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
            "sentence: expected some text, got an empty one; write a text in quotes after "
            "the model, or use --text FILE"
        )


def encode(
    loaded: Loaded, text: str, *, truncate: bool = False, target: str | None = None
) -> tuple[dict[str, Tensor], int]:
    """Return the model inputs for a text, and the number of tokens of the whole text.

    Args:
        loaded: the model and its tokenizer.
        text: the text; for a speech model the path of a WAV file.
        truncate: whether to truncate a text that is too long instead of raising an error.
        target: the text for the decoder, which receives it shifted by one token; None for the
            output of the decoder if the model can generate it, otherwise ``text``.

    Raises:
        BadValue: if the text is empty, has no tokens, or is too long.
    """
    check_text(text)
    if takes_sound(loaded.model):
        inputs = sound_inputs(loaded.model, loaded.tokenizer, text, target)
        return inputs, inputs["decoder_input_ids"].shape[1]
    inputs, whole = _encode(loaded, text, truncate)
    if not getattr(loaded.config, "is_encoder_decoder", False):
        return inputs, whole
    decoded = getattr(loaded.model, "decoded", None)  # generates the output of the decoder
    if target is None and decoded is not None:
        return {**inputs, "decoder_input_ids": decoded(inputs["input_ids"])}, whole
    ids = (inputs if target is None else _encode(loaded, target, truncate)[0])["input_ids"]
    start = getattr(loaded.config, "decoder_start_token_id", None)
    start = loaded.config.pad_token_id or 0 if start is None else start
    shifted = torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), dim=1)
    return {**inputs, "decoder_input_ids": shifted}, whole


def length(loaded: Loaded, text: str) -> int:
    """Return the number of tokens of a text in `encode`; raise `BadValue` if it has none."""
    ids = loaded.tokenizer(text, verbose=False, padding=False, truncation=False)["input_ids"]
    if not ids:
        raise BadValue(
            "sentence: the tokenizer of {loaded_name} returns no tokens; write in the "
            "language of the model",
            loaded_name=clean(loaded.name),
        )
    return len(ids)


def check_length(loaded: Loaded, count: int) -> None:
    """Raise `BadValue` if the model does not accept this many tokens."""
    if count > loaded.longest:
        raise BadValue(
            "sentence: got {count} tokens, but {name} accepts at most {most}; shorten the "
            "text, or use --truncate",
            count=count,
            name=clean(loaded.name),
            most=loaded.longest,
        )


def run(loaded: Loaded, inputs: dict[str, Tensor]) -> None:
    """Run the model; raise `BadFile` if it does not run on the inputs."""
    try:
        with torch.no_grad():
            loaded.model(**inputs)
    except HeadwiseError:
        raise
    except Exception as error:  # models of others can raise any error
        reason = clean(f"{type(error).__name__}: {error}")[:300]
        raise BadFile(
            "model: {loaded_name} does not run on this text ({reason}); use a text model "
            "with its own tokenizer",
            loaded_name=clean(loaded.name),
            reason=reason,
        ) from error


def separators(tokenizer: Any) -> frozenset[int]:
    """Return the ids of special tokens except [UNK] and [MASK], which count as words."""
    words = {tokenizer.unk_token_id, getattr(tokenizer, "mask_token_id", None)}
    return frozenset(tokenizer.all_special_ids) - words


def tokens(tokenizer: Any, ids: list[int]) -> tuple[str, ...]:
    """Return the tokens in readable form: byte-level tokens are decoded if they are text."""
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

"""What Whisper is given: sound from a WAV file, and the words that its decoder reads."""

import wave
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadFile, BadValue, MissingExtra

RATE, SECONDS = 16000, 30
"""Samples a second that Whisper hears, and how long a sound it takes at once."""

UNTIMED = "<|notimestamps|>"
"""The token after the first by which the decoder is told to write words and no times."""

MOST_WORDS = 200
"""The most tokens that it writes itself."""


def takes_sound(model: Any) -> bool:
    """Whether a model is given sound and no text."""
    return getattr(model, "main_input_name", None) == "input_features"


def sound(file: str) -> Tensor:
    """The samples of a WAV file, (n,) between -1 and 1.

    Raises:
        BadFile: if it is no WAV file of one channel, 16 bits and 16 000 samples a second, or is
            longer than 30 seconds.
    """
    path, shown = Path(file), clean(file)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise _bad_sound(shown, "it is a directory, a device or a pipe")
        with wave.open(str(path), "rb") as read:
            form = (read.getnchannels(), read.getsampwidth(), read.getframerate())
            if form != (1, 2, RATE):
                given = f"{form[0]} channels, {8 * form[1]} bits, {form[2]} samples a second"
                raise _bad_sound(shown, given)
            content = read.readframes(RATE * SECONDS + 1)
    except (OSError, EOFError, ValueError, wave.Error) as error:
        if isinstance(error, BadFile):
            raise
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise _bad_sound(shown, clean(reason)) from error
    if not 2 <= len(content) <= 2 * RATE * SECONDS:
        raise _bad_sound(shown, f"{len(content) // 2} samples")
    whole = bytearray(content[: len(content) // 2 * 2])
    return torch.frombuffer(whole, dtype=torch.int16).float() / 32768


def sound_inputs(model: Any, tokenizer: Any, file: str, target: str | None) -> dict[str, Tensor]:
    """The inputs for a sound.

    Args:
        model: a Whisper of transformers.
        tokenizer: its tokenizer.
        file: a WAV file.
        target: what is said; None means what the model itself hears.

    Raises:
        BadFile: if the file cannot be heard.
        BadValue: if the target has more tokens than the model takes.
        MissingExtra: if transformers is not installed.
    """
    try:
        from transformers import WhisperFeatureExtractor
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    made: Any = WhisperFeatureExtractor
    extractor = made(feature_size=model.config.num_mel_bins)
    heard = extractor(sound(file).numpy(), sampling_rate=RATE, return_tensors="pt")
    features = heard["input_features"]
    start = [model.config.decoder_start_token_id, tokenizer.convert_tokens_to_ids(UNTIMED)]
    if target is None:
        ids = _written(model, features, start)
    else:
        ids = torch.tensor([start + tokenizer(target, add_special_tokens=False)["input_ids"]])
    most = model.config.max_target_positions
    if ids.shape[1] > most:
        raise BadValue(
            "target: {count} tokens, and the model takes at most {most}; shorten it",
            count=ids.shape[1],
            most=most,
        )
    return {"input_features": features, "decoder_input_ids": ids}


@torch.no_grad()
def _written(model: Any, features: Tensor, start: list[int]) -> Tensor:
    """What the model hears, greedily, with the tokens before it."""
    read = model.encoder(features).last_hidden_state
    ids, words = torch.tensor([start]), model.decoder.embed_tokens.weight
    end = model.config.eos_token_id
    while ids.shape[1] < MOST_WORDS:
        last = model.decoder(input_ids=ids, encoder_hidden_states=read).last_hidden_state[:, -1]
        best = (last @ words.T)[:, :end].argmax(-1, keepdim=True)  # words only: end and times after
        if bool(((last @ words.T).argmax(-1) == end).all()):
            break
        ids = torch.cat((ids, best), 1)
    return ids


def _bad_sound(shown: str, got: str) -> BadFile:
    return BadFile(
        "sound: {shown}: expected a WAV file of one channel, 16 bits and {rate} samples "
        "a second, up to {seconds} seconds, got {got}; convert it with: ffmpeg -i IN "
        "-ac 1 -ar {rate} OUT.wav",
        shown=shown,
        rate=RATE,
        seconds=SECONDS,
        got=got,
    )

"""Whisper: its inputs from a WAV file, and the conversion of its CTranslate2 file."""

import struct
import wave
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue, MissingExtra
from headwise.heads.models.gguf import FILES as FILES
from headwise.heads.models.gguf import BinaryReader
from headwise.heads.models.model_files import write_json, write_weights

RATE, SECONDS = 16000, 30  # samples per second, and the most seconds of an input
UNTIMED = "<|notimestamps|>"  # the second token of the decoder input: no timestamps
MOST_WORDS = 200  # the most tokens that the decoder generates


def takes_sound(model: Any) -> bool:
    """Return whether a model takes audio as its input."""
    return getattr(model, "main_input_name", None) == "input_features"


def sound(file: str) -> Tensor:
    """Read the samples (n,) in [-1, 1] of a WAV file of 16 bits, 16 kHz and at most 30 seconds.

    Raises `BadFile` for any other file.
    """
    path, shown = Path(file), clean(file)
    try:
        if path.exists() and not path.is_file():  # reading a pipe would block
            raise _bad_sound(shown, "it is a directory, a device or a pipe")
        with wave.open(str(path), "rb") as read:
            form = (read.getnchannels(), read.getsampwidth(), read.getframerate())
            if form != (1, 2, RATE):
                given = f"{form[0]} channels, {8 * form[1]} bits, {form[2]} samples per second"
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
    """Return the inputs of transformers' Whisper for a WAV file.

    ``target`` is the transcript; None lets the model generate it. Raises `BadValue` if the target
    has too many tokens, and `BadFile` if `sound` cannot read the file.
    """
    try:
        from transformers import WhisperFeatureExtractor
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    untyped: Any = WhisperFeatureExtractor
    extractor = untyped(feature_size=model.config.num_mel_bins)
    extracted = extractor(sound(file).numpy(), sampling_rate=RATE, return_tensors="pt")
    features = extracted["input_features"]
    start = [model.config.decoder_start_token_id, tokenizer.convert_tokens_to_ids(UNTIMED)]
    if target is None:
        ids = _transcribed(model, features, start)
    else:
        ids = torch.tensor([start + tokenizer(target, add_special_tokens=False)["input_ids"]])
    most = model.config.max_target_positions
    if ids.shape[1] > most:
        raise BadValue(
            "target: got {count} tokens, but the model accepts at most {most}; shorten it",
            count=ids.shape[1],
            most=most,
        )
    return {"input_features": features, "decoder_input_ids": ids}


@torch.no_grad()
def _transcribed(model: Any, features: Tensor, start: list[int]) -> Tensor:
    """Return the first tokens, continued by greedy decoding."""
    read = model.encoder(features).last_hidden_state
    ids, words = torch.tensor([start]), model.decoder.embed_tokens.weight
    end = model.config.eos_token_id
    while ids.shape[1] < MOST_WORDS:
        last = model.decoder(input_ids=ids, encoder_hidden_states=read).last_hidden_state[:, -1]
        logits = last @ words.T
        if bool((logits.argmax(-1) == end).all()):
            break
        best = logits[:, :end].argmax(-1, keepdim=True)  # end token and timestamps have larger ids
        ids = torch.cat((ids, best), 1)
    return ids


def _bad_sound(shown: str, got: str) -> BadFile:
    return BadFile(
        "sound: {shown}: expected a WAV file of 1 channel, 16 bits and {rate} samples per second, "
        "up to {seconds} seconds, got {got}; convert it with: ffmpeg -i IN -ac 1 -ar {rate} "
        "OUT.wav",
        shown=shown,
        rate=RATE,
        seconds=SECONDS,
        got=got,
    )


FORMAT, FLOAT16 = 6, 4  # the supported version, and its code for float16 tensors
NUMBERS = {1: "b", 2: "h", 3: "i"}  # the `struct` formats of single numbers
START, END, LONGEST = 50257, 50256, 448  # first token, last token, most tokens of English models

BLOCK = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/layer_norm": "final_layer_norm",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
FUSED = {
    "self_attention/linear_0": tuple(f"self_attn.{name}_proj" for name in "qkv"),
    "attention/linear_1": tuple(f"encoder_attn.{name}_proj" for name in "kv"),
}
"""Names within a layer in CTranslate2 and in transformers; `FUSED` are fused projections."""

WHOLE = {
    "decoder/embeddings/weight": "decoder.embed_tokens.weight",
    "decoder/position_encodings/encodings": "decoder.embed_positions.weight",
    "encoder/position_encodings/encodings": "encoder.embed_positions.weight",
}


def convert(folder: Path) -> None:
    """Replace the files of CTranslate2 by float32 weights and settings."""
    path = folder / "model.bin"
    numbers, tensors = read(path)
    write_weights(folder, _weights(tensors))
    write_json(folder / "config.json", _config(numbers, tensors))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST}
    special = {"bos_token": "<|startoftranscript|>"}
    special |= dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    write_json(folder / "tokenizer_config.json", settings | special)
    path.unlink()


def read(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return the single numbers and the float16 tensors of a CTranslate2 file, by name.

    Raises `BadFile` if the file is not a Whisper model of a supported format, or ends too early.

    Source: CTranslate2 4.5, python/ctranslate2/specs/model_spec.py, `_serialize`.
    """
    reader = BinaryReader(path, path.read_bytes())
    version, spec = reader.number("I"), reader.string("H").rstrip("\0")
    if version != FORMAT or spec != "WhisperSpec":
        raise reader.wrong(f"expected a WhisperSpec of format {FORMAT}, got {spec} {version}")
    reader.number("I")  # the revision of the spec
    numbers, tensors = dict[str, int](), dict[str, Tensor]()
    for _ in range(reader.number("I")):
        name, rank = reader.string("H").rstrip("\0"), reader.number("B")
        shape = [reader.number("I") for _ in range(rank)]
        kind, size = reader.number("B"), reader.number("I")
        content = reader.take(size)
        if not shape and kind in NUMBERS:
            numbers[name] = struct.unpack(f"<{NUMBERS[kind]}", content)[0]
        elif kind == FLOAT16:
            flat = torch.frombuffer(bytearray(content), dtype=torch.float16)
            try:
                tensors[name] = flat.float().reshape(shape)
            except RuntimeError:
                raise reader.wrong(f"{name} does not have the shape {shape}") from None
    return numbers, tensors


def _weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        f"model.{new}": part.contiguous()
        for name, tensor in tensors.items()
        for new, part in _renamed(name, tensor)
    }


def _renamed(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Return a tensor of CTranslate2, or its parts, with names of transformers."""
    if name in WHOLE:
        return [(WHOLE[name], tensor)]
    stack, *middle, kind = name.split("/")
    kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
    if not middle[0].startswith("layer_") or middle == ["layer_norm"]:
        return [(f"{stack}.{'.'.join(middle)}.{kind}", tensor)]
    layer, inner = middle[0].removeprefix("layer_"), "/".join(middle[1:])
    start = f"{stack}.layers.{layer}"
    if inner in FUSED:
        parts = zip(FUSED[inner], tensor.chunk(len(FUSED[inner])), strict=True)
        named = [(f"{start}.{new}.{kind}", part) for new, part in parts]
        return [pair for pair in named if not pair[0].endswith("k_proj.bias")]  # it is 0
    return [(f"{start}.{BLOCK[inner]}.{kind}", tensor)]


def _config(numbers: dict[str, int], tensors: dict[str, Tensor]) -> dict[str, Any]:
    words, width = tensors["decoder/embeddings/weight"].shape
    inner = tensors["encoder/layer_0/ffn/linear_0/weight"].shape[0]
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": words,
        "d_model": width,
        "num_mel_bins": tensors["encoder/conv1/weight"].shape[1],
        "max_source_positions": tensors["encoder/position_encodings/encodings"].shape[0],
        "max_target_positions": tensors["decoder/position_encodings/encodings"].shape[0],
        "is_encoder_decoder": True,
        "decoder_start_token_id": START,
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": END,
        "dtype": "float32",
    }
    for stack in ("encoder", "decoder"):
        layers = {name.split("/")[1] for name in tensors if name.startswith(f"{stack}/layer_")}
        config |= {
            f"{stack}_layers": len(layers - {"layer_norm"}),
            f"{stack}_attention_heads": numbers[f"{stack}/num_heads"],
            f"{stack}_ffn_dim": inner,
        }
    return config

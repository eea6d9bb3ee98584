"""Whisper from its CTranslate2 file, with a sound as input."""

import json
import struct
import wave
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headwise.errors import BadFile, BadValue
from headwise.heads.inspection import inspect
from headwise.heads.models.load import Loaded
from headwise.heads.models.whisper import (
    BLOCK,
    FILES,
    FUSED,
    RATE,
    convert,
    read,
    sound,
    sound_inputs,
    takes_sound,
)
from headwise.verify.oracle.tolerance import accept

D, FFN, HEADS, WORDS = 12, 13, 3, 31


def state() -> dict[str, Tensor]:
    """The weights of a tiny Whisper, in numbers that float16 holds."""
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=WORDS, num_mel_bins=5, d_model=D, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=FFN,
        decoder_ffn_dim=FFN, max_source_positions=17, max_target_positions=19, pad_token_id=0,
        eos_token_id=2, bos_token_id=1, decoder_start_token_id=1,
    )  # fmt: skip
    torch.manual_seed(2)
    made = WhisperModel(config).state_dict()
    return {name: torch.randn(weight.shape).half().float() for name, weight in made.items()}


def in_ctranslate2(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under CTranslate2's names, with projections put together."""
    found: dict[str, Tensor] = {
        "decoder/embeddings/weight": weights["decoder.embed_tokens.weight"],
        "decoder/position_encodings/encodings": weights["decoder.embed_positions.weight"],
        "encoder/position_encodings/encodings": weights["encoder.embed_positions.weight"],
    }
    names = {"weight": "gamma", "bias": "beta"}
    for stack in ("encoder", "decoder"):
        for kind in ("weight", "bias"):
            normed = weights[f"{stack}.layer_norm.{kind}"]
            found[f"{stack}/layer_norm/{names[kind]}"] = normed
            for old, new in BLOCK.items():
                if f"{stack}.layers.0.{new}.{kind}" in weights:
                    last = names[kind] if old.endswith("norm") else kind
                    here = weights[f"{stack}.layers.0.{new}.{kind}"]
                    found[f"{stack}/layer_0/{old}/{last}"] = here
            for old, many in FUSED.items():
                each = [
                    weights.get(f"{stack}.layers.0.{new}.{kind}", torch.zeros(D)) for new in many
                ]
                if f"{stack}.layers.0.{many[0]}.weight" in weights:
                    found[f"{stack}/layer_0/{old}/{kind}"] = torch.cat(each)
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            found[f"encoder/{conv}/{kind}"] = weights[f"encoder.{conv}.{kind}"]
    return found


def string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def binary(tensors: dict[str, Tensor], spec: str = "WhisperSpec", version: int = 6) -> bytes:
    count = len(tensors) + 2
    content = struct.pack("<I", version) + string(spec) + struct.pack("<II", 3, count)
    for stack in ("encoder", "decoder"):
        content += string(f"{stack}/num_heads") + struct.pack("<BBIh", 0, 2, 2, HEADS)
    for name, tensor in tensors.items():
        raw = tensor.half().numpy().tobytes()
        content += string(name) + struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
        content += struct.pack("<BI", 4, len(raw)) + raw
    return content


def test_transformers_reads_what_is_written(tmp_path: Path) -> None:
    from transformers import WhisperForConditionalGeneration

    weights = state()
    (tmp_path / "model.bin").write_bytes(binary(in_ctranslate2(weights)))
    (tmp_path / "tokenizer.json").write_text("{}")
    convert(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(FILES)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["d_model"], config["encoder_attention_heads"]) == (D, HEADS)
    config |= {"pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, report = WhisperForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not set(report["missing_keys"]) - {"proj_out.weight"}
    assert not report["unexpected_keys"]
    for name, weight in model.model.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    assert takes_sound(model)


@pytest.mark.parametrize("end", [0, 3, 20, 60, 400])
def test_a_file_that_ends_too_early_is_refused(tmp_path: Path, end: int) -> None:
    (tmp_path / "model.bin").write_bytes(binary(in_ctranslate2(state()))[:end])
    with pytest.raises(BadFile, match=r"cannot read model\.bin: it ends too early"):
        read(tmp_path / "model.bin")


def test_what_is_no_whisper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(binary({}, "TransformerSpec"))
    with pytest.raises(BadFile, match="expected a WhisperSpec of format 6, got TransformerSpec 6"):
        read(tmp_path / "model.bin")


def test_a_shape_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    content = binary({"w": torch.ones(2, 3)}).replace(
        struct.pack("<II", 2, 3), struct.pack("<II", 2, 7)
    )
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(BadFile, match=r"w does not have the shape \[2, 7\]"):
        read(tmp_path / "model.bin")


def written(path: Path, samples: list[int], form: tuple[int, int, int] = (1, 2, RATE)) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((*form, 0, "NONE", ""))
        file.writeframes(torch.tensor(samples, dtype=torch.int16).numpy().tobytes())
    return path


def test_sound_is_read_between_minus_one_and_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.wav", [0, 16384, -32768])
    assert sound(str(path)).tolist() == [0.0, 0.5, -1.0]


@pytest.mark.parametrize(
    ("form", "count", "why"),
    [
        ((2, 2, RATE), 4, "got 2 channels, 16 bits, 16000 samples per second"),
        ((1, 2, 44100), 4, "got 1 channels, 16 bits, 44100 samples per second"),
        ((1, 2, RATE), 0, "got 0 samples"),
        ((1, 2, RATE), RATE * 30 + 1, "got 480001 samples"),
    ],
)
def test_other_sound_is_refused(
    tmp_path: Path, form: tuple[int, int, int], count: int, why: str
) -> None:
    path = written(tmp_path / "a.wav", [0] * count, form)
    with pytest.raises(BadFile, match=f"{why}; convert it with: ffmpeg"):
        sound(str(path))


@pytest.mark.parametrize("content", [b"", b"RIFF", b"\x00\xff" * 50])
def test_what_is_no_sound_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(BadFile, match=r"a\.wav: expected a WAV file of 1 channel"):
        sound(str(tmp_path / "a.wav"))
    with pytest.raises(BadFile, match="got No such file"):
        sound(str(tmp_path / "none.wav"))
    with pytest.raises(BadFile, match="it is a directory"):
        sound(str(tmp_path))


def test_a_sentence_is_not_what_it_hears() -> None:
    model = torch.nn.Module()
    model.main_input_name = "input_features"  # type: ignore[assignment]
    with pytest.raises(
        BadValue, match=r"whisper is a speech model.* --corpus FILE\.jsonl with lines"
    ):
        inspect(Loaded("whisper", "packaged", model, None), "What is said?")


@pytest.mark.slow
def test_it_hears_what_is_said() -> None:
    from headwise.heads.models import is_cached, model_named
    from headwise.heads.models.load import load

    if not is_cached(model_named("whisper")):
        pytest.skip("whisper is not in the cache; headwise models get whisper")
    loaded = load("whisper")
    file = str(Path(__file__).parents[2] / "data" / "alignment" / "speech_1.wav")
    inputs = sound_inputs(loaded.model, loaded.tokenizer, file, None)
    said = "My brother opened the window because the kitchen was very hot."
    ids = inputs["decoder_input_ids"][0].tolist()
    assert loaded.tokenizer.decode(ids, skip_special_tokens=True).strip() == said
    given = sound_inputs(loaded.model, loaded.tokenizer, file, f" {said}")
    assert given["decoder_input_ids"][0].tolist() == ids
    with pytest.raises(BadValue, match="target: got 502 tokens, but the model accepts at most 448"):
        sound_inputs(loaded.model, loaded.tokenizer, file, " the" * 500)
    with torch.no_grad():
        features = inputs["input_features"]
        plain = loaded.model.encoder(features).last_hidden_state
        oracle = loaded.model.double().encoder(features.double()).last_hidden_state
    accept(plain, plain, oracle)  # and it is finite

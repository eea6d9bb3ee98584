"""SmolLM2 from its GGUF file: transformers loads the folder, and the weights are the same."""

import struct
from pathlib import Path

import pytest
import torch

from headwise.errors import BadFile
from headwise.heads.models import is_cached, model_folder, model_named
from headwise.heads.models.gguf import FILES, convert
from headwise.verify.oracle.tolerance import accept
from tests.heads.models.test_gguf import entry, gguf, string

DIM, INNER, HEADS, GROUPS = 8, 12, 2, 1
TOKENS = ("<|end|>", "<|im|>", "a", "b", "1", "2", "Ġ", "ab")


def text(key: str, value: str) -> bytes:
    return string(key) + struct.pack("<I", 8) + string(value)


def number(key: str, value: int) -> bytes:
    return string(key) + struct.pack("<II", 4, value)


def small(key: str, value: float) -> bytes:
    return string(key) + struct.pack("<If", 6, value)


def values() -> tuple[bytes, int]:
    tokens = b"".join(string(token) for token in TOKENS)
    kinds = struct.pack(f"<{len(TOKENS)}i", 3, 3, *[1] * (len(TOKENS) - 2))
    given = [
        text("general.architecture", "llama"),
        number("llama.block_count", 1),
        number("llama.context_length", 37),
        number("llama.embedding_length", DIM),
        number("llama.feed_forward_length", INNER),
        number("llama.attention.head_count", HEADS),
        number("llama.attention.head_count_kv", GROUPS),
        number("llama.rope.dimension_count", DIM // HEADS),
        number("llama.vocab_size", len(TOKENS)),
        small("llama.rope.freq_base", 10000.0),
        small("llama.attention.layer_norm_rms_epsilon", 1e-5),
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(TOKENS)) + tokens,
        string("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, len(TOKENS)) + kinds,
        string("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 1) + string("a b"),
        *(number(f"tokenizer.ggml.{name}_token_id", i) for name, i in
          (("bos", 1), ("eos", 0), ("unknown", 0), ("padding", 0))),
    ]  # fmt: skip
    return b"".join(given), len(given)


def shapes() -> dict[str, tuple[int, ...]]:
    kv = DIM // HEADS * GROUPS
    layer = {
        "attn_norm": (DIM,), "attn_q": (DIM, DIM), "attn_k": (kv, DIM), "attn_v": (kv, DIM),
        "attn_output": (DIM, DIM), "ffn_norm": (DIM,), "ffn_gate": (INNER, DIM),
        "ffn_up": (INNER, DIM), "ffn_down": (DIM, INNER),
    }  # fmt: skip
    named = {f"blk.0.{name}.weight": shape for name, shape in layer.items()}
    return {"token_embd.weight": (len(TOKENS), DIM), "output_norm.weight": (DIM,), **named}


def written(folder: Path, values: bytes, count: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    tensors = {name: torch.randn(shape) for name, shape in shapes().items()}
    entries, content = [], b""
    for name, tensor in tensors.items():
        entries.append(entry(name, tuple(tensor.shape), 0, len(content)))
        content += tensor.numpy().tobytes()
        content += b"\0" * (-len(content) % 32)
    (folder / "toy.gguf").write_bytes(gguf(values, count, tuple(entries), content))
    return tensors


def test_transformers_reads_what_is_written(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tensors = written(tmp_path, *values())
    convert(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(FILES)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.rope_parameters["rope_theta"] == 10000.0
    assert torch.equal(model.lm_head.weight, tensors["token_embd.weight"])
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert read.convert_ids_to_tokens(read("ab 12<|im|>")["input_ids"]) == [
        "ab", "Ġ", "1", "2", "<|im|>"
    ]  # fmt: skip
    assert (read.bos_token, read.eos_token, read.model_max_length) == ("<|im|>", "<|end|>", 37)


def test_rows_that_are_rotated_together_are_put_where_transformers_rotates(tmp_path: Path) -> None:
    """Held against the rotation of neighbours (GGUF's order), written out for one token at 3."""
    from transformers import AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    tensors = written(tmp_path, *values())
    convert(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).model
    attention, half = model.layers[0].self_attn, DIM // HEADS // 2
    x = torch.randn(1, 1, DIM)
    with torch.no_grad():
        q = attention.q_proj(x).view(1, 1, HEADS, -1).transpose(1, 2)
        k = attention.k_proj(x).view(1, 1, GROUPS, -1).transpose(1, 2)
        cos, sin = model.rotary_emb(x, torch.tensor([[3]]))
        turned, _ = apply_rotary_pos_emb(q, k, cos, sin)  # q stands at 3, k stays at 0

    def scores(x: torch.Tensor) -> torch.Tensor:
        weights = {
            name: tensors[f"blk.0.{name}.weight"].to(x.dtype) for name in ("attn_q", "attn_k")
        }
        angle = 3.0 / 10000.0 ** (torch.arange(half, dtype=x.dtype) / half)
        one, two = (x @ weights["attn_q"].T).view(HEADS, half, 2).unbind(-1)
        pairs = (one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin())
        return torch.stack(pairs, -1).flatten(1) @ (x @ weights["attn_k"].T)

    accept(turned[0, :, 0] @ k[0, 0, 0], scores(x[0, 0]), scores(x[0, 0].double()))


def test_what_is_no_llama_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toy.gguf").write_bytes(gguf(text("general.architecture", "gpt2"), 1, (), b""))
    with pytest.raises(BadFile, match=r"expected a Llama .* got 'gpt2'"):
        convert(tmp_path)


@pytest.mark.slow
def test_smollm2_reads_plain_english() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not is_cached(model_named("smollm2")):
        pytest.skip("smollm2 is not in the cache; headwise models get smollm2")
    place = model_folder(model_named("smollm2"))
    model, read = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
    inputs = read("The capital of France is", return_tensors="pt")
    [answer] = model.generate(**inputs, max_new_tokens=1, do_sample=False)
    assert read.decode(answer) == "The capital of France is Paris"

"""Read GGUF files, and convert models and tokenizers to Hugging Face's format."""

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, MissingExtra
from headwise.heads.models.model_files import write_json, write_weights


class BinaryReader:
    """Reads the ``content`` of a file with little-endian numbers; ``at`` is the next byte."""

    def __init__(self, path: Path, content: mmap.mmap | bytes) -> None:
        self.path, self.content, self.at = path, content, 0

    def wrong(self, why: str) -> BadFile:
        """Return the error for a file that cannot be read."""
        name = clean(self.path.name)
        return BadFile(
            "model: cannot read {name}: {why}; download it again", name=name, why=clean(why)
        )

    def take(self, size: int) -> bytes:
        """Read the next ``size`` bytes; raise `BadFile` if the file ends earlier."""
        if size > len(self.content) - self.at:
            raise self.wrong("it ends too early")
        self.at += size
        return self.content[self.at - size : self.at]

    def unpack(self, form: str) -> tuple[Any, ...]:
        """Read the next numbers in a format of `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def number(self, form: str) -> Any:
        """Read the next number in a format of `struct`."""
        return self.unpack(form)[0]

    def string(self, length: str) -> str:
        """Read the next text, which follows its length in the format ``length``."""
        return self.take(self.number(length)).decode("utf-8", errors="replace")


NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
"""The `struct` formats of values that are one number."""

STRING, ARRAY = 8, 9

KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}
"""The supported tensor types: name, numbers per block, bytes per block."""

MOST_AXES = 4


@dataclass(frozen=True, eq=False)
class Gguf:
    """The metadata of a GGUF file, and for each tensor a function that reads it in float32."""

    values: dict[str, Any]
    tensors: dict[str, Callable[[], Tensor]]


def read(path: Path) -> Gguf:
    """Read the metadata of a file; each tensor is read when its function is called.

    Raises `BadFile` if the file is not GGUF, ends too early, or has an unsupported type.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    with path.open("rb") as file:
        empty = not path.stat().st_size
        content = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _GgufReader(path, content)
    magic, version, tensors, values = reader.unpack("4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise reader.wrong("it is not a GGUF file of format 2 or 3")
    metadata: dict[str, Any] = {}
    for _ in range(values):
        key = reader.string("Q")
        metadata[key] = reader.value(reader.number("I"))
    entries = [reader.entry() for _ in range(tensors)]
    step = metadata.get("general.alignment", 32)
    if not isinstance(step, int) or not 1 <= step <= 1 << 16:
        raise reader.wrong("general.alignment is not a size")
    start = -(-reader.at // step) * step
    return Gguf(metadata, {entry.name: _tensor_reader(reader, entry, start) for entry in entries})


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def bytes(self) -> int:
        _, block, size = KINDS[self.kind]
        return prod(self.shape) // block * size


class _GgufReader(BinaryReader):
    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string("Q")
        if kind == ARRAY:
            inner, count = self.unpack("IQ")
            if inner == STRING:
                return [self.string("Q") for _ in range(count)]
            if inner in NUMBERS:
                if count > len(self.content):
                    raise self.wrong("it ends too early")
                return list(self.unpack(f"{count}{NUMBERS[inner]}"))
        if kind not in NUMBERS:
            raise self.wrong(f"the value type {kind} is not supported")
        return self.number(NUMBERS[kind])

    def entry(self) -> _Entry:
        name, axes = self.string("Q"), self.number("I")
        if axes > MOST_AXES:
            raise self.wrong(f"{name} has {axes} axes, at most {MOST_AXES} are supported")
        shape = tuple(reversed(self.unpack(f"{axes}Q")))
        kind, offset = self.unpack("IQ")
        if kind not in KINDS:
            raise self.wrong(f"{name} has the tensor type {kind}, which is not supported")
        if shape and shape[-1] % KINDS[kind][1]:
            raise self.wrong(f"the rows of {name} are not whole blocks")
        return _Entry(name, shape, kind, offset)


def _tensor_reader(reader: _GgufReader, entry: _Entry, start: int) -> Callable[[], Tensor]:
    begin, end = start + entry.offset, start + entry.offset + entry.bytes
    if end > len(reader.content):
        raise reader.wrong(f"it ends within {entry.name}")
    return lambda: _tensor(reader.content[begin:end], entry)


def _tensor(content: bytes, entry: _Entry) -> Tensor:
    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    name, block, size = KINDS[entry.kind]
    if block == 1:
        kind = torch.float32 if name == "F32" else torch.float16
        return raw.view(kind).float().reshape(entry.shape)
    blocks = raw.view(-1, size)
    scale = blocks[:, :2].contiguous().view(torch.float16).float()  # (blocks, 1)
    if name == "Q8_0":
        return (scale * blocks[:, 2:].view(torch.int8).float()).reshape(entry.shape)
    least = blocks[:, 2:4].contiguous().view(torch.float16).float()
    pairs = blocks[:, 4:]
    numbers = torch.cat((pairs & 15, pairs >> 4), dim=1).float()  # the low halves are first
    return (scale * numbers + least).reshape(entry.shape)


SYMBOL = r"\[[^\]]+\]|%\d\d|Cl|Br|>>|."
"""The pattern of a symbol: an atom in brackets, a ring number of two digits, chlorine, bromine, a
reaction arrow, or a single character. Source: the SMILES specification (opensmiles.org)."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and its settings for the ``vocab.txt`` in the folder."""
    symbols = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    split = {"pattern": {"Regex": SYMBOL}, "behavior": "Isolated"}
    tokenizer = word_tokenizer(symbols, SPECIAL, "[UNK]", split, bounds=("[CLS]", "[SEP]"))
    write_json(folder / "tokenizer.json", tokenizer)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    special = dict(zip(names, SPECIAL, strict=True))
    write_json(folder / "tokenizer_config.json", settings | special)


def word_tokenizer(
    words: Sequence[str],
    special: Sequence[str],
    unknown: str,
    split: Mapping[str, object],
    *,
    bounds: tuple[str, ...] = (),
    normalizer: dict[str, object] | None = None,
) -> dict[str, object]:
    """Return a tokenizer with one token per word, in the format of `tokenizers`, version 1.0.

    Args:
        words: the vocabulary, in the order of the ids.
        special: the words that are special tokens.
        unknown: the word that replaces unknown words.
        split: the pattern and the behaviour of the pre-tokenizer.
        bounds: the special tokens before and after each text; () for none.
        normalizer: the normaliser in the format of the file, or None.
    """
    ids = {word: number for number, word in enumerate(words)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    around = [{"SpecialToken": {"id": word, "type_id": 0}} for word in bounds]
    start, end = around[:1], around[1:]
    first, second = ({"Sequence": {"id": text, "type_id": 0}} for text in "AB")
    added = [{"id": ids[word], "content": word, "special": True, **flags} for word in special]
    used = {word: {"id": word, "ids": [ids[word]], "tokens": [word]} for word in bounds}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Split", **split, "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*start, first, *end],
            "pair": [*start, first, *end, second, *end],
            "special_tokens": used,
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": unknown},
    }


LAYER = {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
WHOLE = {"token_embd": "embed_tokens", "output_norm": "norm"}
"""The names of weights in GGUF and in transformers, within a layer and outside layers."""

CONTROL = 3  # the type of a token that is not text

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""The files in the folder after `convert`."""


def convert(folder: Path) -> None:
    """Replace the GGUF file by ``config.json``, float32 weights and the tokenizer.

    Raises `BadFile` if the file cannot be read, or is not a Llama with tied embeddings.
    """
    [path] = folder.glob("*.gguf")
    file = read(path)
    kind = str(file.values.get("general.architecture"))[:40]
    if kind != "llama" or "output.weight" in file.tensors:
        raise BadFile(
            "model: {path_name}: expected a Llama with tied embeddings, got {kind!r}; use a model "
            "in Hugging Face's format",
            path_name=path.name,
            kind=kind,
        )
    config = _config(file.values)
    write_json(folder / "config.json", config)
    write_weights(folder, _weights(file, config))
    _write_bpe_tokenizer(file.values, folder)
    path.unlink()


def _config(values: dict[str, Any]) -> dict[str, Any]:
    def setting(key: str) -> Any:
        return values[f"llama.{key}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": setting("vocab_size"),
        "hidden_size": setting("embedding_length"),
        "intermediate_size": setting("feed_forward_length"),
        "num_hidden_layers": setting("block_count"),
        "num_attention_heads": setting("attention.head_count"),
        "num_key_value_heads": setting("attention.head_count_kv"),
        "head_dim": setting("rope.dimension_count"),
        "max_position_embeddings": setting("context_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": setting("rope.freq_base")},
        "rms_norm_eps": round(setting("attention.layer_norm_rms_epsilon"), 9),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def _weights(file: Gguf, config: dict[str, Any]) -> dict[str, Tensor]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {f"model.{new}.weight": file.tensors[f"{old}.weight"]() for old, new in WHOLE.items()}
    for layer in range(config["num_hidden_layers"]):
        for old, new in LAYER.items():
            weight = file.tensors[f"blk.{layer}.{old}.weight"]()
            if old in heads:
                weight = _rotary_halves(weight, heads[old])
            weights[f"model.layers.{layer}.{new}.weight"] = weight
    return weights


def _rotary_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder rotary pairs of each head from neighbours in GGUF to halves in transformers."""
    pairs = weight.view(heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def _write_bpe_tokenizer(values: dict[str, Any], folder: Path) -> None:
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise MissingExtra.of("tokenizers", "inspect") from error
    tokens = values["tokenizer.ggml.tokens"]
    kinds = values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    added = [AddedToken(token, normalized=False, special=True) for token in control]
    tokenizer.add_special_tokens(added)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{name}_token": tokens[values[f"tokenizer.ggml.{gguf_name}_token_id"]]
        for name, gguf_name in names.items()
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": values["llama.context_length"],
        "chat_template": values.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings | special)

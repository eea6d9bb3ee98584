"""Read a GGUF file, and convert a Llama in one to a directory in Hugging Face's format."""

import json
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.document.text_format import clean
from headwise.errors import BadFile, MissingExtra

if TYPE_CHECKING:
    import mmap

    from torch import Tensor


class BinaryReader:
    """Where a file is being read. Numbers are little-endian.

    Attributes:
        path: the file, for messages.
        content: its bytes.
        at: how many were taken.
    """

    def __init__(self, path: Path, content: "mmap.mmap | bytes") -> None:
        self.path, self.content, self.at = path, content, 0

    def wrong(self, why: str) -> BadFile:
        """The error for a file that is not what it should be."""
        name = clean(self.path.name)
        return BadFile("model: cannot read {name}: {why}; get it again", name=name, why=clean(why))

    def take(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            BadFile: if there are not so many.
        """
        if size > len(self.content) - self.at:
            raise self.wrong("it ends too early")
        self.at += size
        return self.content[self.at - size : self.at]

    def unpack(self, form: str) -> tuple[Any, ...]:
        """The next numbers, in the letters of `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))


NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
"""The kinds of a value that is one number, as `struct` writes them."""

STRING, ARRAY = 8, 9

KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}
"""The kinds of tensors: name, numbers in a block, bytes of a block."""

MOST_AXES = 4


@dataclass(frozen=True, eq=False)
class Gguf:
    """A GGUF file.

    Attributes:
        values: what the file says of the model, by its keys.
        tensors: for each name what makes the tensor: outermost axis first, float32.
    """

    values: dict[str, Any]
    tensors: dict[str, Callable[[], "Tensor"]]


def read(path: Path) -> Gguf:
    """The file at ``path``; its tensors are made one at a time, when they are called for.

    Raises:
        BadFile: if it is no such file, ends too early, or holds a kind that is not read here.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if _size(path) else b""
    reader = _GgufReader(path, content)
    magic, version, tensors, values = reader.unpack("4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise reader.wrong("it does not begin like a GGUF file of format 2 or 3")
    known: dict[str, Any] = {}
    for _ in range(values):
        key = reader.string()
        known[key] = reader.value(reader.number("I"))
    entries = [reader.entry() for _ in range(tensors)]
    step = known.get("general.alignment", 32)
    if not isinstance(step, int) or not 1 <= step <= 1 << 16:
        raise reader.wrong("general.alignment is no size")
    start = -(-reader.at // step) * step
    return Gguf(known, {e.name: _maker(reader, e, start) for e in entries})


def _size(path: Path) -> int:
    return path.stat().st_size


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
    """A place in the file that moves on as things are read."""

    def number(self, form: str) -> Any:
        return self.unpack(form)[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.unpack("IQ")
            if inner == STRING:
                return [self.string() for _ in range(count)]
            if inner in NUMBERS:
                if count > len(self.content):
                    raise self.wrong("it ends too early")
                return list(self.unpack(f"{count}{NUMBERS[inner]}"))
        if kind not in NUMBERS:
            raise self.wrong(f"a value of a kind {kind} that is not read here")
        return self.number(NUMBERS[kind])

    def entry(self) -> _Entry:
        name, axes = self.string(), self.number("I")
        if axes > MOST_AXES:
            raise self.wrong(f"{name} has {axes} axes, at most {MOST_AXES} are known")
        shape = tuple(reversed(self.unpack(f"{axes}Q")))
        kind, offset = self.unpack("IQ")
        if kind not in KINDS:
            raise self.wrong(f"{name} is a tensor of a kind {kind} that is not read here")
        if shape and shape[-1] % KINDS[kind][1]:
            raise self.wrong(f"{name} has rows that are no whole blocks")
        return _Entry(name, shape, kind, offset)


def _maker(reader: _GgufReader, entry: _Entry, start: int) -> Callable[[], "Tensor"]:
    begin, end = start + entry.offset, start + entry.offset + entry.bytes
    if end > len(reader.content):
        raise reader.wrong(f"it ends within {entry.name}")
    return lambda: _tensor(reader.content[begin:end], entry)


def _tensor(content: bytes, entry: _Entry) -> "Tensor":
    import torch

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
    numbers = torch.cat((pairs & 15, pairs >> 4), dim=1).float()  # the low halves come first
    return (scale * numbers + least).reshape(entry.shape)


SYMBOL = r"\[[^\]]+\]|%\d\d|Cl|Br|>>|."
"""One symbol: an atom in brackets, a ring number of two digits, chlorine, bromine, the arrow of a
reaction, or a single character. Source: the SMILES specification (opensmiles.org)."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and its settings beside the ``vocab.txt`` in the folder."""
    symbols = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    (folder / "tokenizer.json").write_text(json.dumps(_smiles_tokenizer(numbers)), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _smiles_tokenizer(numbers: dict[str, int]) -> dict[str, object]:
    """The tokenizer in the format of the `tokenizers` library, version 1.0."""
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

    def token(symbol: str) -> dict[str, object]:
        return {"SpecialToken": {"id": symbol, "type_id": 0}}

    def sequence(letter: str) -> dict[str, object]:
        return {"Sequence": {"id": letter, "type_id": 0}}

    single = [token("[CLS]"), sequence("A"), token("[SEP]")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": numbers[symbol], "content": symbol, "special": True, **whole}
            for symbol in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": SYMBOL},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, sequence("B"), token("[SEP]")],
            "special_tokens": {
                symbol: {"id": symbol, "ids": [numbers[symbol]], "tokens": [symbol]}
                for symbol in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": numbers, "unk_token": "[UNK]"},
    }


LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "embed_tokens", "output_norm": "norm"}
"""Names of weights in GGUF and in transformers, within a layer and outside the layers."""

CONTROL = 3
"""The kind of a token that is no text."""

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""What `convert` leaves in the folder."""


def convert(folder: Path) -> None:
    """Put ``config.json``, weights in float32 and the tokenizer in place of the GGUF file.

    Raises:
        BadFile: if the file cannot be read, or is not a Llama with tied embeddings.
        MissingExtra: if safetensors or tokenizers is not installed.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    [path] = folder.glob("*.gguf")
    file = read(path)
    kind = str(file.values.get("general.architecture"))[:40]
    if kind != "llama" or "output.weight" in file.tensors:
        raise BadFile(
            "model: {path_name}: expected a Llama whose embeddings are its output "
            "weights too, got {kind!r}; give the model in Hugging Face's format",
            path_name=path.name,
            kind=kind,
        )
    config = _config(file.values)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _tokenizer(file.values, folder)
    save_file(_weights(file, config), folder / "model.safetensors", metadata={"format": "pt"})
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


def _weights(file: Gguf, config: dict[str, Any]) -> "dict[str, Tensor]":
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {f"model.{new}.weight": file.tensors[f"{old}.weight"]() for old, new in WHOLE.items()}
    for layer in range(config["num_hidden_layers"]):
        for old, new in LAYER.items():
            weight = file.tensors[f"blk.{layer}.{old}.weight"]()
            if old in heads:
                weight = _halves(weight, heads[old])
            weights[f"model.layers.{layer}.{new}.weight"] = weight
    return weights


def _halves(weight: "Tensor", heads: int) -> "Tensor":
    """Rows of each head in the order in which transformers rotates: first halves, then second.

    GGUF keeps the two numbers that are rotated together side by side.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def _tokenizer(values: dict[str, Any], folder: Path) -> None:
    """SmolLM2's tokenizer: each digit apart, then GPT-2's pieces of bytes."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise MissingExtra.of("tokenizers", "inspect") from error
    tokens = values["tokenizer.ggml.tokens"]
    kinds = values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in values["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in control]
    )
    made.save(str(folder / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": values["llama.context_length"],
        "chat_template": values.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    } | {
        f"{ours}_token": tokens[values[f"tokenizer.ggml.{its}_token_id"]]
        for ours, its in names.items()
    }
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

"""ANARCII, which numbers the residues of an antibody: the model and the conversion of its files."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.errors import BadFile, MissingExtra
from headwise.heads.models.gguf import word_tokenizer
from headwise.heads.models.model_files import write_json, write_weights

NAME = "antibody_4_2_128_512"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "numbers.json")
"""The files in the folder after `convert`."""

SPECIAL = ("<PAD>", "<SOS>", "<EOS>", "<SKIP>")
RESIDUES = (*SPECIAL, *"ACDEFGHIKLMNPQRSTVWXY")
"""The vocabulary of the encoder, in the order of its embedding; X is an unknown residue."""

NUMBERS = (*SPECIAL, *(str(n) for n in range(1, 129)), "X", "H", "L", "K")
"""The vocabulary of the decoder: IMGT numbers, X for an insertion, and the type of chain."""


def convert(folder: Path) -> None:
    """Replace the pickle, from which only tensors are read, by safetensors and tokenizers."""
    pickled = folder / f"{NAME}.pt"
    weights = torch.load(pickled, map_location="cpu", weights_only=True)
    tensors = weights.values() if isinstance(weights, dict) else [None]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise BadFile(
            "model: {pickled_name}: expected a dictionary of tensors; download it again",
            pickled_name=pickled.name,
        )
    write_weights(folder, {name: tensor.contiguous() for name, tensor in weights.items()})
    (folder / f"{NAME}.json").replace(folder / "config.json")
    residues = word_tokenizer(
        RESIDUES,
        SPECIAL,
        "X",
        {"pattern": {"Regex": "."}, "behavior": "Isolated"},
        bounds=("<SOS>", "<EOS>"),
        normalizer={"type": "Replace", "pattern": {"Regex": r"\s"}, "content": ""},
    )
    write_json(folder / "tokenizer.json", residues)
    at_spaces = {"pattern": {"String": " "}, "behavior": "Removed"}
    write_json(folder / "numbers.json", word_tokenizer(NUMBERS, SPECIAL, "X", at_spaces))
    pickled.unlink()


LONGEST = 210  # the number of learned positions
PAD, START = 0, 1


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model."""

    residues: int
    numbers: int
    width: int
    layers: int
    heads: int

    @classmethod
    def of(cls, config: dict[str, int]) -> "Sizes":
        """Return the sizes in ``config.json``."""
        names = ("INPUT_DIM", "OUTPUT_DIM", "HID_DIM", "LAYERS", "HEADS")
        return cls(*(int(config[name]) for name in names))


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.multihead_attn = nn.MultiheadAttention(sizes.width, sizes.heads, batch_first=True)

    def forward(self, x: Tensor, read: Tensor, padded: Tensor, blocked: Tensor | None) -> Tensor:
        output: Tensor = self.multihead_attn(
            x, read, read, key_padding_mask=padded, attn_mask=blocked, need_weights=False
        )[0]
        return output


class _FeedForward(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.fc_1 = nn.Linear(sizes.width, 4 * sizes.width)
        self.fc_2 = nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.fc_2(F.relu(self.fc_1(x)))
        return output


class _EncoderLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attention = _Attention(sizes)
        self.positionwise_feedforward = _FeedForward(sizes)
        self.self_attn_layer_norm = nn.LayerNorm(sizes.width)
        self.ff_layer_norm = nn.LayerNorm(sizes.width)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attention(x, x, padded, None))
        output: Tensor = self.ff_layer_norm(x + self.positionwise_feedforward(x))
        return output


class _DecoderLayer(_EncoderLayer):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.encoder_attention = _Attention(sizes)
        self.enc_attn_layer_norm = nn.LayerNorm(sizes.width)

    def forward(  # type: ignore[override]
        self, x: Tensor, read: Tensor, padded: tuple[Tensor, Tensor], blocked: Tensor
    ) -> Tensor:
        own, other = padded
        x = self.self_attn_layer_norm(x + self.self_attention(x, x, own, blocked))
        x = self.enc_attn_layer_norm(x + self.encoder_attention(x, read, other, None))
        output: Tensor = self.ff_layer_norm(x + self.positionwise_feedforward(x))
        return output


class _Stack(nn.Module):
    def __init__(self, tokens: int, sizes: Sizes, layer: type[_EncoderLayer]) -> None:
        super().__init__()
        self.tok_embedding = nn.Embedding(tokens, sizes.width)
        self.pos_embedding = nn.Embedding(LONGEST, sizes.width)
        self.layers = nn.ModuleList(layer(sizes) for _ in range(sizes.layers))

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tok_embedding(ids) * float(self.tok_embedding.embedding_dim) ** 0.5
        x += self.pos_embedding(torch.arange(ids.shape[1], device=ids.device))
        return x


class Anarcii(nn.Module):
    """The model, which predicts the number of each residue in the IMGT scheme."""

    def __init__(self, sizes: Sizes, config: Any) -> None:
        super().__init__()
        self.encoder = _Stack(sizes.residues, sizes, _EncoderLayer)
        self.decoder = _Stack(sizes.numbers, sizes, _DecoderLayer)
        self.decoder.fc_out = nn.Linear(sizes.width, sizes.numbers)
        self.config = config

    def forward(
        self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> SimpleNamespace:
        """Return the next-token logits of the decoder, (B, Lq, numbers).

        ``input_ids`` (B, Lk) are <SOS>, residues, <EOS>; ``decoder_input_ids`` (B, Lq) are <SOS>,
        the type of chain, numbers. ``attention_mask`` is 0 on padding; None masks <PAD>.
        """
        padded = input_ids == PAD if attention_mask is None else attention_mask == 0
        read = self._encode(input_ids, padded)
        return SimpleNamespace(logits=self._decode(decoder_input_ids, read, padded))

    @torch.no_grad()
    def decoded(self, input_ids: Tensor) -> Tensor:
        """Return the decoder inputs (B, Lk) of greedy decoding for these residues."""
        padded = input_ids == PAD
        read, written = self._encode(input_ids, padded), input_ids[:, :1]
        while written.shape[1] < input_ids.shape[1]:
            best = self._decode(written, read, padded)[:, -1:].argmax(-1)
            written = torch.cat((written, best), 1)
        return written

    def _encode(self, ids: Tensor, padded: Tensor) -> Tensor:
        x = self.encoder.embed(ids)
        for layer in self.encoder.layers:
            x = layer(x, padded)
        return x

    def _decode(self, ids: Tensor, read: Tensor, padded: Tensor) -> Tensor:
        x, length = self.decoder.embed(ids), ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.decoder.layers:
            x = layer(x, read, (ids == PAD, padded), later)
        logits: Tensor = self.decoder.fc_out(x)  # type: ignore[operator]
        return logits


def open_folder(folder: Path) -> tuple[nn.Module, Any, Any]:
    """Load the model and the tokenizers of residues and of numbers; needs transformers."""
    try:
        from safetensors.torch import load_file
        from transformers import PreTrainedConfig, PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    sizes = Sizes.of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    config: Any = PreTrainedConfig(is_encoder_decoder=True)
    config.pad_token_id, config.decoder_start_token_id = PAD, START
    config.model_type, config.max_position_embeddings = "anarcii", LONGEST
    model = Anarcii(sizes, config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    pad, start, end, skip = SPECIAL
    named = {"pad_token": pad, "bos_token": start, "eos_token": end, "unk_token": "X"}

    def tokenizer(name: str) -> Any:
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(folder / f"{name}.json"),
            model_max_length=LONGEST,
            additional_special_tokens=[skip],
            **named,
        )

    return model.eval(), tokenizer("tokenizer"), tokenizer("numbers")

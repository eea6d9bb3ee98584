"""Models of every supported family, with inputs and an oracle without one head."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import headwise as hw
from headwise.heads.ablation import sites
from headwise.heads.names import Head
from headwise.nn.projections import is_transposed
from tests.heads import tiny

LENGTH, REAL = 13, 11


def text(seed: int = 0) -> dict[str, Tensor]:
    """Two samples of 13 tokens, the second padded after 11."""
    torch.manual_seed(seed)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, REAL:] = 0
    return {"input_ids": torch.randint(3, 31, (2, LENGTH)), "attention_mask": mask}


def two_texts() -> dict[str, Tensor]:
    """An encoder's text of 13 tokens and a decoder's of 7, both with padding."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    ids = text(1)["input_ids"][:, :7]
    return {**text(), "decoder_input_ids": ids, "decoder_attention_mask": mask}


def distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=31, dim=21, n_layers=2, n_heads=3, hidden_dim=13, max_position_embeddings=37
    )
    return made(DistilBertModel(config))


def gpt_neox() -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXModel

    config = GPTNeoXConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=13, max_position_embeddings=37,
    )  # fmt: skip
    return made(GPTNeoXModel(config))


def modernbert() -> nn.Module:
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=13, max_position_embeddings=37, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=6,
    )  # fmt: skip
    return made(ModernBertModel(config))


def qwen3() -> nn.Module:
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, intermediate_size=13, max_position_embeddings=37,
    )  # fmt: skip
    return made(Qwen3Model(config))


def torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(24, 4, 13, batch_first=True)
    return made(nn.TransformerEncoder(layer, 2))


def torch_transformer() -> nn.Module:
    return made(nn.Transformer(20, 4, 2, 2, 13, batch_first=True))


def ours() -> nn.Module:
    layers = [
        hw.MultiheadAttention(
            20, 6, num_kv_heads=3, head_dim=7, batch_first=True, mask=hw.causal(),
            position=hw.Rotary(7, pairs="halves", rotary_dim=6),
        )
        for _ in range(2)
    ]  # fmt: skip
    return made(Stack(layers))


class Stack(nn.Module):
    """Attentions one after the other, each added to what it was given."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x)[0]
        return x


def made(model: nn.Module) -> nn.Module:
    """Larger weights than a fresh model's, so that heads differ from each other."""
    return tiny._made(model)


@dataclass(frozen=True)
class Family:
    """A model, a batch for it, and two heads of it.

    Attributes:
        make: makes the model, always the same.
        batch: makes what it reads, in a dtype where that has one.
        heads: two heads of different layers.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[torch.dtype], Any]
    heads: str

    @property
    def name(self) -> str:
        return self.make.__name__


def of_text(dtype: torch.dtype) -> Any:
    return text()


def of_two(dtype: torch.dtype) -> Any:
    return two_texts()


def of_numbers(width: int, several: int = 1) -> Callable[[torch.dtype], Any]:
    def batch(dtype: torch.dtype) -> Any:
        torch.manual_seed(3)
        each = [torch.randn(2, LENGTH - n, width, dtype=torch.float64) for n in range(several)]
        return tuple(x.to(dtype) for x in each)

    return batch


FAMILIES = (
    Family(tiny.bert, of_text, "L0H1,L1H2"),
    Family(distilbert, of_text, "L0H1,L1H2"),
    Family(modernbert, of_text, "L0H1,L1H2"),
    Family(tiny.gpt2, of_text, "L0H1,L1H2"),
    Family(gpt_neox, of_text, "L0H1,L1H2"),
    Family(tiny.llama, of_text, "L0H1,L1H5"),
    Family(tiny.mistral, of_text, "L0H1,L1H5"),
    Family(tiny.gemma2, of_text, "L0H1,L1H5"),
    Family(qwen3, of_text, "L0H1,L1H5"),
    Family(tiny.gpt_oss, of_text, "L0H1,L1H5"),
    Family(tiny.bart, of_two, "encoder.L0H1,decoder.L2H2,cross.L1H0"),
    Family(tiny.t5, of_two, "encoder.L0H1,decoder.L2H2,cross.L1H0"),
    Family(torch_encoder, of_numbers(24), "L0H1,L1H3"),
    Family(torch_transformer, of_numbers(20, 2), "encoder.L0H1,decoder.L1H3,cross.L1H0"),
    Family(ours, of_numbers(20), "L0H1,L1H5"),
)
"""One of each family; ALBERT, whose layers share one attention, has tests of its own."""


def answer(model: nn.Module, batch: Any) -> Tensor:
    """The model's last hidden state."""
    with torch.no_grad():
        out = model(**batch) if isinstance(batch, dict) else model(*batch)
    return getattr(out, "last_hidden_state", out)


def silenced(model: nn.Module, heads: tuple[Head, ...]) -> nn.Module:
    """A copy in which the output projection gives these heads the weight 0: the oracle."""
    twin = copy.deepcopy(model)
    for site in sites(twin):
        for layer in site.layers:
            for head in heads:
                if head.layer == layer:
                    silence(site.out, head.number, site.size)
    return twin


def silence(out: nn.Module, number: int, size: int) -> None:
    rows = slice(number * size, (number + 1) * size)
    with torch.no_grad():
        if is_transposed(out):
            out.weight[rows] = 0
        else:
            out.weight[:, rows] = 0

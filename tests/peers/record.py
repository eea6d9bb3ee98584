"""Run attention modules of other projects on small random inputs, and store the results.

    python -m tests.peers.record

writes ``tests/data/peers/*.safetensors``: the inputs and parameters, the float32 outputs, and the
outputs and gradients of the same module in float64. The versions are in the metadata of each file.
headwise is not used. If a module converts its softmax to float32, the float64 run uses float64.
"""

import copy
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

FOLDER = Path(__file__).parents[1] / "data" / "peers"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
B, L = 2, 13

Run = Callable[[Any, Tensor], Tensor]


def run(module: nn.Module, x: Tensor, call: Run) -> dict[str, Tensor]:
    """x, parameters and the seed of the gradients; output and gradients in both precisions."""
    found = {"x": x} | {f"param.{n}": p.detach().clone() for n, p in module.named_parameters()}
    for tag, dtype in DTYPES.items():
        own, given = copy.deepcopy(module).to(dtype), x.to(dtype).requires_grad_()
        with mock.patch.object(functional, "softmax", softmax):
            output = call(own, given)
        seed = found.setdefault("seed", torch.randn(output.shape))
        leaves = {"x": given} | dict(own.named_parameters())
        gradients = torch.autograd.grad(
            output, list(leaves.values()), seed.to(dtype), allow_unused=True
        )
        found[f"output.{tag}"] = output.detach()
        for name, gradient in zip(leaves, gradients, strict=True):
            known = torch.zeros_like(leaves[name]) if gradient is None else gradient
            found[f"grad.{name}.{tag}"] = known
    return found


def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax in the wider of its input's and the wanted precision."""
    return x.to(torch.promote_types(x.dtype, dtype or x.dtype)).softmax(dim)


def causal(length: int, dtype: torch.dtype, padded: Tensor | None = None) -> Tensor:
    """What is added to scores: (B or 1, 1, L, L), the lowest number where a key is hidden."""
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
    if padded is not None:
        hidden = hidden | padded[:, None, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


# --- Longformer ----------------------------------------------------------------------------------


def longformer() -> dict[str, Tensor]:
    """A window of 7 to each side, global tokens, at length 23, padded to 28 as its model pads."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    length, padded = 23, 28
    config = LongformerConfig(
        attention_window=[14],
        hidden_size=15,
        num_attention_heads=3,
        attention_probs_dropout_prob=0.0,
    )
    chosen = torch.zeros(B, length, dtype=torch.bool)
    chosen[0, [0, 11]], chosen[1, 3] = True, True
    real = torch.arange(length) < torch.tensor([[23], [17]])
    states = torch.full((B, padded), -10000.0)
    states[:, :length] = chosen * 10000.0 - ~real * 10000.0

    def call(module: Any, x: Tensor) -> Tensor:
        output: Tensor = module(
            functional.pad(x, (0, 0, 0, padded - length)),
            attention_mask=states.to(x.dtype),
            is_index_masked=states < 0,
            is_index_global_attn=states > 0,
            is_global_attn=True,
        )[0]
        return output[:, :length] * real[..., None]

    found = run(LongformerSelfAttention(config, 0), torch.randn(B, length, 15), call)
    return found | {"chosen": chosen, "real": real}


# --- Reformer ------------------------------------------------------------------------------------


def reformer(rounds: int, causal: bool, lengths: list[int] | None) -> dict[str, Tensor]:
    """Its LSH attention in chunks of 4 that look one back, and the buckets that it hashed into."""
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    heads, dim, length = 3, 5, 28
    config = ReformerConfig(
        hidden_size=heads * dim,
        num_attention_heads=heads,
        attention_head_size=dim,
        lsh_attn_chunk_length=4,
        num_hashes=rounds,
        num_buckets=6,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=causal,
        attn_layers=["lsh"],
        axial_pos_embds=False,
    )
    module, x = LSHSelfAttention(config).eval(), torch.randn(B, length, heads * dim)
    real = torch.arange(length) < torch.tensor(lengths or [length] * B)[:, None]
    mask = None if lengths is None else real
    with torch.no_grad():
        buckets = module(x, attention_mask=mask).buckets

    def call(module: Any, x: Tensor) -> Tensor:
        output: Tensor = module(x, attention_mask=mask, buckets=buckets).hidden_states
        return output * real[..., None]

    return run(module, x, call) | {"buckets": buckets, "real": real}


# --- T5 ------------------------------------------------------------------------------------------


def t5_buckets() -> dict[str, Tensor]:
    """Buckets of every distance from -300 to 300."""
    from transformers.models.t5.modeling_t5 import T5Attention

    places = torch.arange(-300, 301)
    return {
        f"{'both' if both else 'one'}.{buckets}.{far}": T5Attention._relative_position_bucket(
            places, bidirectional=both, num_buckets=buckets, max_distance=far
        )
        for both in (True, False)
        for buckets, far in ((32, 128), (8, 20), (16, 300))
    }


def t5(decoder: bool) -> dict[str, Tensor]:
    """Its attention with a bias, and that bias for 3 queries after 8 tokens."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=7,
        d_kv=5,
        num_heads=3,
        dropout_rate=0.0,
        is_decoder=decoder,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=11,
        attn_implementation="eager",
    )
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)

    def call(module: Any, x: Tensor) -> Tensor:
        output: Tensor = module(x, mask=causal(L, x.dtype) if decoder else None)[0]
        return output

    found = run(module, torch.randn(B, L, 7), call)
    return found | {"later": module.compute_bias(3, 11, past_seen_tokens=8).detach()}


# --- BLOOM ---------------------------------------------------------------------------------------


def bloom_slopes() -> dict[str, Tensor]:
    """What it adds to the scores of key 1, for many numbers of heads: the slopes."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    known = torch.ones(1, 3)
    return {str(n): build_alibi_tensor(known, n, torch.float32)[:, 0, 1] for n in (1, 8, 12, 71)}


def bloom() -> dict[str, Tensor]:
    """Its attention, causal, the second sample padded on the left."""
    from transformers import BloomConfig
    from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

    config = BloomConfig(hidden_size=15, n_head=3, attention_dropout=0.0, hidden_dropout=0.0)
    real = torch.arange(L) >= torch.tensor([[0], [4]])

    def call(module: Any, x: Tensor) -> Tensor:
        output: Tensor = module(
            x,
            residual=torch.zeros_like(x),
            alibi=build_alibi_tensor(real.long(), 3, x.dtype),
            attention_mask=causal(L, x.dtype, ~real),
        )[0]
        return output * real[..., None]

    return run(BloomAttention(config, 0), torch.randn(B, L, 15), call) | {"real": real}


# --- Llama and GPT-J -----------------------------------------------------------------------------


def places() -> Tensor:
    """Positions (B, L): a row that begins far in, and one after left padding."""
    return torch.stack((torch.arange(L) + 1857, (torch.arange(L) - 4).clamp(min=0)))


def angles(places: Tensor, dim: int) -> Tensor:
    """Position times frequency in float64, which neither project computes."""
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return places.double()[..., None] * frequencies


def llama() -> dict[str, Tensor]:
    """Its attention, six heads on three of keys, with positions of its own for each sample."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=12,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=10,
        attn_implementation="eager",
    )
    rotary = LlamaRotaryEmbedding(config)

    def call(module: Any, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            twice = angles(places(), 10).repeat(1, 1, 2)
            turns = twice.cos(), twice.sin()
        else:
            turns = rotary(x, places())
        output: Tensor = module(x, turns, causal(L, x.dtype))[0]
        return output

    return run(LlamaAttention(config, 0), torch.randn(B, L, 12), call) | {"places": places()}


def gptj() -> dict[str, Tensor]:
    """Its attention, of which six numbers of each head's ten are turned."""
    from transformers import GPTJConfig
    from transformers.models.gptj.modeling_gptj import GPTJAttention, create_sinusoidal_positions

    config = GPTJConfig(
        n_embd=30,
        n_head=3,
        rotary_dim=6,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        attn_implementation="eager",
    )

    def call(module: Any, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            turns = angles(places(), 6).sin(), angles(places(), 6).cos()
        else:
            turns = create_sinusoidal_positions(2048, 6)[places()].chunk(2, -1)
        output: Tensor = module(x, turns, causal(L, x.dtype))[0]
        return output

    return run(GPTJAttention(config, 0), torch.randn(B, L, 30), call) | {"places": places()}


# --- PyTorch -------------------------------------------------------------------------------------


def torch_module() -> dict[str, Tensor]:
    """`torch.nn.MultiheadAttention` under a mask for each head and padding, no row blind."""
    blocked = torch.rand(B * 3, L, L) > 0.6
    blocked[:, :, 0] = False
    padded = torch.arange(L) >= torch.tensor([[13], [9]])

    def call(module: Any, x: Tensor) -> Tensor:
        output: Tensor = module(x, x, x, attn_mask=blocked, key_padding_mask=padded)[0]
        return output

    module = nn.MultiheadAttention(15, 3, batch_first=True)
    return run(module, torch.randn(B, L, 15), call) | {"blocked": blocked, "padded": padded}


def torch_fused() -> dict[str, Tensor]:
    """`F.scaled_dot_product_attention`, grouped heads under a mask added to the scores."""
    added = torch.randn(B, 1, 5, L).masked_fill(torch.rand(B, 1, 5, L) > 0.7, -torch.inf)
    added[..., 0] = 0.0

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k = nn.Parameter(torch.randn(B, 3, L, 7))
            self.v = nn.Parameter(torch.randn(B, 3, L, 11))

    def call(module: Any, q: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            q, module.k, module.v, attn_mask=added.to(q.dtype), enable_gqa=True
        )

    return run(Fused(), torch.randn(B, 6, 5, 7), call) | {"added": added}


RECORDED: dict[str, Callable[[], dict[str, Tensor]]] = {
    "longformer": longformer,
    "reformer_1": lambda: reformer(1, False, None),
    "reformer_1_causal": lambda: reformer(1, True, None),
    "reformer_3_padded": lambda: reformer(3, False, [28, 19]),
    "reformer_3_causal_padded": lambda: reformer(3, True, [28, 19]),
    "t5_buckets": t5_buckets,
    "t5_encoder": lambda: t5(False),
    "t5_decoder": lambda: t5(True),
    "bloom_slopes": bloom_slopes,
    "bloom": bloom,
    "llama": llama,
    "gptj": gptj,
    "torch_module": torch_module,
    "torch_fused": torch_fused,
}
"""What is stored, by the name of its file."""


def record(name: str) -> dict[str, Tensor]:
    """Run one of them, from the same random numbers every time."""
    torch.manual_seed(list(RECORDED).index(name))
    return {key: value.detach().contiguous() for key, value in RECORDED[name]().items()}


def main() -> None:
    """Write every file anew."""
    from safetensors.torch import save_file

    versions = {package: version(package) for package in ("torch", "transformers")}
    for name in RECORDED:
        save_file(record(name), FOLDER / f"{name}.safetensors", metadata=versions)


if __name__ == "__main__":
    main()

"""Weights loaded from another module give the output of this module: the heads are in order."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn.weight_layouts import LAYOUTS, NAMES, load_layout
from headwise.verify.oracle.tolerance import accept

B, L, E, H, G, D = 2, 7, 24, 6, 3, 4

Forward = Callable[[nn.Module, Tensor], Tensor]


def still(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines that turn nothing."""
    shape = (x.shape[0], x.shape[1], D)
    return torch.ones(shape, dtype=x.dtype), torch.zeros(shape, dtype=x.dtype)


def causal(x: Tensor) -> Tensor:
    """(1, 1, L, L) to be added to scores."""
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    zeros = torch.zeros(1, 1, L, L, dtype=x.dtype)
    return zeros.masked_fill(later, torch.finfo(x.dtype).min)


def gpt2() -> tuple[nn.Module, Forward]:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, GPT2Config

    config = GPT2Config(n_embd=E, n_head=H, attn_pdrop=0.0, attn_implementation="eager")
    return GPT2Attention(config, layer_idx=0), lambda m, x: m(x, attention_mask=causal(x))[0]


def llama() -> tuple[nn.Module, Forward]:
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaConfig

    config = LlamaConfig(
        hidden_size=E, num_attention_heads=H, num_key_value_heads=G, head_dim=D,
        attn_implementation="eager",
    )  # fmt: skip
    return LlamaAttention(config, 0), lambda m, x: m(x, still(x), causal(x))[0]


def whisper() -> tuple[nn.Module, Forward]:
    """Its k_proj has no bias, the others have."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperAttention

    config = WhisperConfig(attn_implementation="eager")
    module = WhisperAttention(E, H, config=config)
    return module, lambda m, x: m(x, attention_mask=causal(x))[0]


def gpt_neox() -> tuple[nn.Module, Forward]:
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXConfig

    config = GPTNeoXConfig(
        hidden_size=E, num_attention_heads=H, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    module = GPTNeoXAttention(config, 0)
    return module, lambda m, x: m(x, causal(x), position_embeddings=still(x))[0]


def bloom() -> tuple[nn.Module, Forward]:
    from transformers.models.bloom.modeling_bloom import BloomAttention, BloomConfig

    config = BloomConfig(hidden_size=E, n_head=H, attention_dropout=0.0, hidden_dropout=0.0)

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        alibi = torch.zeros(B * H, 1, L, dtype=x.dtype)
        return module(x, torch.zeros_like(x), alibi, causal(x))[0]

    return BloomAttention(config, 0), forward


def falcon() -> tuple[nn.Module, Forward]:
    from transformers.models.falcon.modeling_falcon import FalconAttention, FalconConfig

    config = FalconConfig(
        hidden_size=E, num_attention_heads=H, num_kv_heads=G, new_decoder_architecture=True,
        attention_dropout=0.0, alibi=False, attn_implementation="eager",
    )  # fmt: skip

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        return module(x, None, causal(x), position_embeddings=still(x))[0]

    return FalconAttention(config, 0), forward


def phi3() -> tuple[nn.Module, Forward]:
    from transformers.models.phi3.modeling_phi3 import Phi3Attention, Phi3Config

    config = Phi3Config(
        hidden_size=E, num_attention_heads=H, num_key_value_heads=G, pad_token_id=0,
        attn_implementation="eager",
    )  # fmt: skip
    return Phi3Attention(config, 0), lambda m, x: m(x, still(x), causal(x))[0]


MODULES = (
    (gpt2, "blocks transposed", {}),
    (llama, "separate", {"num_kv_heads": G, "bias": False}),
    (whisper, "separate", {}),
    (gpt_neox, "groups", {}),
    (bloom, "groups", {}),
    (falcon, "groups", {"num_kv_heads": G, "bias": False}),
    (phi3, "blocks", {"num_kv_heads": G, "bias": False}),
)


@pytest.mark.parametrize(("make", "layout", "options"), MODULES)
def test_modules_of_transformers(
    make: Callable[[], tuple[nn.Module, Forward]], layout: str, options: dict[str, Any]
) -> None:
    theirs, forward = make()
    theirs.eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(0.0, 0.4)
    ours = hw.MultiheadAttention(E, H, batch_first=True, mask=hw.causal(), **options)
    load_layout(ours, theirs.state_dict(), layout)
    x = torch.randn(B, L, E)
    with torch.no_grad():
        exact = forward(copy.deepcopy(theirs).double(), x.double())
        accept(ours(x, x, x, need_weights=False)[0], forward(theirs, x), exact)


def looped(state: Mapping[str, Tensor], rows: Mapping[str, list[Tensor]], x: Tensor) -> Tensor:
    """Attention a head at a time from the rows of each head, and the output projection."""
    heads = []
    for q, k, v in zip(rows["q"], rows["k"], rows["v"], strict=True):
        scores = (x @ q.T) @ (x @ k.T).mT / D**0.5
        heads.append(scores.softmax(-1) @ (x @ v.T))
    return torch.cat(heads, -1) @ state["out"].T


def wide(rows: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {name: [each.double() for each in heads] for name, heads in rows.items()}


def check(
    given: dict[str, Tensor], layout: str, rows: dict[str, list[Tensor]], out: Tensor, groups: int
) -> None:
    ours = hw.MultiheadAttention(E, H, bias=False, batch_first=True, num_kv_heads=groups)
    load_layout(ours, given, layout)
    x = torch.randn(B, L, E)
    plain = looped({"out": out}, rows, x)
    exact = looped({"out": out.double()}, wide(rows), x.double())
    accept(ours(x, x, x)[0], plain, exact)


@pytest.mark.parametrize("names", [("wq", "wk", "wv", "wo"), ("query", "key", "value", "dense")])
def test_three_matrices_under_other_names(names: tuple[str, ...]) -> None:
    q, k, v = (torch.randn(size * D, E) for size in (H, G, G))
    out = torch.randn(E, H * D)
    given = {f"{name}.weight": each for name, each in zip(names, (q, k, v, out), strict=True)}
    rows = {
        "q": list(q.split(D)),
        "k": [each for each in k.split(D) for _ in range(H // G)],
        "v": [each for each in v.split(D) for _ in range(H // G)],
    }
    check(given, "separate", rows, out, G)


def test_keys_and_values_in_one_matrix() -> None:
    q, both, out = torch.randn(H * D, E), torch.randn(2 * H * D, E), torch.randn(E, H * D)
    given = {"to_q.weight": q, "to_kv.weight": both, "to_out.0.weight": out}
    heads = list(both.split(D))
    check(given, "separate", {"q": list(q.split(D)), "k": heads[:H], "v": heads[H:]}, out, H)


def test_one_matrix_as_timm_has_it() -> None:
    """timm: ``qkv(x).reshape(B, N, 3, H, D)``."""
    fused, out = torch.randn(3 * H * D, E), torch.randn(E, H * D)
    cut = fused.view(3, H, D, E)
    rows = {name: list(cut[number]) for number, name in enumerate("qkv")}
    check({"qkv.weight": fused, "proj.weight": out}, "blocks", rows, out, H)


def test_one_matrix_with_one_key_head() -> None:
    """Falcon 7B and multi-query: all query heads, then the one k, then the one v."""
    fused, out = torch.randn((H + 2) * D, E), torch.randn(E, H * D)
    heads = list(fused.split(D))
    rows = {"q": heads[:H], "k": [heads[H]] * H, "v": [heads[H + 1]] * H}
    for layout in ("groups", "blocks"):
        check({"query_key_value.weight": fused, "dense.weight": out}, layout, rows, out, 1)


def test_two_layouts_of_one_shape_differ() -> None:
    given = {"qkv.weight": torch.randn(3 * E, E), "proj.weight": torch.randn(E, E)}
    ours, other = (hw.MultiheadAttention(E, H, bias=False) for _ in range(2))
    load_layout(ours, given, "blocks")
    load_layout(other, given, "groups")
    assert not torch.equal(ours.q_proj.weight, other.q_proj.weight)
    assert torch.equal(other.k_proj.weight[:D], given["qkv.weight"][D : 2 * D])


def test_a_missing_bias_is_zero_and_types_stay() -> None:
    ours = hw.MultiheadAttention(E, H, dtype=torch.float64)
    nn.init.ones_(ours.k_proj.bias)
    given = {"qkv.weight": torch.randn(3 * E, E), "proj.weight": torch.randn(E, E)}
    load_layout(ours, given, "blocks")
    assert torch.equal(ours.k_proj.bias, torch.zeros(E, dtype=torch.float64))
    assert torch.equal(ours.out_proj.weight, given["proj.weight"].double())


def fused(rows: int = 3 * E, columns: int = E, **more: Tensor) -> dict[str, Tensor]:
    return {"qkv.weight": torch.ones(rows, columns), "proj.weight": torch.ones(E, E), **more}


@pytest.mark.parametrize(
    ("given", "layout", "message"),
    [
        (fused(), "guess", "layout: unknown 'guess'; expected one of 'separate', 'blocks'"),
        (fused(3 * E + 1), "blocks", "72 rows in qkv.weight for the heads of the module, got 73"),
        (fused(E, 3 * E), "blocks", "expected 72 rows in qkv.weight .* got 24"),
        (fused(3 * E, E + 1), "groups", r"q_proj.weight of shape \(24, 24\), got \(24, 25\)"),
        (fused(), "separate", "layout 'separate' needs q_proj, k_proj.* once, got proj, qkv"),
        (
            fused() | {"query_key_value.weight": torch.ones(3 * E, E)},
            "blocks",
            "needs qkv, out_proj, each exactly once, got proj, qkv, query_key_value",
        ),
        ({"proj.weight": torch.ones(E, E)}, "blocks", "qkv, out_proj, each exactly once, got proj"),
        ({}, "blocks", "each exactly once, got nothing"),
        (fused() | {"q_norm.weight": torch.ones(D)}, "blocks", "q_norm.weight is not a known"),
        (fused() | {"qkv.bias": torch.ones(3 * E)}, "blocks", "contains k_proj.bias.* bias=True"),
        (
            {"to_q.weight": torch.ones(E, E), "kv.weight": torch.ones(E, E),
             "to_out.weight": torch.ones(E, E)},
            "separate",
            "expected 48 rows in kv.weight .* got 24",
        ),
        (
            {"qkv.bias": torch.ones(3 * E), "proj.weight": torch.ones(E, E)},
            "blocks",
            r"q_proj.weight of shape \(24, 24\), got None",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_loads_nothing(
    given: dict[str, Tensor], layout: str, message: str
) -> None:
    ours = hw.MultiheadAttention(E, H, bias="bias=True" not in message)
    before = copy.deepcopy(ours.state_dict())
    with pytest.raises(BadValue, match=message):
        load_layout(ours, given, layout)
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_only_into_ours() -> None:
    with pytest.raises(BadType, match=r"expected a headwise.MultiheadAttention, got Linear"):
        load_layout(nn.Linear(3, 3), {}, "blocks")  # type: ignore[arg-type]


def test_no_name_means_two_parts() -> None:
    every = [name for names in NAMES.values() for name in names]
    assert len(every) == len(set(every))
    assert {role for each in LAYOUTS for names in each.projections for role in names} == set(NAMES)

"""The initialisation of the projections."""

import math

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn import INITS
from headwise.nn.init import t_fixup
from headwise.verify.oracle.tolerance import accept

NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def made(init: object, **options: object) -> hw.MultiheadAttention:
    torch.manual_seed(11)
    return hw.MultiheadAttention(**({"embed_dim": 12, "num_heads": 3} | options), init=init)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 11}])
@pytest.mark.parametrize("add_bias_kv", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_torch_gives_torchs_numbers_for_a_seed(bias, sizes, add_bias_kv, dtype):
    options = {"bias": bias, "add_bias_kv": add_bias_kv, "dtype": dtype, **sizes}
    ours = made("torch", **options)
    after = torch.rand(1)
    torch.manual_seed(11)
    theirs = nn.MultiheadAttention(12, 3, **options)
    assert torch.equal(after, torch.rand(1))
    right, found = theirs.state_dict(), ours.torch_state_dict()
    assert list(found) == list(right)
    assert all(torch.equal(found[name], right[name]) for name in right)


@pytest.mark.parametrize("init", [word for word in INITS if word != "torch"])
def test_only_the_projections_and_the_extra_keys_are_drawn(init):
    module = made(init, add_bias_kv=True)
    assert not any(getattr(module, name).bias.any() for name in NAMES)
    torch.manual_seed(11)
    module.reset_parameters()
    twin = made(init, add_bias_kv=True)
    assert all(
        torch.equal(x, y) for x, y in zip(module.parameters(), twin.parameters(), strict=True)
    )


def test_xavier_is_that_of_each_projection():
    module = made("xavier_uniform", kdim=7, vdim=11)
    torch.manual_seed(11)
    for name, size in zip(NAMES, (12, 7, 11, 12), strict=True):
        assert torch.equal(
            getattr(module, name).weight, nn.init.xavier_uniform_(torch.empty(12, size))
        )
    module = made("xavier_normal", kdim=7, vdim=11)
    torch.manual_seed(11)
    for name, size in zip(NAMES, (12, 7, 11, 12), strict=True):
        assert torch.equal(
            getattr(module, name).weight, nn.init.xavier_normal_(torch.empty(12, size))
        )


@pytest.mark.parametrize("sizes", [{}, {"num_kv_heads": 1}, {"head_dim": 7}, {"kdim": 5}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_orthogonal_rows_or_columns(sizes, dtype):
    module = made("orthogonal", dtype=dtype, **sizes)
    for name in NAMES:
        weight = getattr(module, name).weight
        short = weight if weight.shape[0] <= weight.shape[1] else weight.T
        exact = torch.eye(short.shape[0], dtype=torch.float64)
        wide = nn.init.orthogonal_(torch.empty_like(short))  # how near plain arithmetic comes
        accept(short @ short.T, wide @ wide.T, exact)


def test_orthogonal_in_half_precision_is_the_float32_one_rounded():
    exact, half = made("orthogonal"), made("orthogonal", dtype=torch.bfloat16)
    assert torch.equal(half.q_proj.weight, exact.q_proj.weight.bfloat16())


def test_one_word_for_each_projection():
    module = made({"q": "orthogonal", "out": "xavier_normal"})
    torch.manual_seed(11)
    for name, draw in (
        ("q_proj", nn.init.orthogonal_),
        ("k_proj", nn.init.xavier_uniform_),
        ("v_proj", nn.init.xavier_uniform_),
        ("out_proj", nn.init.xavier_normal_),
    ):
        assert torch.equal(getattr(module, name).weight, draw(torch.empty(12, 12)))


@pytest.mark.parametrize(
    ("init", "variance"),
    [
        ("xavier_uniform", 2 / (256 + 256)),
        ("xavier_normal", 2 / (256 + 256)),
        ("orthogonal", 1 / 256),
        ("torch", 1 / (2 * 256)),
    ],
)
def test_the_variances_are_the_documented_ones(init, variance):
    weight = made(init, embed_dim=256, num_heads=2).q_proj.weight.detach().double()
    standard_error = 5 * variance * math.sqrt(3 / weight.numel())
    assert abs(weight.var().item() - variance) < standard_error


@pytest.mark.parametrize("init", INITS)
def test_on_the_meta_device_and_drawn_later(init):
    lazy = made(init, device="meta")
    assert all(x.is_meta for x in lazy.parameters())
    lazy.to_empty(device="cpu")
    torch.manual_seed(11)
    lazy.reset_parameters()
    right = made(init).state_dict()
    assert all(torch.equal(x, right[name]) for name, x in lazy.state_dict().items())


def test_the_device_context_is_honoured():
    with torch.device("meta"):
        assert all(x.is_meta for x in made("xavier_uniform", add_bias_kv=True).parameters())


@pytest.mark.parametrize(
    ("init", "error", "message"),
    [
        ("kaiming", BadValue, r"init: unknown 'kaiming'; expected one of 'xavier_uniform', "),
        (3, BadType, r"init: expected a string or a mapping such as .*got 3"),
        ({"Q": "orthogonal"}, BadValue, r"init: unknown 'Q'; expected one of 'q', 'k', 'v', 'out'"),
        ({"q": "zeros"}, BadValue, r"init\['q'\]: unknown 'zeros'; expected one of 'xavier_"),
        ({"k": "torch"}, BadValue, r"init: 'torch' initialises the whole module, .* 'k' only"),
    ],
)
def test_wrong_words_are_refused(init, error, message):
    with pytest.raises(error, match=message):
        made(init)


@pytest.mark.parametrize(
    ("part", "depth", "factor"),
    [("encoder", 1, 0.67), ("encoder", 16, 0.335), ("decoder", 9, 1 / 3), ("decoder", 1, 3**-0.5)],
)
def test_t_fixup_is_xavier_times_its_factor(part: str, depth: int, factor: float) -> None:
    layer = nn.TransformerDecoderLayer(12, 3, 17, batch_first=True)
    hw.convert(layer)
    nn.init.ones_(layer.linear1.bias)
    norms = [layer.norm1.weight.clone(), layer.norm1.bias.clone()]
    torch.manual_seed(11)
    t_fixup(layer, depth, part)
    torch.manual_seed(11)
    attentions = [hw.MultiheadAttention(12, 3) for _ in range(2)]
    linears = [nn.init.xavier_uniform_(torch.empty(size)) for size in ((17, 12), (12, 17))]
    for found, fresh in zip((layer.self_attn, layer.multihead_attn), attentions, strict=True):
        for name in NAMES:
            weight = getattr(fresh, name).weight.detach()
            scaled = weight * factor if name in ("v_proj", "out_proj") else weight
            exact = weight.double() * (factor if name in ("v_proj", "out_proj") else 1.0)
            accept(getattr(found, name).weight, scaled, exact)
            assert not getattr(found, name).bias.any()
    for found, fresh in zip((layer.linear1, layer.linear2), linears, strict=True):
        accept(found.weight, fresh * factor, fresh.double() * factor)
        assert not found.bias.any()
    assert torch.equal(layer.norm1.weight, norms[0])
    assert torch.equal(layer.norm1.bias, norms[1])


@pytest.mark.parametrize(
    ("depth", "part", "error", "message"),
    [
        (0, "encoder", BadValue, "depth: expected at least 1, got 0"),
        (2.0, "encoder", BadType, "depth: expected an integer, got 2.0"),
        (2, "middle", BadValue, "part: unknown 'middle'; expected one of 'encoder', 'decoder'"),
    ],
)
def test_t_fixup_refuses(depth: int, part: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        t_fixup(hw.MultiheadAttention(12, 3), depth, part)


def test_t_fixup_wants_converted_layers() -> None:
    with pytest.raises(
        BadType, match=r"layer: it contains a torch.nn.MultiheadAttention.*hw.convert"
    ):
        t_fixup(nn.TransformerEncoderLayer(12, 3), 2)

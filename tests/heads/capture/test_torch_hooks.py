"""Capture of nn.MultiheadAttention: the weights are right, and the output is bit-identical."""

import math

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadValue
from headwise.heads.capture import capture
from headwise.heads.metrics import MEASURED, NEXT, UNSPENT, KeyContext, Rows
from headwise.heads.names import Head, Layer
from headwise.heads.statistics import Statistics
from headwise.verify.oracle.tolerance import accept

B, L, S, E, H = 2, 7, 5, 12, 2


def made(module: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0.0, 0.5)
    return module.eval()


def head(number: int, layer: int = 0, part: str = "") -> Head:
    return Head(Layer(part, layer), number)


def exact(module: nn.Module) -> nn.Module:
    twin = type(module)(**module.made)  # type: ignore[operator]
    twin.load_state_dict(module.state_dict())
    return twin.double().eval()


def attention(**options: object) -> nn.MultiheadAttention:
    module = made(nn.MultiheadAttention(E, H, **options))  # type: ignore[arg-type]
    module.made = {"embed_dim": E, "num_heads": H, **options}  # type: ignore[assignment]
    return module  # type: ignore[return-value]


def inputs(module: nn.MultiheadAttention) -> list[Tensor]:
    sizes = ((L, E), (S, module.kdim), (S, module.vdim))
    found = [torch.randn(B, *size) for size in sizes]
    return found if module.batch_first else [x.transpose(0, 1) for x in found]


MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.ones(L, S).tril().bool().logical_not()},
    "float": {"attn_mask": torch.randn(L, S, generator=torch.Generator().manual_seed(0))},
    "heads": {"attn_mask": torch.rand(B * H, L, S, generator=torch.Generator()) > 0.6},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "both": {
        "attn_mask": torch.ones(L, S).tril(2).bool().logical_not(),
        "key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
    },
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {},
        {"bias": False},
        {"kdim": 5, "vdim": 3},
        {"add_bias_kv": True},
        {"add_zero_attn": True, "add_bias_kv": True, "batch_first": True},
    ],
    ids=str,
)
def test_weights_are_those_that_torch_returns(options: dict[str, object], mask: str) -> None:
    module, given = attention(**options), dict(MASKS[mask])
    if mask == "heads" and "attn_mask" in given:
        given["attn_mask"] = given["attn_mask"].clone()
        given["attn_mask"][..., 0] = False  # nobody is blind: torch gives NaN there
    q, k, v = inputs(module)
    _, plain = module(q, k, v, average_attn_weights=False, **given)
    wide = {name: m.double() if m.is_floating_point() else m for name, m in given.items()}
    twin = exact(module)
    _, oracle = twin(*(x.double() for x in (q, k, v)), average_attn_weights=False, **wide)
    heads = [head(n, part="cross") for n in range(H)]
    with torch.no_grad(), capture(module, heads=heads) as seen:
        module(q, k, v, need_weights=False, **given)
    for n in range(H):
        accept(seen.weights[heads[n]], plain[:, n].detach(), oracle[:, n].detach())
        assert torch.equal(seen.allowed[heads[n]], plain[:, n] > 0)


class Tree(nn.Module):
    """An attention deep in a module."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"mix": attention(**options)}) for _ in range(3))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = nn.functional.one_hot(input_ids, E).float()
        blocked = None if attention_mask is None else attention_mask == 0
        for block in self.blocks:
            x = x + block["mix"](x, x, x, key_padding_mask=blocked, need_weights=False)[0]
        return x


@pytest.mark.parametrize("batch_first", [True, False])
def test_anywhere_in_a_tree_and_left_as_it_was(batch_first: bool) -> None:
    model = Tree(batch_first=True).eval()
    ids = torch.randint(0, E, (B, L))
    mask = torch.ones(B, L, dtype=torch.long)
    mask[1, 4:] = 0
    with torch.no_grad():
        before = model(ids, attention_mask=mask)
        with capture(model) as seen:
            during = model(ids, attention_mask=mask)
    assert torch.equal(before, during)
    assert list(seen.statistics.layers) == [Layer("", n) for n in range(3)]
    assert seen.statistics.layers[Layer("", 0)].queries == L + 4
    assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(RuntimeError, match="in between"), capture(model):
        raise RuntimeError("in between")
    assert not any("forward" in vars(module) for module in model.modules())
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("root", ["layer", "encoder", "inside"])
def test_fused_layers_answer_to_the_bit_and_are_recorded(
    root: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.TransformerEncoderLayer(E, H, 13, batch_first=True)
    model = made(layer if root == "layer" else nn.TransformerEncoder(layer, 2))
    if root == "inside":
        model = nn.Sequential(model).eval()
    x = torch.randn(B, L, E)
    mask = torch.tensor([[False] * L, [False] * 4 + [True] * 3])
    given = {"src_key_padding_mask": mask} if padded and root != "inside" else {}
    fused = []
    run = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *a: fused.append(1) or run(*a)
    )
    layers = 1 if root == "layer" else 2
    with torch.no_grad():
        before = model(x, **given)
        assert len(fused) == layers
        with capture(model, heads=[head(0)]) as seen:
            during = model(x, **given)
    assert len(fused) == 2 * layers
    assert torch.equal(before, during)
    assert torch.backends.mha.get_fastpath_enabled()
    assert list(seen.statistics.layers) == [Layer("", n) for n in range(layers)]
    allowed = seen.allowed[head(0)]
    assert bool(allowed[0].all())
    assert bool(allowed[1].all()) != bool(given)


def test_encoder_decoder_and_cross_attention_of_a_transformer_are_told_apart() -> None:
    model = made(nn.Transformer(E, H, 2, 3, 13, batch_first=True))
    source, target = torch.randn(B, S, E), torch.randn(B, L, E)
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    with torch.no_grad():
        before = model(source, target, tgt_mask=causal)
        with capture(model, heads=[head(1, 2, "decoder"), head(0, 1, "cross")]) as seen:
            during = model(source, target, tgt_mask=causal)
    assert torch.equal(before, during)
    named = [("encoder", 2), ("decoder", 3), ("cross", 3)]
    assert set(seen.statistics.layers) == {
        Layer(part, n) for part, many in named for n in range(many)
    }
    own = seen.allowed[head(1, 2, "decoder")]
    assert torch.equal(own, torch.ones(L, L).tril().bool().expand(B, -1, -1))
    assert seen.weights[head(0, 1, "cross")].shape == (B, L, S)


def test_unbatched_input() -> None:
    module, x = attention(), torch.randn(L, E)
    _, plain = module(x, x, x, average_attn_weights=False)
    with torch.no_grad(), capture(module, heads=[head(1)]) as seen:
        module(x, x, x)
    twin = exact(module)
    _, oracle = twin(*[x.double()] * 3, average_attn_weights=False)
    accept(seen.weights[head(1)][0], plain[1].detach(), oracle[1].detach())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    module = attention(batch_first=True)
    x = torch.nested.nested_tensor([torch.randn(3, E), torch.randn(5, E)])
    with (
        pytest.raises(BadValue, match="received a nested tensor"),
        torch.no_grad(),
        capture(module),
    ):
        module(x, x, x, need_weights=False)


def test_calls_between_passes_are_numbered_by_module() -> None:
    """As where a generator calls the encoder once and the decoder's layers at every step."""
    model = Tree(batch_first=True).eval()
    x = torch.randn(1, L, E)
    with torch.no_grad(), capture(model) as seen:
        for _ in range(2):
            for block in model.blocks:
                block["mix"](x, x, x)
    assert list(seen.statistics.layers) == [Layer("", n) for n in range(3)]
    assert seen.statistics.layers[Layer("", 2)].queries == 2 * L


def own_rows(weights: Tensor, length: int) -> Rows:
    """Of weights (B, H, L, S) those on the L tokens, read causally."""
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    context = KeyContext(
        allowed=allowed.expand(len(weights), -1, -1, -1),
        counts=torch.ones(len(weights), length, dtype=torch.bool),
        position=torch.arange(length),
        first=torch.zeros(len(weights), dtype=torch.long),
    )
    return Rows(weights=weights[..., :length], context=context)


@pytest.mark.parametrize("length", [1, 5, 64, 130])
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"add_zero_attn": True}, {"add_bias_kv": True}, {"add_bias_kv": True, "add_zero_attn": True}],
    ids=str,
)
def test_appended_keys_count_in_no_metric(
    options: dict[str, bool], ours: bool, length: int
) -> None:
    """What is measured is what the weights on the tokens alone show; the rest is unspent."""
    kind = hw.MultiheadAttention if ours else nn.MultiheadAttention
    module = made(kind(E, H, batch_first=True, **options)).double()
    x = torch.randn(B, length, E, dtype=torch.float64)
    mask = torch.ones(length, length).tril().bool().logical_not()
    with torch.no_grad(), capture(module) as seen:
        _, weights = module(x, x, x, attn_mask=mask, average_attn_weights=False)
    expected = Statistics()
    expected.add(Layer("", 0), own_rows(weights, length))
    for name, tensor in seen.statistics.tensors().items():
        right = expected.tensors()[name].double()
        accept(tensor.double(), right, right)
    extra = weights[..., length:].sum(-1).mean((0, 2))
    found = [[seen.statistics.value(m, head(n)) for n in range(H)] for m in (UNSPENT, NEXT)]
    accept(torch.tensor(found[0], dtype=torch.float64), extra, extra)
    assert all(math.isnan(each) for each in found[1]), "no token comes after, and none is seen"


def test_who_sees_appended_keys_alone_sees_no_token() -> None:
    module = attention(add_zero_attn=True, batch_first=True)
    q, k = torch.randn(B, L, E), torch.randn(B, 64, E)
    blocked = torch.ones(L, 64, dtype=torch.bool)
    with torch.no_grad(), capture(module) as seen:
        module(q, k, k, attn_mask=blocked)
    assert seen.statistics.layers[Layer("cross", 0)].queries == 0
    values = [seen.statistics.value(each, head(0, part="cross")) for each in MEASURED]
    assert all(math.isnan(each) for each in values)

"""A converted model gives the same output; the reason is reported if a module is not converted."""

import copy

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn.conversion import convert
from headwise.verify.oracle.tolerance import accept

B, L, S, E, H = 2, 5, 7, 12, 3

MODULES = (
    {},
    {"bias": False},
    {"batch_first": True},
    {"kdim": 7, "vdim": 11},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5},
    {"dropout": 0.25},
)


def answers(model: nn.Module, *inputs: Tensor, **more: object) -> list[Tensor]:
    """The output and the gradients of the inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = model(*leaves, **more)
    output = output[0] if isinstance(output, tuple) else output
    return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]


def same(one: nn.Module, other: nn.Module, *inputs: Tensor, **more: object) -> None:
    """By the rule of acceptance, the first being what the second should be."""
    plain = answers(one, *inputs, **more)
    exact = answers(copy.deepcopy(one).double(), *(x.double() for x in inputs), **more)
    for found, usual, right in zip(answers(other, *inputs, **more), plain, exact, strict=True):
        accept(found, usual, right)


@pytest.mark.parametrize("options", MODULES, ids=str)
def test_one_attention_there_and_back(options: dict[str, object]) -> None:
    theirs = nn.MultiheadAttention(E, H, **options).eval()  # type: ignore[arg-type]
    done = convert(theirs)
    assert done.changed == ("",)
    assert done.left == ()
    ours = done.model
    assert isinstance(ours, hw.MultiheadAttention)
    first = (B, L) if ours.batch_first else (L, B)
    second = (B, S) if ours.batch_first else (S, B)
    sizes = ((*first, E), (*second, ours.kdim), (*second, ours.vdim))
    inputs = [torch.randn(size) for size in sizes]
    same(theirs, ours, *inputs)
    back = convert(ours, to="torch").model
    assert type(back) is nn.MultiheadAttention
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, back.state_dict()[name])
    assert {n: p.requires_grad for n, p in back.named_parameters()} == {
        n: p.requires_grad for n, p in theirs.named_parameters()
    }


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_whole_transformer(training: bool, batch_first: bool) -> None:
    model = nn.Transformer(
        E, H, 2, 2, dim_feedforward=17, dropout=0.0, batch_first=batch_first
    ).train(training)
    converted = copy.deepcopy(model)
    done = convert(converted)
    assert done.model is converted
    assert done.changed == (
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.multihead_attn",
    )
    source, target = torch.randn(B, S, E), torch.randn(B, L, E)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    padded = torch.tensor([[False] * S, [False] * 4 + [True] * 3])
    causal = torch.ones(L, L, dtype=torch.bool).triu(1)
    more = {"src_key_padding_mask": padded, "memory_key_padding_mask": padded, "tgt_mask": causal}
    same(model, converted, source, target, **more)
    convert(converted, to="torch")
    assert torch.equal(converted(source, target, **more), model(source, target, **more))


def test_a_mask_holds_from_then_on() -> None:
    model = nn.TransformerEncoderLayer(E, H, 17, 0.0, batch_first=True).eval()
    x = torch.randn(B, L, E)
    blocked = ~torch.ones(L, L, dtype=torch.bool).tril(1).triu(-1)
    wanted = copy.deepcopy(model)
    convert(model, mask=hw.window(1, 1), engine="eager")
    assert model.self_attn.engine == "eager"
    plain = wanted(x, src_mask=blocked)
    accept(model(x), plain, wanted.double()(x.double(), src_mask=blocked))


def test_one_attention_in_two_places_stays_one() -> None:
    shared = nn.MultiheadAttention(E, H)
    model = nn.ModuleDict({"first": shared, "second": shared})
    done = convert(model)
    assert done.changed == ("first", "second")
    assert model["first"] is model["second"]


def test_frozen_parts_and_mode_stay() -> None:
    theirs = nn.MultiheadAttention(E, H, add_bias_kv=True).eval()
    theirs.in_proj_weight.requires_grad_(False)
    theirs.bias_k.requires_grad_(False)
    ours = convert(theirs).model
    assert not ours.training
    trained = {name for name, p in ours.named_parameters() if p.requires_grad}
    everything = {name for name, _ in ours.named_parameters()}
    assert everything - trained == {"q_proj.weight", "k_proj.weight", "v_proj.weight", "bias_k"}
    back = convert(ours, to="torch").model
    assert {n for n, p in back.named_parameters() if not p.requires_grad} == {
        "in_proj_weight",
        "bias_k",
    }


def test_nothing_random_is_drawn() -> None:
    model = nn.Sequential(nn.MultiheadAttention(E, H))
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    convert(model)
    convert(model, to="torch")
    assert torch.equal(torch.rand(3), wanted)


def test_weights_are_copies_in_their_dtype() -> None:
    theirs = nn.MultiheadAttention(E, H, dtype=torch.bfloat16)
    before = theirs.in_proj_weight.detach().clone()
    ours = convert(theirs).model
    assert ours.q_proj.weight.dtype == torch.bfloat16
    with torch.no_grad():
        ours.q_proj.weight.zero_()
    assert torch.equal(theirs.in_proj_weight, before)


class Own(nn.MultiheadAttention):
    pass


def left(model: nn.Module, to: str = "headwise") -> list[str]:
    done = convert(model, to=to)
    assert done.changed == ()
    assert all(reason.zh for _, reason in done.left)
    return [reason.en for _, reason in done.left]


def test_what_stays_says_why() -> None:
    assert left(Own(E, H)) == ["Own is a subclass, which may compute otherwise"]
    hooked = nn.MultiheadAttention(E, H)
    hooked.register_forward_hook(lambda *_: None)
    assert "hooks" in left(hooked)[0]
    inner = nn.MultiheadAttention(E, H)
    inner.out_proj.register_forward_pre_hook(lambda *_: None)
    assert "hooks" in left(inner)[0]
    one, other = nn.MultiheadAttention(E, H), nn.MultiheadAttention(E, H)
    other.in_proj_weight = one.in_proj_weight
    assert ["shares a parameter" in why for why in left(nn.ModuleList([one, other]))] == [True] * 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mask": hw.causal()}, "no mask"),
        ({"position": hw.ALiBi(H)}, "no position"),
        ({"num_kv_heads": 1}, "share no keys"),
        ({"head_dim": 5}, "fill embed_dim"),
    ],
    ids=str,
)
def test_what_pytorch_has_not_is_left(options: dict[str, object], why: str) -> None:
    assert why in left(hw.MultiheadAttention(E, H, **options), "torch")[0]  # type: ignore[arg-type]


def test_projections_that_cannot_be_packed_are_left() -> None:
    module = hw.MultiheadAttention(E, H)
    module.q_proj.weight.requires_grad_(False)
    assert "packs q, k and v" in left(module, "torch")[0]
    wrapped = hw.MultiheadAttention(E, H)
    wrapped.k_proj = nn.Sequential(wrapped.k_proj)  # type: ignore[assignment]
    assert "no plain nn.Linear" in left(wrapped, "torch")[0]


def test_the_report_reads() -> None:
    model = nn.ModuleDict({"good": nn.MultiheadAttention(E, H), "own": Own(E, H)})
    assert str(convert(model)).splitlines() == [
        "1 changed",
        "  good",
        "1 left",
        "  own: Own is a subclass, which may compute otherwise",
    ]


def test_a_model_without_attention_is_left_alone() -> None:
    done = convert(nn.Linear(2, 3))
    assert (done.changed, done.left) == ((), ())


def test_bad_arguments_are_named() -> None:
    with pytest.raises(BadType, match=r"model: expected a torch\.nn\.Module, got int"):
        convert(3)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="to: "):
        convert(nn.Linear(2, 3), to="jax")
    with pytest.raises(BadType, match="mask: expected a headwise mask"):
        convert(nn.MultiheadAttention(E, H), mask=torch.ones(3, 3))  # type: ignore[arg-type]

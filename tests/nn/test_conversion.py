"""A converted model gives the same output; the reason is reported if a module is not converted."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn import conversion
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
    assert left(Own(E, H)) == ["Own is a subclass and may compute attention differently"]
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
        ({"num_kv_heads": 1}, "no shared key/value heads"),
        ({"head_dim": 5}, "needs H·D = embed_dim"),
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
    assert "not a plain nn.Linear" in left(wrapped, "torch")[0]


def test_the_report_reads() -> None:
    model = nn.ModuleDict({"good": nn.MultiheadAttention(E, H), "own": Own(E, H)})
    assert str(convert(model)).splitlines() == [
        "1 changed",
        "  good",
        "1 left",
        "  own: Own is a subclass and may compute attention differently",
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


def layer(**options: object) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(E, H, 8, batch_first=True, **options)  # type: ignore[arg-type]


def patched(attention: nn.MultiheadAttention) -> None:
    forward = attention.forward
    attention.forward = lambda *given, **more: forward(*given, **more)  # type: ignore[method-assign]


def weight_norm(attention: nn.MultiheadAttention) -> None:
    torch.nn.utils.parametrizations.weight_norm(attention.out_proj)


def old_weight_norm(attention: nn.MultiheadAttention) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.utils.weight_norm(attention.out_proj)


def in_proj_norm(attention: nn.MultiheadAttention) -> None:
    torch.nn.utils.parametrizations.weight_norm(attention, "in_proj_weight")


def another_out_proj(attention: nn.MultiheadAttention) -> None:
    attention.out_proj = nn.Sequential(attention.out_proj)  # type: ignore[assignment]


TREATED = {
    "weight_norm on out_proj": (weight_norm, "instead of a plain linear layer"),
    "the old weight_norm": (old_weight_norm, "it has hooks"),
    "weight_norm on in_proj": (in_proj_norm, "is a subclass"),
    "another out_proj": (another_out_proj, "out_proj is a torch.nn"),
    "patched forward": (patched, "its forward was replaced"),
    "patched out_proj": (lambda m: patched(m.out_proj), "its forward was replaced"),
    "qconfig": (lambda m: setattr(m, "qconfig", object()), "prepared for quantisation"),
    "a buffer": (
        lambda m: m.register_buffer("scale", torch.ones(1)),
        "its class does not define scale",
    ),
    "a submodule": (
        lambda m: m.add_module("extra", nn.Linear(2, 2)),
        "its class does not define extra",
    ),
    "an attribute": (lambda m: setattr(m, "mask", 3), "its attribute mask has another meaning"),
    "forward hook": (lambda m: m.register_forward_hook(lambda *_: None), "it has hooks"),
    "state hook": (lambda m: m.register_state_dict_post_hook(lambda *_: None), "it has hooks"),
    "tensor hook": (lambda m: m.in_proj_weight.register_hook(lambda g: g), "a parameter has hooks"),
    "gradient hook": (
        lambda m: m.in_proj_bias.register_post_accumulate_grad_hook(lambda _: None),
        "a parameter has hooks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TREATED)
def test_what_cannot_be_carried_over_is_left_and_named(name: str) -> None:
    """Beside an attention that is converted, which shows that the rest goes on."""
    treat, why = TREATED[name]
    model = nn.Sequential(layer(), layer()).eval()
    attention = model[0].self_attn
    treat(attention)
    kept = model[0].self_attn
    done = convert(model)
    assert model[0].self_attn is kept
    assert done.changed == ("1.self_attn",)
    ((place, reason),) = done.left
    assert place == "0.self_attn"
    assert why in reason.en
    assert reason.zh != reason.en


def test_lora_of_peft_is_left_and_named() -> None:
    peft = pytest.importorskip("peft")
    model = nn.Sequential(layer(), layer()).eval()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["0.self_attn"], r=2))
    x = torch.randn(B, L, E)
    before = adapted(x)
    done = convert(adapted)
    assert [name.rpartition("model.")[2] for name in done.changed] == ["1.self_attn"]
    ((place, reason),) = done.left
    assert place.endswith("0.self_attn.base_layer")
    assert "peft" in reason.en
    accept(adapted(x), before, before.double())


@pytest.mark.parametrize("to", ["headwise", "torch"])
def test_attributes_and_dtypes_of_its_own_are_carried_over(to: str) -> None:
    model = layer().eval()
    if to == "torch":
        convert(model)
    model.self_attn.block_number, model.self_attn.tags = 3, ["first"]
    model.self_attn.out_proj.to(torch.bfloat16)
    with torch.no_grad():
        model.self_attn.out_proj.weight.fill_(1.5)
    assert convert(model, to=to).changed == ("self_attn",)
    attention = model.self_attn
    assert type(attention) is (nn.MultiheadAttention if to == "torch" else hw.MultiheadAttention)
    assert (attention.block_number, attention.tags) == (3, ["first"])
    assert attention.out_proj.weight.dtype == torch.bfloat16
    assert attention.out_proj.weight.eq(1.5).all()
    others = [p for n, p in attention.named_parameters() if "out_proj" not in n]
    assert {p.dtype for p in others} == {torch.float32}
    storages = [p.untyped_storage().data_ptr() for p in attention.parameters()]
    assert len(set(storages)) == len(storages)


def test_projections_of_several_dtypes_are_left() -> None:
    ours = hw.MultiheadAttention(E, H)
    ours.k_proj.to(torch.bfloat16)
    ((_, reason),) = convert(ours, to="torch").left
    assert "their dtypes or devices differ" in reason.en


def test_a_second_conversion_sets_the_new_mask_and_engine() -> None:
    model = nn.Sequential(layer(), layer()).eval()
    convert(model, mask=hw.window(1, 1))
    parameters = list(model.parameters())
    done = convert(model, mask=hw.causal(), engine="eager")
    assert done.changed == ("0.self_attn", "1.self_attn")
    assert not done.left
    assert model[0].self_attn.mask == hw.causal()
    assert model[1].self_attn.engine == "eager"
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    again = copy.deepcopy(model)
    convert(again)
    assert again[0].self_attn.mask is None
    assert convert(again, to="torch").changed == ("0.self_attn", "1.self_attn")


def test_a_module_that_a_person_made_keeps_its_mask() -> None:
    model = layer()
    model.self_attn = hw.MultiheadAttention(E, H, batch_first=True, mask=hw.causal())
    done = convert(model, mask=hw.window(1, 0))
    assert model.self_attn.mask == hw.causal()
    assert not done.changed
    assert "already a headwise module" in done.left[0][1].en
    assert convert(model).left == ()


def test_an_error_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a model would be the worst of results."""
    model, calls = nn.Sequential(layer(), layer(), layer()), []

    def failing(*given: object) -> object:
        calls.append(given)
        if len(calls) == 3:
            raise RuntimeError("no memory")
        return real(*given)

    real = conversion._converted
    monkeypatch.setattr(conversion, "_converted", failing)
    with pytest.raises(RuntimeError, match="no memory"):
        convert(model)
    assert all(type(part.self_attn) is nn.MultiheadAttention for part in model)


def test_no_name_is_both_changed_and_left() -> None:
    """A transformers model that holds an attention of PyTorch's in its own layers."""
    from tests.heads import tiny

    model = tiny.llama()
    model.extra_attention = nn.MultiheadAttention(E, H)
    done = convert(model)
    assert "extra_attention" in done.changed
    names = [name for name, _ in done.left]
    assert not set(done.changed) & set(names)
    assert len(set(done.changed)) == len(done.changed)
    back = convert(model, to="torch")
    assert not set(back.changed) & {name for name, _ in back.left}
    assert type(model.extra_attention) is nn.MultiheadAttention

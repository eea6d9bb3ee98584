"""Modules in a `MultiheadAttention`: norms of queries and keys, a logit scale and a gate."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn import GrowingCache, LogitScale, OutputGate, StaticCache, UnitNorm
from headwise.verify.oracle.tolerance import accept
from tests.nn.oracle import Truth, check, exact, inputs

E, H, G, D = 12, 6, 3, 2

PARTS: dict[str, Callable[[], dict[str, object]]] = {
    "RMS norms": lambda: {
        "query_norm": nn.RMSNorm(D, eps=1e-6),
        "key_norm": nn.RMSNorm(D, eps=1e-6),
    },
    "one norm": lambda: {"key_norm": nn.RMSNorm(D, eps=1e-6)},
    "cosines": lambda: {
        "query_norm": UnitNorm(),
        "key_norm": UnitNorm(),
        "logit_scale": LogitScale(H),
    },
    "scale": lambda: {"logit_scale": LogitScale(H, start=D**-0.5, most=None)},
    "gate per head": lambda: {"gate": OutputGate(E, H)},
    "gate per number": lambda: {"gate": OutputGate(E, H, D)},
    "all": lambda: {
        "query_norm": nn.RMSNorm(D, eps=1e-6),
        "key_norm": nn.RMSNorm(D, eps=1e-6),
        "logit_scale": LogitScale(H, start=1.0),
        "gate": OutputGate(E, H, D),
    },
}

POSITIONS: dict[str, Callable[[], hw.Position | None]] = {
    "none": lambda: None,
    "Rotary": lambda: hw.Rotary(D, pairs="halves"),
    "ALiBi": lambda: hw.ALiBi(H),
    "Shaw": lambda: hw.Shaw(3, D),
}


def make(part: str, **more: object) -> hw.MultiheadAttention:
    options = {"num_kv_heads": G, "batch_first": True} | PARTS[part]() | more
    layer = hw.MultiheadAttention(E, H, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return layer


# --- each part through every path ---


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("weights", [True, False])
def test_parts_and_positions_agree_with_the_oracle(part: str, position: str, weights: bool) -> None:
    """The norms act before the position turns, the scale on what both give."""
    layer = make(part, position=POSITIONS[position]())
    given = inputs(layer)
    allowed = torch.ones(5, 7).tril(2).bool()
    got = layer(*given, is_causal=True, need_weights=weights, average_attn_weights=False)
    check(layer, given, got, allowed)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_dtype(part: str, dtype: torch.dtype) -> None:
    layer = make(part).to(dtype)
    given = inputs(layer)
    truth = Truth(layer, given)
    for need in (True, False):
        output, weights = layer(*(x.detach() for x in given), need_weights=need)
        assert output.dtype == dtype
        with torch.no_grad():
            truth.hold(output.detach(), None if weights is None else weights.detach())


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # RMSNorm's own
@pytest.mark.parametrize("part", PARTS)
def test_autocast(part: str) -> None:
    layer = make(part)
    given = inputs(layer)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(*given, need_weights=False)
    assert output.dtype == torch.bfloat16
    near = exact(layer, given, dtype=torch.bfloat16)
    accept(output, near.output, exact(layer, given).output)


@pytest.mark.parametrize("made", [GrowingCache, lambda: StaticCache(13)])
@pytest.mark.parametrize("part", PARTS)
def test_a_cache_holds_normed_keys(part: str, made: Callable[[], object]) -> None:
    layer = make(part, mask=hw.causal())
    given, cache = inputs(layer, queries=13, keys=13), made()
    with torch.no_grad():
        found = [
            layer(*chunk, cache=cache)[0]
            for chunk in zip(*(x.split([5, 1, 3, 4], 1) for x in given), strict=True)
        ]
    allowed = torch.ones(13, 13).tril().bool()
    near, right = (exact(layer, given, allowed, dtype=d) for d in (torch.float32, torch.float64))
    accept(torch.cat(found, 1), near.output, right.output)


@pytest.mark.parametrize("part", PARTS)
def test_they_are_in_the_state_and_are_copied(part: str) -> None:
    layer, other = make(part), make(part)
    given = inputs(layer)
    other.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(other(*given)[0], layer(*given)[0])
    assert torch.equal(copy.deepcopy(layer)(*given)[0], layer(*given)[0])
    beyond = {name.split(".")[0] for name in layer.state_dict()} & {*PARTS["all"]()}
    learned = {name for name, part in PARTS[part]().items() if list(part.parameters())}
    assert beyond == learned


@pytest.mark.parametrize("part", PARTS)
def test_gradients_of_both_orders(part: str) -> None:
    layer = make(part, engine="eager").double()
    given = inputs(layer, batch=1, queries=2, keys=3)
    own = [p for name, p in layer.named_parameters() if "norm" in name or "." not in name]
    assert torch.autograd.gradcheck(lambda *x: layer(*x[:3])[0], [*given, *own])
    assert torch.autograd.gradgradcheck(lambda *x: layer(*x)[0], given)


def test_the_gate_reads_the_query_with_its_position() -> None:
    layer = make("gate per head", position=hw.Sinusoidal(E))
    plain = copy.deepcopy(layer)
    plain.position = None
    x = torch.randn(2, 5, E)
    placed = layer.position.embed(x)
    assert torch.equal(layer(x, x, x)[0], plain(placed, placed, placed)[0])


def test_global_rows_are_normed_and_gated_too() -> None:
    parts = PARTS["all"]()
    layer = make("all", mask=hw.global_tokens([0, 2]), global_projections=True)
    layer.global_proj.copy((layer.q_proj, layer.k_proj, layer.v_proj))
    plain = make("all", mask=hw.global_tokens([0, 2]))
    state = {n: t for n, t in layer.state_dict().items() if not n.startswith("global_proj")}
    plain.load_state_dict(state)
    x = torch.randn(2, 5, E)
    found, near = layer(x, x, x)[0], plain(x, x, x)[0]
    accept(found, near, plain.double()(*[x.double()] * 3)[0])
    assert set(parts) <= {name for name, _ in layer.named_children()}


@pytest.mark.parametrize("name", ["query_norm", "key_norm", "logit_scale", "gate"])
def test_what_pytorch_has_not_is_left_by_convert(name: str) -> None:
    part = PARTS["all"]()[name]
    done = hw.convert(nn.ModuleList([hw.MultiheadAttention(E, H, **{name: part})]), to="torch")
    assert f"PyTorch's module has no {name}" in done.left[0][1].en


# --- what each part is ---


def test_unit_vectors() -> None:
    x = torch.randn(5, 7, dtype=torch.float64)
    one = torch.ones(5, dtype=torch.float64)
    accept(UnitNorm()(x).square().sum(-1), one, one)
    zero = torch.zeros(3, requires_grad=True)
    UnitNorm()(zero).sum().backward()
    assert not UnitNorm()(zero).any()
    assert zero.grad is not None
    assert bool(zero.grad.isfinite().all())


def test_a_head_of_scale_1_over_sqrt_d_is_plain_attention() -> None:
    layer = hw.MultiheadAttention(E, H, logit_scale=LogitScale(H, start=D**-0.5))
    plain = hw.MultiheadAttention(E, H)
    plain.load_state_dict({n: t for n, t in layer.state_dict().items() if "scale" not in n})
    x = torch.randn(5, 1, E)
    accept(layer(x, x, x)[0], plain(x, x, x)[0], plain.double()(*[x.double()] * 3)[0])


def test_the_scale_has_a_ceiling() -> None:
    scale = LogitScale(3, start=2.0, most=8.0).double()
    with torch.no_grad():
        scale.log.copy_(torch.tensor([1.0, 4.0, 20.0]).double().log())
    right = torch.tensor([1.0, 4.0, 8.0], dtype=torch.float64)
    accept(scale(), right, right)
    (grad,) = torch.autograd.grad(scale().sum(), scale.log)
    accept(grad, right * torch.tensor([1, 1, 0]), right * torch.tensor([1, 1, 0]))
    scale.reset_parameters()
    accept(scale(), torch.full_like(right, 2), torch.full_like(right, 2))


def test_an_open_gate_changes_nothing_and_a_closed_one_leaves_the_bias() -> None:
    layer = make("gate per number")
    given, gate = inputs(layer), nn.Linear(E, E)
    nn.init.zeros_(gate.weight)
    plain = copy.deepcopy(layer)
    plain.gate = None
    layer.gate = gate
    nn.init.ones_(gate.bias)
    assert torch.equal(layer(*given)[0], plain(*given)[0])
    nn.init.zeros_(gate.bias)
    assert torch.equal(layer(*given)[0], layer.out_proj.bias.expand(2, 5, E))


def test_a_gate_may_have_a_bias() -> None:
    gate = OutputGate(E, H, bias=True, dtype=torch.float64)
    nn.init.zeros_(gate.proj.weight)
    assert torch.equal(gate(torch.randn(1, 3, E).double()), torch.full((1, 3, H), 0.5).double())


def test_parts_say_what_they_are() -> None:
    assert repr(UnitNorm(1e-5)) == "UnitNorm(eps=1e-05)"
    assert repr(LogitScale(3)) == "LogitScale(3, start=10.0, most=100.0)"


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"query_norm": True},
            BadType,
            r"query_norm: expected an nn.Module instance .*nn.RMSNorm\(2\)",
        ),
        (
            {"key_norm": "rms"},
            BadType,
            "key_norm: expected an nn.Module instance or None, got 'rms'",
        ),
        (
            {"key_norm": nn.LayerNorm(E)},
            BadValue,
            r"key_norm: .*D = 2 features.*, got a norm over \(12,\); use nn.LayerNorm\(2\)",
        ),
        ({"logit_scale": 3.0}, BadType, r"logit_scale: expected an nn.Module instance .*got 3.0"),
        ({"gate": True}, BadType, "gate: expected an nn.Module instance or None, got True"),
    ],
)
def test_what_is_no_part_is_refused(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        hw.MultiheadAttention(E, H, **options)  # type: ignore[arg-type]
    assert caught.value.text.zh != caught.value.text.en  # type: ignore[attr-defined]


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[..., :1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_norm": Half()}, r"query_norm: .*shape \(2, 6, 5, 2\), got \(2, 6, 5, 1\)"),
        ({"key_norm": Half()}, r"key_norm: .*keeps the shape"),
        ({"logit_scale": LogitScale(5)}, r"logit_scale: .*\(6,\), got \(5,\); .*num_heads=6"),
        ({"gate": OutputGate(E, 5)}, r"gate: expected .*\(2, 5, 6\).*= 12, got \(2, 5, 5\)"),
        ({"gate": Half()}, r"gate: expected .*got \(2, 5, 1\)"),
    ],
)
def test_a_part_of_another_size_is_refused(options: dict[str, nn.Module], message: str) -> None:
    layer = hw.MultiheadAttention(E, H, batch_first=True, **options)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=message) as caught:
        layer(*inputs(layer))
    assert caught.value.text.zh != caught.value.text.en


def test_numbers_that_make_no_part_are_refused() -> None:
    with pytest.raises(BadValue, match="UnitNorm: eps must be above 0, got 0"):
        UnitNorm(0.0)
    with pytest.raises(BadValue, match="LogitScale: start must be a positive number, got -1"):
        LogitScale(3, start=-1.0)
    with pytest.raises(BadValue, match="LogitScale: most must be a positive number, got inf"):
        LogitScale(3, most=math.inf)
    with pytest.raises(BadValue, match=r"LogitScale: start=10\.0 must be at most most=5.0"):
        LogitScale(3, most=5.0)
    with pytest.raises(BadValue, match="num_heads: expected at least 1, got 0"):
        LogitScale(0)
    with pytest.raises(BadValue, match="head_dim: expected at least 1, got 0"):
        OutputGate(E, H, 0)


def test_a_unit_norm_of_half_precision_does_not_overflow():
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # its square is beyond float16
    assert UnitNorm()(x).tolist() == [[0.5] * 4]

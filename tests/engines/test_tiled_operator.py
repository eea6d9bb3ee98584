"""The tiled engine as a compiled operator, with masks and positions encoded as numbers."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.call import Call
from headwise.engines import tiled
from headwise.engines.dropout import Keep
from headwise.engines.tiled import forward
from headwise.engines.tiled.encoding import decode, encodable, encode
from headwise.engines.tiled.operator import _laid_out, operator, operator_backward
from headwise.errors import BadValue
from headwise.masks import Mask, Tile
from headwise.positions import Position, Stage
from tests.examples import (
    HEADS,
    Largest,
    accept_with_gradients,
    every_mask,
    every_position,
    identity,
    named,
    tensors,
)

ACTING = [p for p in every_position() if {Stage.SCORES, Stage.VALUES} & p.stages]
L = 137


class Own(Mask):
    """A mask that headwise does not know."""

    def rule(self, b, h, q, k):
        del b, h
        return q >= k

    def tile(self, q, k):
        del q, k
        return Tile.MIXED

    @property
    def name(self):
        return "own()"


class OwnBias(Own):
    @property
    def biased(self):
        return True

    def bias(self, b, h, q, k):
        del b, h
        return (q - k).float()


class OwnPosition(hw.ALiBi):
    """A position with an attribute that cannot be written as numbers."""

    def __init__(self, num_heads):
        super().__init__(num_heads)
        self.function = named


@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_a_mask_written_as_numbers_is_read_back(mask):
    call = Call.of(*tensors(), mask=mask)
    numbers, held = encode(call.mask)
    again, others = decode(numbers, held)
    assert not others
    assert encodable(call.mask)
    assert all(type(number) is int for number in numbers)
    assert again.name == call.mask.name
    assert torch.equal(again.dense(call.shape), call.mask.dense(call.shape))
    assert encode(again)[0] == numbers


@pytest.mark.parametrize("position", ACTING, ids=named)
def test_a_position_written_as_numbers_is_read_back(position):
    """With the very tensors, and nothing drawn."""
    position = position.after_content
    before = torch.get_rng_state()
    numbers, held = encode(hw.causal(), position, None)
    _, (again, nothing) = decode(numbers, held)
    assert torch.equal(torch.get_rng_state(), before)
    assert nothing is None
    assert encodable(position)
    assert type(again) is type(position)
    assert again.stages == position.stages
    assert [id(each) for each in held] == [id(each) for each in position.parameters()]
    assert dict(again.named_parameters()) == dict(position.named_parameters())
    q, query, key = tensors(5, 5)[0], torch.arange(5), torch.arange(7)
    assert torch.equal(again.bias(q, query, key, 0.3), position.bias(q, query, key, 0.3))
    if Stage.VALUES in position.stages:
        weights = torch.rand(2, HEADS, 5, 7)
        both = (each.values(weights, query, key) for each in (again, position))
        assert torch.equal(*both)
    assert encode(hw.causal(), again, None)[0] == numbers


def test_what_dropout_keeps_is_read_back():
    keep = Keep(0.1, 12345)
    for number in (keep.number, torch.tensor(keep.number)):
        mask, (again,) = decode(*encode(hw.causal() & Keep(0.1, number), Keep(0.1, number)))
        assert again == keep
        assert mask == hw.causal() & keep


@dataclass(frozen=True, repr=False)
class Parity(Own):
    """A mask that nothing in headwise names."""

    remainder: int
    inner: Mask

    def rule(self, b, h, q, k):
        return self.inner.rule(b, h, q, k) & ((q + k) % 2 == self.remainder)


class LearnedBias(Position):
    """A position that nothing in headwise names: a network of the distance, and a scalar."""

    stages = frozenset({Stage.SCORES})

    def __init__(self, width=4):
        super().__init__()
        last = nn.Linear(width, HEADS, bias=False)
        self.network = nn.Sequential(nn.Linear(1, width), nn.ReLU(), last)
        self.slope = nn.Parameter(torch.tensor(0.5))

    def bias(self, q, query, key, scale):
        del scale
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = {name: value.to(wide) for name, value in self.network.named_parameters()}
        distance = self.slope.to(wide) * (query[:, None] - key).abs()[..., None]
        bias = torch.func.functional_call(self.network, weights, (distance,))
        return bias.permute(2, 0, 1)[None] * sum(p.numel() for p in self.parameters())


def test_a_mask_and_a_position_need_no_registration():
    mask, position = Parity(1, hw.window(3, 1)), LearnedBias()
    again, (other,) = decode(*encode(mask, position))
    assert again == mask
    assert isinstance(other, LearnedBias)
    assert dict(other.named_parameters()) == dict(position.named_parameters())
    assert [name for name, _ in other.named_parameters()] == [
        name for name, _ in position.named_parameters()
    ]
    assert encode(again, other)[0] == encode(mask, position)[0]


def test_what_is_no_mask_of_ours_is_refused():
    with pytest.raises(BadValue, match=r"mask: Own cannot be encoded as integers and tensors"):
        encode(Own() & hw.causal())
    with pytest.raises(BadValue, match=r"value: function cannot be encoded"):
        encode(hw.causal(), OwnPosition(2))
    with pytest.raises(BadValue, match=r"numbers: expected an encoded mask, got 3"):
        decode([2, 3], [])
    assert not encodable(hw.per_head([hw.full(), Own()]))


def test_a_mask_of_somebody_else_runs_but_for_a_bias_that_cannot_be_seen_into():
    call = Call.of(*tensors(37, 37, dtype=torch.float32), mask=Own())
    accept_with_gradients(call, tiled.run(call))
    (reason,) = list(tiled.why_not(Call.of(*tensors(37, 37), mask=OwnBias())))
    assert reason.en == "it cannot see into the bias of OwnBias"


@pytest.mark.parametrize(
    "mask",
    [
        hw.window(5, 9),
        hw.padding([30, 0]) & hw.causal(),
        hw.window(3, 3) | hw.global_tokens([0, 40]),
        hw.block_sparse(torch.ones(HEADS, 5, 5).tril().bool(), 16),
    ],
    ids=identity,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_finds_nothing(mask, dtype):
    q, k, _ = tensors(37, 67, dtype=dtype)
    v = torch.randn(k.shape, dtype=dtype, requires_grad=True)
    call = Call.of(q, k, v, mask=mask)
    found = torch.library.opcheck(
        operator, (q, k, v, *encode(call.mask), call.shape.offset, call.scale, None)
    )
    assert set(found.values()) == {"SUCCESS"}


BESIDE = {
    "position": lambda: {"position": hw.TransformerXL(HEADS, 11, embed_dim=5)},
    "values": lambda: {"position": hw.Shaw(2, 11, value_dim=11)},
    "bias": lambda: {"mask": hw.causal() & hw.from_tensor(learned_bias(37, 67), "h q k")},
    "dropout": lambda: {"dropout": 0.3},
    "dropout and position": lambda: {"dropout": 0.3, "position": hw.T5Bias(HEADS)},
    "sinks": lambda: {"sinks": torch.randn(HEADS, requires_grad=True), "position": hw.Shaw(3, 11)},
}


def learned_bias(queries, keys):
    return torch.randn(HEADS, queries, keys, requires_grad=True)


@pytest.fixture
def handed(monkeypatch):
    """The arguments of every operator that a run hands over while compiling."""
    given, real = [], tiled.operator

    def watched(*arguments):
        given.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(tiled, "operator", watched)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    return given


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", BESIDE)
def test_opcheck_finds_nothing_beside_a_mask(kind, dtype, handed):
    q, k, _ = tensors(37, 67, dtype=dtype)
    v = torch.randn(k.shape, dtype=dtype, requires_grad=True)
    options = {"mask": hw.window(5, 9)} | BESIDE[kind]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: False)
        call = Call.of(q, k, v, need=["logsumexp"], **options)
    tiled.run(call)
    assert len(handed) == (2 if call.dropout else 1)  # with its logsumexp it is run twice
    for arguments in handed:
        real = [_leaves(each) for each in arguments]
        assert set(torch.library.opcheck(operator, tuple(real)).values()) == {"SUCCESS"}
        found = torch.library.opcheck(operator_backward, backwards(arguments))
        assert set(found.values()) == {"SUCCESS"}


def backwards(arguments, grad_sums=True):
    """The arguments of the operator's backward, everything being wanted."""
    q, k, v, numbers, held, offset, scale, sinks = (_leaves(each, False) for each in arguments)
    results = operator(q, k, v, numbers, held, offset, scale, sinks)
    wanted = [True] * 3 + [each.is_floating_point() and each.dim() > 0 for each in held]
    grad, sums = (torch.ones_like(each) for each in results)
    perhaps = [grad, sums if grad_sums else None, sinks]
    return [q, k, v, *results], perhaps, numbers, held, offset, scale, wanted


def test_a_gradient_lies_in_memory_as_the_compiler_counts_on():
    gradient, like = torch.randn(5, 3).mT, torch.zeros(3, 5, dtype=torch.float64)
    found = _laid_out(gradient, like)
    assert found.stride() == (5, 1)
    assert torch.equal(found, gradient.double())
    assert _laid_out(gradient, like.mT.contiguous().mT) is gradient


def _leaves(value, differentiable=True):
    """The same, its tensors being leaves: what `opcheck` differentiates."""
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [_leaves(each, differentiable) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(differentiable and value.requires_grad)


@pytest.mark.parametrize(
    "mask",
    [
        hw.full(),
        hw.causal() & hw.padding([L - 8, 3]),
        hw.dilated(3, 2, step=4),
        hw.window(11, 5) | hw.global_tokens([0, 40]),
        hw.window(11, 0) | hw.random_blocks(16, 1, seed=5),
        hw.causal() & hw.from_tensor(torch.randn(L, L), "q k"),
        hw.per_head([hw.causal(), *(hw.window(n, 0) for n in range(1, HEADS))]),
    ],
    ids=lambda mask: mask.name[:40],
)
@pytest.mark.parametrize("position", ACTING, ids=named)
def test_a_position_through_the_operator(position, mask, handed):
    call = Call.of(*tensors(L, L, dtype=torch.float32), mask=mask, position=position)
    assert not list(tiled.why_not(call))
    accept_with_gradients(call, tiled.run(call))
    assert len(handed) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("position", ACTING, ids=named)
def test_in_every_dtype_and_for_any_number_of_groups(position, groups, dtype, handed):
    qkv = tensors(67, L, groups=groups, dtype=dtype)
    call = Call.of(*qkv, mask=hw.window(19, 3), position=position)
    accept_with_gradients(call, tiled.run(call))
    assert len(handed) == 1


@pytest.mark.parametrize("position", ACTING, ids=named)
def test_with_an_offset(position, handed):
    qkv = tensors(67, L, dtype=torch.float32)
    call = Call.of(*qkv, mask=hw.causal() & hw.window(9, 0), position=position, offset=5)
    accept_with_gradients(call, tiled.run(call))
    assert len(handed) == 1


@pytest.mark.parametrize("frozen", ["q", "position"])
def test_only_what_wants_a_gradient_gets_one(frozen, handed):
    q, k, v = tensors(L, L, dtype=torch.float32)
    position = hw.Shaw(3, 11).requires_grad_(frozen != "position")
    call = Call.of(q.requires_grad_(frozen != "q"), k, v, mask=hw.causal(), position=position)
    tiled.run(call).output.sum().backward()
    assert (q.grad is None) == (frozen == "q")
    assert (position.table.grad is None) == (frozen == "position")
    assert k.grad is not None


def test_a_sink_keeps_the_gradients_of_a_query_that_sees_one_key(handed):
    """Beside a sink its weight is not 1, and hangs on the score."""
    q, k, v = tensors(37, 37, dtype=torch.float32)
    sinks = torch.zeros(HEADS)
    call = Call.of(q, k, v, mask=hw.window(0, 0), sinks=sinks)
    accept_with_gradients(call, tiled.run(call))
    assert len(handed) == 1


@pytest.mark.parametrize("kind", ["position", "values", "dropout", "bias"])
def test_nothing_as_large_as_the_scores_is_made_inside(kind, handed, monkeypatch):
    """But for what was given, and its gradient."""
    for name in ("SCORES", "MOVING", "DROPPED"):
        monkeypatch.setattr(forward, name, 1 << 14)
    length = 331
    q, k, _ = (t.detach() for t in tensors(length, length, dtype=torch.float32, batch=1))
    v = torch.randn_like(k)
    options = {"mask": hw.causal()}
    if kind == "bias":  # every head has one, and they all the same
        options["mask"] &= hw.from_tensor(torch.randn(length, length), "q k")
    else:
        options |= BESIDE[kind]()
    tiled.run(Call.of(q, k, v, **options))
    (arguments,) = handed
    given = backwards(arguments, grad_sums=False)
    with Largest() as largest, torch.no_grad():
        operator._init_fn(*arguments)
        operator_backward._init_fn(*given)
    most = length * length * (HEADS if kind == "bias" else 1)
    assert HEADS * length * 11 <= largest.numbers < most


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_it_compiles_whole(marked):
    """In a process of its own: the checks of shapes under pytest cannot be compiled."""
    here = Path(__file__).parent
    scripts = [str(here / name) for name in ("compiled.py", "compiled_masks.py")]
    command = [sys.executable, "-m", "pytest", "--noconftest", "-m", marked, *scripts]
    done = subprocess.run(
        [*command, "--show-capture=no", "--tb=short", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        cwd=here.parents[1],
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"position": OwnPosition(HEADS)},
            "under torch.compile OwnPosition cannot be written as integers and tensors",
        ),
        ({"mask": Own()}, "under torch.compile Own cannot be written as integers and tensors"),
    ],
)
def test_what_the_operator_does_not_take_is_refused_while_compiling(arguments, reason, monkeypatch):
    call = Call.of(*tensors(37, 37), **arguments)
    assert not list(tiled.why_not(call))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    (found,) = list(tiled.why_not(call))
    assert found.en == reason
    assert found.zh


class OwnRotary(hw.Rotary):
    """One that acts before the operator."""


def test_a_position_of_somebody_else_that_turns_q_and_k_only_is_taken(handed):
    position = OwnRotary(11, pairs="halves", rotary_dim=10)
    call = Call.of(*tensors(37, 37, dtype=torch.float32), mask=hw.window(5, 5), position=position)
    assert not list(tiled.why_not(call))
    accept_with_gradients(call, tiled.run(call))

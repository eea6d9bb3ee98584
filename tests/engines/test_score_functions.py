"""A soft cap, and a user's function of the scores, on every engine that supports them."""

from functools import partial

import jaxtyping
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention.flex_attention import flex_attention

import headwise as hw
from headwise.call import Call, Result
from headwise.engines import best, blockwise, eager, flex, lsh, sdpa, tiled
from headwise.engines.tiled.encoding import encode
from headwise.engines.tiled.operator import operator
from headwise.errors import BadType, BadValue, EngineRefused
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
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

ENGINES = (tiled, blockwise, eager)
NEEDS = ("logsumexp", "entropy", "received", "distance", "largest")
with torch.random.fork_rng():  # the same masks, whatever else is collected
    torch.manual_seed(0)
    MASKS = every_mask()


@pytest.fixture
def unchecked(monkeypatch):
    """Without the checks of shapes: compilers cannot trace them, and messages come first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def relative(score, b, h, q_idx, kv_idx):
    """It depends on the score and on each index, and is not linear."""
    return torch.sin(score) * (1 + h / 7) - (q_idx - kv_idx).abs() / 5 + b * (kv_idx % 2)


CHANGES = [
    pytest.param({"softcap": 1.3}, id="softcap"),
    pytest.param({"score_mod": relative}, id="score_mod"),
    pytest.param({"softcap": 0.7, "score_mod": relative}, id="both"),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mask", MASKS, ids=identity)
def test_output_and_gradients_are_those_of_the_oracle(mask, change):
    call = Call.of(*tensors(), mask=mask, **change)
    accept_with_gradients(call, *(engine.run(call) for engine in ENGINES))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "mask",
    [
        hw.causal() & hw.padding([130, 0]),
        hw.window(20, 9) | hw.global_tokens([0, 90]),
        hw.documents([30, 41, 60]),
    ],
    ids=identity,
)
def test_at_the_size_of_some_blocks(mask, dtype, change):
    call = Call.of(*tensors(131, 131, dtype=dtype), mask=mask, **change)
    accept_with_gradients(call, *(engine.run(call) for engine in ENGINES))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("position", every_position(), ids=named)
def test_with_every_position(position, change):
    """The bias of a position is added after the function."""
    call = Call.of(*tensors(37, 67), mask=hw.window(20, 9), position=position, **change)
    accept_with_gradients(call, *(engine.run(call) for engine in ENGINES))


def test_a_soft_cap_by_hand():
    """Scores 0 and 2 with a cap of 1: weights in the ratio 1 to exp(tanh 2)."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([0.0, 2.0], dtype=torch.float64).view(1, 1, 2, 1)
    v = torch.tensor([0.0, 1.0], dtype=torch.float64).view(1, 1, 2, 1)
    second = torch.tensor([[[[2.0]]]], dtype=torch.float64).tanh().sigmoid()
    accept(hw.attend(q, k, v, scale=1.0, softcap=1.0), second.float(), second)


def test_a_large_cap_changes_nothing_and_a_small_one_makes_the_mean():
    q, k, v = tensors(dtype=torch.float64)
    usual, capped = hw.attend(q, k, v), hw.attend(q, k, v, softcap=1e9)
    accept(capped, usual.float(), usual)
    mean = v.mean(2, keepdim=True).repeat_interleave(2, 1).expand(-1, -1, 5, -1)
    accept(hw.attend(q, k, v, softcap=1e-12), mean.float(), mean)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_and_statistics(change, grad):
    q, k, v = tensors(dtype=torch.float32)
    mask = hw.causal() & hw.padding([5, 0])
    with torch.set_grad_enabled(grad):
        one = eager.run(Call.of(q, k, v, mask=mask, need=("weights", *NEEDS), **change))
        other = blockwise.run(Call.of(q, k, v, mask=mask, need=NEEDS, **change))
    call = Call.of(q, k, v, mask=mask, **change)
    oracle, plain = reference(call), reference(call, torch.float32)
    accept(one.weights, plain.weights, oracle.weights)
    accept(one.logsumexp, plain.logsumexp, oracle.logsumexp)
    accept(other.logsumexp, plain.logsumexp, oracle.logsumexp)
    for name in ("entropy", "received", "distance", "largest"):
        exact = getattr(eager.run(Call.of(*(x.double() for x in (q, k, v)), mask=mask, need=[name],
                                          **change)), name)  # fmt: skip
        accept(getattr(other, name), getattr(one, name), exact)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("causal", [False, True])
def test_under_lsh(causal, change):
    q, k, v = (torch.randn(2, HEADS, 67, 8, requires_grad=True) for _ in range(3))
    mask = hw.lsh(3, chunk=8, seed=1)
    call = Call.of(q, k, v, mask=mask & hw.causal() if causal else mask, **change)
    accept_with_gradients(call, lsh.run(call))


@pytest.mark.parametrize("change", CHANGES)
def test_sinks_and_learned_biases_join_in(change):
    sinks = torch.randn(HEADS, requires_grad=True)
    bias = torch.randn(HEADS, 5, 7, requires_grad=True)
    q, k, v = tensors(dtype=torch.float32)
    mask = hw.causal() & hw.from_tensor(bias, "h q k")
    call = Call.of(q, k, v, mask=mask, sinks=sinks, need=["logsumexp"], **change)
    inputs = (q, k, v, sinks, bias)
    oracle, plain = reference(call), reference(call, torch.float32)
    right, near = (
        torch.autograd.grad(x.output.sum() + x.logsumexp.sum(), inputs) for x in (oracle, plain)
    )
    for engine in ENGINES:
        result = engine.run(call)
        accept(result.output, plain.output, oracle.output)
        own = torch.autograd.grad(result.output.sum() + result.logsumexp.sum(), inputs)
        for x, n, o in zip(own, near, right, strict=True):
            accept(x, n, o)


@pytest.mark.parametrize("change", CHANGES)
def test_dropout_is_the_same_in_every_engine(change):
    q, k, v = (t.detach() for t in tensors(37, 41, dtype=torch.float32))
    outputs = []
    for engine in ENGINES:
        torch.manual_seed(3)
        call = Call.of(q, k, v, mask=hw.window(9, 4), dropout=0.4, **change)
        outputs.append(engine.run(call).output.double())
    exact = outputs[-1]
    for output in outputs:
        accept(output.float(), exact.float(), exact)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("engine", ["tiled", "rows", "eager"])
@pytest.mark.parametrize("change", CHANGES)
def test_first_and_second_derivatives(check, engine, change):
    inputs = [torch.randn(2, 3, 11, 4).double().requires_grad_() for _ in range(3)]

    def output(*qkv):
        return hw.attend(*qkv, mask=hw.window(1, 2), engine=engine, **change)

    assert check(output, inputs, fast_mode=True)


@pytest.mark.parametrize("mask", [hw.window(5, 9), hw.padding([30, 0]) & hw.causal()], ids=identity)
def test_the_compiled_operator_has_a_soft_cap(mask):
    q, k, v = (torch.randn(2, HEADS, 37, 16, requires_grad=True) for _ in range(3))
    call = Call.of(q, k, v, mask=mask, softcap=0.8)
    written = encode(call.mask, None, None, None, call.softcap)
    given = (q, k, v, *written, call.shape.offset, call.scale, None)
    assert set(torch.library.opcheck(operator, given).values()) == {"SUCCESS"}
    accept_with_gradients(call, Result(operator(*given)[0]))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("offset", [None, 0, 3])
@pytest.mark.usefixtures("unchecked")
def test_flex_gives_the_same(monkeypatch, change, offset):
    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)
    q, k, v = (t.detach() for t in tensors(dtype=torch.float32))
    mask = hw.causal() & hw.from_tensor(torch.randn(5, 7), "q k")
    call = Call.of(q, k, v, mask=mask, offset=offset, position=hw.ALiBi(HEADS), **change)
    with torch.no_grad():
        assert not list(flex.why_not(call))
        output = flex.run(call).output
    accept(output, reference(call, torch.float32).output, reference(call).output)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_score_mod_means_what_it_means_in_torch():
    """With fewer queries than keys too, where the function counts queries from 0."""
    q, k, v = (torch.randn(2, 3, n, 8) for n in (5, 11, 11))
    right = flex_attention(q.double(), k.double(), v.double(), score_mod=relative)
    for engine in ("tiled", "rows", "eager"):
        found = hw.attend(q, k, v, score_mod=relative, engine=engine)
        accept(found, flex_attention(q, k, v, score_mod=relative), right)


class Table(nn.Module):
    """A learned number for each head and distance."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(HEADS, 12))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.table[h, (q_idx - kv_idx).abs()]


def by_table(score, b, h, q_idx, kv_idx, *, table):
    return score + table[h, (q_idx - kv_idx).abs()]


@pytest.mark.parametrize("way", ["module", "method", "partial", "closure"])
def test_a_learned_score_mod_gets_its_gradient(way):
    module, (q, k, v) = Table(), tensors(dtype=torch.float32)
    ways = {
        "module": module,
        "method": module.forward,
        "partial": partial(by_table, table=module.table),
        "closure": lambda *given: by_table(*given, table=module.table),
    }
    call = Call.of(q, k, v, mask=hw.window(2, 2), score_mod=ways[way])
    for engine in (tiled, lsh):
        assert any("requires a gradient" in reason.en for reason in engine.why_not(call))
    inputs = (q, k, v, module.table)
    right = torch.autograd.grad(reference(call).output.sum(), inputs)
    near = torch.autograd.grad(reference(call, torch.float32).output.sum(), inputs)
    for engine in (eager, blockwise):
        own = torch.autograd.grad(engine.run(call).output.sum(), inputs)
        for x, n, o in zip(own, near, right, strict=True):
            accept(x, n, o)
    with torch.no_grad():
        assert not list(tiled.why_not(call))


def test_the_plan_says_why_sdpa_is_not_taken_and_long_calls_make_no_square():
    q, k, v = (torch.randn(1, 2, 2048, 16, requires_grad=True) for _ in range(3))
    for change in ({"softcap": 30.0}, {"score_mod": relative}):
        call = Call.of(q, k, v, mask=hw.causal(), **change)
        assert best(call) is tiled
        (reason,) = sdpa.why_not(call)
        assert "soft cap" in reason.en or "score_mod" in reason.en
        plan = hw.plan(q, k, v, mask=hw.causal(), **change)
        assert plan.engine == "tiled"
        assert reason in plan.refused["sdpa"]
        with Largest() as largest:
            hw.attend(q, k, v, mask=hw.causal(), **change).sum().backward()
        assert largest.numbers < 2048 * 2048 * 2 * 0.6
    short = Call.of(*tensors(), softcap=2.0)
    assert best(short) is eager


@pytest.mark.usefixtures("unchecked")
def test_under_compile_a_soft_cap_stays():
    q, k, v = (torch.randn(1, 2, 17, 8) for _ in range(3))
    for change in ({"softcap": 0.5}, {"score_mod": relative}):
        torch._dynamo.reset()
        compiled = torch.compile(partial(hw.attend, mask=hw.causal(), **change), backend="eager")
        right = hw.attend(q.double(), k.double(), v.double(), mask=hw.causal(), **change)
        accept(compiled(q, k, v), hw.attend(q, k, v, mask=hw.causal(), **change), right)


def constant(score, b, h, q_idx, kv_idx):
    """A function that ignores the scores."""
    return torch.zeros_like(score)


def test_a_function_that_ignores_the_scores_gives_the_mean_and_no_gradient():
    q, k, v = tensors(dtype=torch.float32)
    mean = v.mean(2, keepdim=True).repeat_interleave(2, 1).expand(-1, -1, 5, -1).double()
    for engine in ("tiled", "rows", "eager"):
        output = hw.attend(q, k, v, score_mod=constant, engine=engine)
        accept(output, mean.float(), mean)
        grads = torch.autograd.grad(output.sum(), (q, k), allow_unused=True)
        assert all(grad is None or not grad.any() for grad in grads)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", [hw.attend, hw.plan])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"softcap": 0}, BadValue, "softcap: expected a positive finite number.*, got 0; Gemma"),
        ({"softcap": -1.0}, BadValue, "softcap: .*got -1.0"),
        ({"softcap": float("nan")}, BadValue, "softcap: .*got nan"),
        ({"softcap": True}, BadValue, "softcap: .*got True"),
        ({"softcap": "no"}, BadValue, "softcap: .*got 'no'"),
        ({"score_mod": 3}, BadType, "score_mod: expected a function .*, got int"),
    ],
)
def test_wrong_arguments_are_named_with_the_way_out(function, options, error, message):
    with pytest.raises(error, match=message) as caught:
        function(*tensors(), **options)
    assert caught.value.text.zh != caught.value.text.en


@pytest.mark.parametrize(
    ("score_mod", "error", "message"),
    [
        (lambda s, *_: s > 0, BadType, "score_mod: .* got torch.bool"),
        (lambda *_: None, BadType, "score_mod: .* got NoneType"),
        (
            lambda s, *_: s[..., :1],
            BadValue,
            r"score_mod: expected the function to return scores of shape \(2, 6, 5, 7\)",
        ),
    ],
)
def test_a_wrong_result_of_a_score_mod_is_named(score_mod, error, message):
    with torch.no_grad(), pytest.raises(error, match=message):
        hw.attend(*tensors(), score_mod=score_mod, engine="eager")


def test_sdpa_by_name_refuses():
    with pytest.raises(EngineRefused, match="PyTorch's kernel has no soft cap"):
        hw.attend(*tensors(), softcap=2.0, engine="sdpa")

"""The flex engine on a CPU, forward only.

Most tests run PyTorch's function without compilation, with the same score and mask functions and
the same block mask. The slow tests compile it, as for users.
"""

import pytest
import torch
from jaxtyping import config
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, eager, flex
from headwise.errors import EngineRefused
from headwise.masks import Mask
from headwise.masks.tiles import Tiles
from headwise.positions import Position
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import DIM, HEADS, every_mask, identity, named, tensors

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture
def uncompiled(monkeypatch):
    """PyTorch's function as it stands."""
    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)


@pytest.fixture(autouse=True)
def forward_only():
    """Without gradients, and without the checks of shapes: the compiler cannot trace them."""
    config.update("jaxtyping_disable", True)
    with torch.no_grad():
        yield
    config.update("jaxtyping_disable", False)


def inputs(*sizes: int, **kinds) -> list[Tensor]:
    return [t.detach() for t in tensors(*sizes, **{"dtype": torch.float32} | kinds)]


def accepted(call: Call) -> None:
    """Assert that the engine takes the call and gives what the oracle gives."""
    assert list(flex.why_not(call)) == []
    result = flex.run(call)
    oracle, plain = reference(call), reference(call, call.q.dtype)
    accept(result.output, plain.output, oracle.output)
    blind = ~oracle.allowed.any(-1)
    assert not result.output[blind].any()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_every_mask_gives_the_output_of_the_oracle(mask):
    accepted(Call.of(*inputs(), mask=mask))


LONG = [
    hw.full(),
    hw.causal(),
    hw.causal() & hw.window(150, 0) & hw.padding([200, 0]),
    hw.window(20, 5) | hw.global_tokens([3, 140]),
    ~hw.window(140, 140),
    hw.padding([128, 299]),
]
"""Masks whose tiles of 128 are empty, mixed and full at 307 queries and 311 keys."""

SCORED = [
    hw.ALiBi(HEADS),
    hw.T5Bias(HEADS, num_buckets=8, max_distance=5),
    hw.T5Bias(HEADS, num_buckets=6, max_distance=7, bidirectional=False),
    hw.Rotary(DIM, pairs="halves", rotary_dim=DIM - 1),
]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("mask", LONG, ids=identity)
@pytest.mark.parametrize("sizes", [(307, 311), (311, 307), (256, 256)])
def test_empty_and_full_blocks_are_those_of_the_mask(mask, sizes):
    if sizes[1] != 311 and mask is LONG[-1]:
        mask = hw.padding([128, 255])
    accepted(Call.of(*inputs(*sizes), mask=mask))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("groups", [1, 3, HEADS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_grouped_heads_in_every_dtype(groups, dtype):
    accepted(Call.of(*inputs(groups=groups, dtype=dtype), mask=hw.causal()))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("position", SCORED, ids=named)
@pytest.mark.parametrize("offset", [None, 0, 3, -2])
def test_positions_by_distance_and_rotary(position, offset):
    accepted(Call.of(*inputs(), mask=hw.causal(), position=position, offset=offset))
    accepted(Call.of(*inputs(7, 5), position=position, offset=offset))


@pytest.mark.usefixtures("uncompiled")
def test_a_bias_of_the_mask_and_one_of_the_position_add():
    mask = hw.from_tensor(torch.randn(HEADS, 5, 7), "h q k") & hw.causal()
    accepted(Call.of(*inputs(), mask=mask, position=hw.ALiBi(HEADS), scale=0.7))
    accepted(Call.of(*inputs(dtype=torch.bfloat16), mask=mask))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_hidden_keys_never_touch_the_result(junk):
    q, k, v = inputs()
    dirty_k, dirty_v = k.clone(), v.clone()
    for sample, length in enumerate((3, 0)):
        dirty_k[sample, :, length:] = junk
        dirty_v[sample, :, length:] = junk
    mask = hw.padding([3, 0])
    clean = flex.run(Call.of(q, k, v, mask=mask)).output
    assert torch.equal(clean, flex.run(Call.of(q, dirty_k, dirty_v, mask=mask)).output)


@pytest.mark.usefixtures("uncompiled")
def test_a_real_nan_is_not_hidden():
    q, k, v = inputs(7, 7)
    v[0, 0, 3, 0] = torch.nan
    assert flex.run(Call.of(q, k, v)).output[0, 0, :, 0].isnan().all()


@pytest.mark.usefixtures("uncompiled")
def test_the_callers_tensors_stay_as_they_were_and_views_are_taken():
    x = torch.randn(2, 7, HEADS, DIM).transpose(1, 2)
    before = x.clone()
    accepted(Call.of(x, x, x, mask=hw.padding([3, 0]) & hw.causal()))
    assert torch.equal(x, before)


@pytest.mark.usefixtures("uncompiled")
def test_attend_runs_it_by_name():
    q, k, v = inputs()
    call = Call.of(q, k, v, mask=hw.causal())
    output = hw.attend(q, k, v, mask=hw.causal(), engine="flex")
    accept(output, reference(call, torch.float32).output, reference(call).output)


def test_it_stands_behind_an_engine_that_takes_every_call():
    assert ENGINES.index(eager) < ENGINES.index(flex) == len(ENGINES) - 1
    assert list(eager.why_not(Call.of(*inputs(), dropout=0.5, need=["weights", "logsumexp"]))) == []
    assert hw.plan(*inputs(), mask=hw.causal() & hw.window(1, 0)).engine != "flex"


def test_the_map_of_blocks_is_that_of_the_tiles():
    call = Call.of(*inputs(307, 311), mask=hw.causal() & hw.window(150, 0))
    made = flex._block_mask(call, Tiles.of(call.mask, call.shape)).to_dense()[0, 0]
    allowed = call.allowed()[0, 0]
    for i, row in enumerate(made.tolist()):
        for j, looked_at in enumerate(row):
            part = allowed[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
            assert bool(looked_at) == bool(part.any())


class OfRow(Mask):
    """A rule that counts the pairs it is evaluated for."""

    def __init__(self) -> None:
        self.pairs = 0

    def rule(self, b, h, q, k):
        del b, h
        self.pairs += torch.broadcast_shapes(q.shape, k.shape).numel()
        return k <= q

    def tile(self, q, k):
        return hw.causal().tile(q, k)

    @property
    def name(self) -> str:
        return "of_row()"


def test_making_the_map_evaluates_the_mixed_tiles_only():
    length, mask = 128 * 17, OfRow()
    x = torch.zeros(1).expand(1, 1, length, 4)
    call = Call.of(x, x, x, mask=mask)
    tiles = Tiles.of(call.mask, call.shape)
    tiles.seen()
    flex._block_mask(call, tiles)
    assert mask.pairs == 17 * 128**2  # the diagonal of 17 x 17 tiles


@pytest.mark.parametrize(
    ("given", "change", "reason"),
    [
        ({"need": ["weights"]}, {}, "it does not return weights"),
        ({"need": ["logsumexp"]}, {}, "it does not return logsumexp on a CPU"),
        ({"dropout": 0.5}, {}, "it does not support dropout"),
        ({}, {"dtype": torch.float64}, "it does not compute in torch.float64"),
        ({}, {"batch": 0}, "a size is 0"),
        ({"position": hw.Shaw(3, DIM)}, {}, "the bias of Shaw may depend on more than the head"),
        ({"position": hw.Shaw(3, DIM, value_dim=13)}, {}, "Shaw adds to the values"),
        (
            {"position": hw.TransformerXL(HEADS, DIM, embed_dim=5)},
            {},
            "the bias of TransformerXL may depend on more than the head",
        ),
    ],
)
def test_what_it_cannot_run_is_refused_with_the_reason(given, change, reason):
    q, k, v = inputs(**change)
    assert any(text.en.startswith(reason) for text in list(flex.why_not(Call.of(q, k, v, **given))))
    assert all(text.zh != text.en for text in list(flex.why_not(Call.of(q, k, v, **given))))
    with pytest.raises(EngineRefused, match=reason):
        hw.attend(q, k, v, engine="flex", **given)


def learning() -> list[tuple[str, dict]]:
    """Calls in which something wants a gradient."""
    q, k, v = inputs()
    leaf = {"q": q, "k": k, "v": v}
    calls = [(name, leaf | {name: leaf[name].clone().requires_grad_()}) for name in "qkv"]
    bias = torch.randn(5, 7, requires_grad=True)
    return [
        *calls,
        ("T5Bias", leaf | {"position": hw.T5Bias(HEADS, num_buckets=8, max_distance=5)}),
        ("mask", leaf | {"mask": hw.from_tensor(bias, "q k")}),
    ]


@pytest.mark.parametrize(("what", "given"), learning(), ids=[name for name, _ in learning()])
def test_a_gradient_is_refused_on_a_cpu_whoever_wants_it(what, given):
    with torch.enable_grad(), pytest.raises(EngineRefused, match=r"use torch\.no_grad\(\)"):
        hw.attend(**given, engine="flex")
    assert list(flex.why_not(Call.of(**given))) == []


def test_a_cpu_without_avx2_and_an_unknown_device_are_refused(monkeypatch):
    call = Call.of(*inputs())
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert [text.en for text in list(flex.why_not(call))] == ["it needs AVX2 on a CPU"]
    x = torch.zeros(2, HEADS, 5, DIM, device="meta")
    call = Call.of(x, x, x, mask=hw.causal())
    assert "it does not run on meta" in [text.en for text in list(flex.why_not(call))]


def test_an_old_torch_returns_no_logsumexp(monkeypatch):
    monkeypatch.setattr(flex, "_aux", lambda: None)
    call = Call.of(*inputs(), need=["logsumexp"])
    reasons = [text.en for text in flex._against_gpu(call)]
    assert reasons == ["it returns logsumexp only with torch 2.9 or later"]


@pytest.mark.slow
@pytest.mark.parametrize("mask", every_mask(), ids=identity)
def test_compiled_every_mask_gives_the_output_of_the_oracle(mask):
    accepted(Call.of(*inputs(), mask=mask))


@pytest.mark.slow
@pytest.mark.parametrize("mask", LONG, ids=identity)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compiled_empty_and_full_blocks(mask, dtype):
    accepted(Call.of(*inputs(307, 311, dtype=dtype), mask=mask))


@pytest.mark.slow
@pytest.mark.parametrize("position", SCORED, ids=named)
def test_compiled_positions(position: Position):
    mask = hw.from_tensor(torch.randn(HEADS, 5, 7), "h q k") & hw.causal()
    accepted(Call.of(*inputs(), mask=mask, position=position))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(7, 5), (1, 7), (7, 1), (1, 1), (1, 200)])
@pytest.mark.parametrize("groups", [1, HEADS])
def test_compiled_every_pair_of_lengths(sizes, groups):
    accepted(Call.of(*inputs(*sizes, groups=groups), mask=hw.causal()))


@pytest.mark.slow
def test_compiled_once_for_calls_that_are_alike():
    assert flex._compiled() is flex._compiled()
    accepted(Call.of(*inputs(), mask=hw.window(3, 2)))
    with torch.compiler.set_stance("fail_on_recompile"):
        accepted(Call.of(*inputs(), mask=hw.window(3, 2)))

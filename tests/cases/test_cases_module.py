"""Reported faults of attention modules, one test for each kind.

The name of a test contains the number of its case. In PyTorch's arguments, True means blocked.
"""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadValue
from headwise.nn import INITS
from headwise.verify.oracle.tolerance import accept
from tests.nn.oracle import check, inputs

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)
WAYS = (("auto", True), ("auto", False), ("eager", True), ("eager", False), ("sdpa", False))
"""The engine, and whether weights are asked for; sdpa does not return them."""

PATHS = {
    "train": (True, nullcontext),
    "eval": (False, nullcontext),
    "no_grad": (False, torch.no_grad),
    "inference": (False, torch.inference_mode),
}

over_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
over_ways = pytest.mark.parametrize(("engine", "need"), WAYS)
over_paths = pytest.mark.parametrize("path", PATHS)
INF = torch.inf


def finite_gradients(output: Tensor, *more: Tensor) -> None:
    """Assert that a loss on the output gives every leaf a finite gradient."""
    output.float().square().sum().backward()
    for leaf in more:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


def blind_masks(blocked: Tensor) -> dict[str, dict[str, object]]:
    """The ways to say that a query sees nothing, for blocked (B, H, L, S)."""
    batch, heads, queries, keys = blocked.shape
    floats = torch.zeros(blocked.shape)
    lowest = torch.finfo(torch.float32).min
    return {
        "bool": {"attn_mask": blocked},
        "-inf": {"attn_mask": floats.masked_fill(blocked, -INF)},
        "finfo.min": {"attn_mask": floats.masked_fill(blocked, lowest)},
        "batch-major": {"attn_mask": blocked.reshape(batch * heads, queries, keys)},
        "padding": {"key_padding_mask": blocked[:, 0, 0], "attn_mask": blocked},
    }


# --- blind rows and NaN ---


@over_ways
@over_dtypes
@over_paths
def test_case_01_rows_blind_by_a_float_mask_and_padding_together(engine, need, dtype, path):
    if engine == "sdpa" and dtype in HALVES:
        pytest.skip("sdpa refuses a bias in half precision, and says so")
    training, mode = PATHS[path]
    module = hw.MultiheadAttention(1, 1, dtype=dtype, engine=engine).train(training)
    x = torch.randn(4, 2, 1, dtype=dtype, requires_grad=True)
    padded = torch.tensor([[False] * 4, [False, False, True, True]])
    near = torch.ones(4, 4).tril().triu(-1) > 0
    floats = torch.zeros(4, 4).masked_fill(~near, -INF)
    with mode():
        output, weights = module(x, x, x, padded, need, floats)
    assert output[:3].any()
    assert not output[3, 1].any()  # sample 1's row 3 sees keys 2 and 3, both padding
    assert weights is None or not weights[1, 3].any()
    if mode is nullcontext:
        finite_gradients(output[:2], x, *module.parameters())
    distinct = [x.transpose(0, 1).detach() for _ in range(3)]
    result = (output.transpose(0, 1).detach(), weights)
    check(module, distinct, result, near & ~padded[:, None, None])


@over_ways
@pytest.mark.parametrize("kind", ["bool", "-inf", "finfo.min", "batch-major", "padding"])
@pytest.mark.parametrize("row", [0, 4, slice(0, 5)], ids=str)
def test_case_01_any_blind_row_of_any_mask(engine, need, kind, row):
    blocked = torch.rand(2, 3, 5, 7) > 0.7
    blocked[1, :, row] = True
    arguments = blind_masks(blocked)[kind]
    module = hw.MultiheadAttention(12, 3, batch_first=True, engine=engine)
    given = inputs(module)
    output, weights = module(*given, need_weights=need, **arguments)
    assert not output[1, row].any()
    padded = blocked[:, :1, :1] if kind == "padding" else torch.tensor(False)
    check(module, given, (output, weights), ~(blocked | padded))
    finite_gradients(output, *given, *module.parameters())


@over_ways
@over_dtypes
def test_case_02_a_head_that_sees_nothing_contributes_nothing(engine, need, dtype):
    module = hw.MultiheadAttention(3, 3, batch_first=True, engine=engine, dtype=dtype)
    nn.init.normal_(module.out_proj.bias)
    given = inputs(module, 1, 5, 5)
    blocked = torch.zeros(3, 5, 5, dtype=torch.bool)
    blocked[2] = True
    output, weights = module(*given, None, need, blocked, False)
    check(module, given, (output, weights), ~blocked)
    finite_gradients(output, *given, *module.parameters())
    with torch.no_grad():
        module.out_proj.weight[:, 2] = 0  # what that head would be multiplied by
    check(module, given, (output.detach(), None))


@pytest.mark.parametrize("engine", ["auto", "eager", "sdpa"])
@pytest.mark.parametrize("norm_first", [True, False])
@over_paths
def test_case_03_an_encoder_layer_stays_finite(engine, norm_first, path):
    training, mode = PATHS[path]
    layer = nn.TransformerEncoderLayer(12, 2, 17, batch_first=True, norm_first=norm_first)
    layer.self_attn = hw.MultiheadAttention(12, 2, batch_first=True, engine=engine)
    x = torch.randn(3, 5, 12, requires_grad=True)
    padded = torch.arange(5) >= torch.tensor([2, 5, 0])[:, None]
    with mode():
        output = layer.train(training)(x, src_key_padding_mask=padded)
    assert output.isfinite().all()
    if mode is nullcontext:
        finite_gradients(output, x, *layer.parameters())


@over_ways
@over_dtypes
@over_paths
def test_case_04_a_sample_of_length_0_is_zeros(engine, need, dtype, path):
    training, mode = PATHS[path]
    module = hw.MultiheadAttention(12, 3, batch_first=True, engine=engine, dtype=dtype)
    lengths = torch.tensor([5, 3, 1, 0])
    padded = torch.arange(5) >= lengths[:, None]
    given = inputs(module, 4, 5, 5)
    standing = hw.MultiheadAttention(
        12, 3, batch_first=True, engine=engine, dtype=dtype, mask=hw.padding([5, 3, 1, 0])
    )
    standing.load_state_dict(module.state_dict())
    for each, arguments in ((module, {"key_padding_mask": padded}), (standing, {})):
        with mode():
            output, weights = each.train(training)(*given, need_weights=need, **arguments)
        assert output[:3].any(-1).all()
        assert not output[3].any()
        check(each, given, (output, weights), ~padded[:, None, None])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("need", [True, False])
@over_paths
def test_case_05_two_masks_of_the_lowest_number_do_not_overflow(dtype, need, path):
    training, mode = PATHS[path]
    module = hw.MultiheadAttention(12, 3, batch_first=True, dtype=dtype).train(training)
    given = inputs(module)
    blocked, padded = torch.rand(5, 7) > 0.5, torch.rand(2, 7) > 0.5
    blocked[2] = True
    lowest = torch.finfo(dtype).min
    with mode():
        result = module(
            *given,
            torch.zeros(2, 7, dtype=dtype).masked_fill(padded, lowest),
            need,
            torch.zeros(5, 7, dtype=dtype).masked_fill(blocked, lowest),
        )
    assert not result[0][:, 2].any()
    check(module, given, result, ~blocked & ~padded[:, None, None])


@over_dtypes
@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize("argument", ["attn_mask", "key_padding_mask"])
@over_paths
def test_case_06_a_blind_row_of_the_lowest_number_is_0_and_no_mean(dtype, need, argument, path):
    training, mode = PATHS[path]
    module = hw.MultiheadAttention(12, 3, batch_first=True, dtype=dtype).train(training)
    given = inputs(module)
    blocked = torch.zeros((5, 7) if argument == "attn_mask" else (2, 7), dtype=torch.bool)
    blocked[1] = True
    floats = torch.zeros(blocked.shape, dtype=dtype).masked_fill(blocked, torch.finfo(dtype).min)
    with mode():
        result = module(*given, need_weights=need, **{argument: floats})
    assert not (result[0][:, 1] if argument == "attn_mask" else result[0][1]).any()
    allowed = ~blocked if argument == "attn_mask" else ~blocked[:, None, None]
    check(module, given, result, allowed)


@over_ways
@over_dtypes
@pytest.mark.parametrize("bad", [1e4, torch.nan, INF])
def test_case_07_left_padding_under_a_causal_window_never_shows_its_filler(
    engine, need, dtype, bad
):
    real = torch.arange(11).expand(2, 11) >= 4
    mask = hw.window(3, 0) & hw.causal() & hw.padding(real)
    q = torch.randn(2, 3, 11, 5, dtype=dtype)
    k, v = (x.masked_fill(~real[:, None, :, None], bad) for x in (q.flip(2), q.flip(3)))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    wanted = ["weights"] if need else []
    result = hw.attend(*leaves, mask=mask, engine=engine, need=wanted)
    zero = [q, *(x.masked_fill(~real[:, None, :, None], 0.0) for x in (k, v))]
    assert torch.equal(
        result.output, hw.attend(*zero, mask=mask, engine=engine, need=wanted).output
    )
    assert not result.output[:, :, :4].any()  # their four keys are padding
    assert result.output[:, :, 4:].any(-1).all()
    finite_gradients(result.output, *leaves)


@over_ways
@pytest.mark.parametrize("bad", [1e4, torch.nan, INF])
def test_case_07_the_same_in_a_module(engine, need, bad):
    module = hw.MultiheadAttention(
        12, 3, batch_first=True, engine=engine, mask=hw.window(3, 0) & hw.causal()
    )
    q, k, v = inputs(module, 2, 11, 11)
    padded = torch.arange(11).expand(2, 11) < 4
    fill = [x.detach().masked_fill(padded[..., None], bad).requires_grad_() for x in (k, v)]
    output, weights = module(q, *fill, padded, need)
    assert not output[:, :4].any()
    place = torch.arange(11)
    near = (place <= place[:, None]) & (place >= place[:, None] - 3) & (place >= 4)
    clean = [q, *(x.detach().masked_fill(padded[..., None], 0.0).requires_grad_() for x in (k, v))]
    check(module, [x.detach() for x in clean], (output.detach(), weights), near)
    finite_gradients(output, q, *fill, *module.parameters())


# --- polarity, dtype, shape ---


@over_dtypes
@pytest.mark.parametrize("argument", ["attn_mask", "key_padding_mask"])
def test_case_09_floats_of_0_and_1_are_refused(dtype, argument):
    module = hw.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(5, 5, 12)
    ones = torch.ones(5, 5, dtype=dtype).tril()
    with pytest.raises(BadValue, match=rf"{argument}: .*only 0 and 1; .*pass \.bool\(\)"):
        module(x, x, x, **{argument: ones})
    with pytest.raises(BadValue, match="only 0 and 1"):
        hw.MultiheadAttention(12, 3, mask=hw.from_tensor(ones))
    module(x, x, x, **{argument: ones.bool()})
    module(x, x, x, **{argument: ones * 0.5})


@over_ways
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("floats", [True, False])
def test_case_12_a_padding_given_as_the_mask_is_never_read_silently(engine, need, left, floats):
    module = hw.MultiheadAttention(12, 3, batch_first=True, engine=engine)
    given = inputs(module, 4, 4, 7)
    padded = torch.arange(7) >= torch.tensor([7, 3, 5, 1])[:, None]
    padded = padded.flip(1) if left else padded
    mask = torch.zeros(4, 7).masked_fill(padded, -INF) if floats else padded
    with pytest.warns(UserWarning, match=r"looks like padding .*as key_padding_mask"):
        warned = module(*given, need_weights=need, attn_mask=mask)
    said = module(*given, need_weights=need, attn_mask=mask[None, None])  # no warning
    assert torch.equal(warned[0], said[0])
    check(module, given, said, ~padded)
    check(module, given, module(*given, mask, need), ~padded[:, None, None])


def test_case_12_where_the_shape_tells_it_is_an_error():
    module = hw.MultiheadAttention(12, 3, batch_first=True)
    with pytest.raises(BadValue, match=r"padding \(B, S\) = \(2, 7\) as key_padding_mask"):
        module(*inputs(module), attn_mask=torch.zeros(2, 7, dtype=torch.bool))


# --- causal and alignment ---


@over_ways
@over_dtypes
@pytest.mark.parametrize(
    ("queries", "keys", "seen"), [(1, 8, [8]), (2, 6, [5, 6]), (5, 2, [0, 0, 0, 1, 2])]
)
@pytest.mark.parametrize("standing", [True, False])
def test_case_17_causal_is_lower_right(engine, need, dtype, queries, keys, seen, standing):
    mask = hw.causal() if standing else None
    module = hw.MultiheadAttention(12, 3, batch_first=True, engine=engine, dtype=dtype, mask=mask)
    given = inputs(module, 2, queries, keys)
    output, weights = module(*given, need_weights=need, is_causal=not standing)
    allowed = torch.arange(keys) < torch.tensor(seen)[:, None]
    check(module, given, (output, weights), allowed)
    for row, count in enumerate(seen):
        assert output[:, row].any() == (count > 0)
        assert weights is None or torch.equal(weights[:, row] > 0, allowed[row].expand(2, keys))
    finite_gradients(output, *given, *module.parameters())


# --- weights, paths, modules ---


@over_ways
@over_dtypes
@pytest.mark.parametrize("kind", [{}, {"add_bias_kv": True}, {"num_kv_heads": 1}], ids=str)
def test_case_44_eval_twice_is_equal_and_training_differs(engine, need, dtype, kind):
    module = hw.MultiheadAttention(
        12, 3, dropout=0.5, batch_first=True, engine=engine, dtype=dtype, **kind
    )
    given = inputs(module, 5, 11, 13)
    first, second = (module.eval()(*given, need_weights=need)[0] for _ in range(2))
    assert torch.equal(first, second)
    check(module, given, (first, None))
    dropped = module.train()(*given, need_weights=need)[0]
    assert not torch.equal(dropped, first)
    assert torch.equal(module.eval()(*given, need_weights=need)[0], first)


@over_ways
@over_dtypes
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [{}, {"add_zero_attn": True}, {"mask": hw.causal()}], ids=str)
def test_case_46_a_sample_does_not_depend_on_the_others(engine, need, dtype, batch_first, kind):
    module = hw.MultiheadAttention(
        12, 3, batch_first=batch_first, engine=engine, dtype=dtype, **kind
    )
    axis = 0 if batch_first else 1
    given = [x.detach() for x in inputs(module, 5, 5, 5)]  # where B = L = S shapes cannot tell
    changed = [x.clone() for x in given]
    for x in changed:
        x.select(axis, 3).normal_()
    before, after = (module(*x, need_weights=need)[0] for x in (given, changed))
    assert torch.equal(before.select(axis, 0), after.select(axis, 0))
    assert not torch.equal(before.select(axis, 3), after.select(axis, 3))
    alone = module(*(x.narrow(axis, 0, 1) for x in given), need_weights=need)[0]
    first = [x.narrow(axis, 0, 1).transpose(0, axis) for x in given]
    causal = torch.ones(5, 5).tril().bool() if "mask" in kind else None
    check(module, first, (alone.transpose(0, axis).detach(), None), causal)


def test_case_47_the_spread_of_each_initialisation_at_256():
    """Within five standard errors of what is documented: .0442 packed, .0625 apart."""
    packed, apart = (2 / (256 + 3 * 256)) ** 0.5, (2 / (256 + 256)) ** 0.5
    for init in INITS:
        module = hw.MultiheadAttention(256, 8, init=init)
        right = packed if init == "torch" else apart
        error = right / (2 * 256 * 256) ** 0.5
        for name in ("q_proj", "k_proj", "v_proj"):
            assert abs(getattr(module, name).weight.std().item() - right) < 5 * error


@over_dtypes
def test_case_47_orthogonal_is_so_for_each_projection(dtype):
    module = hw.MultiheadAttention(12, 3, init="orthogonal", dtype=dtype)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        weight = getattr(module, name).weight.float()
        rounded = torch.linalg.qr(torch.randn(12, 12))[0].to(dtype).float()
        accept((weight @ weight.T).to(dtype), (rounded @ rounded.T).to(dtype), torch.eye(12))


@over_ways
@pytest.mark.parametrize("sizes", [(640, 4, 256), (12, 5, 7), (7, 2, 1), (1, 1, 11)], ids=str)
@pytest.mark.parametrize("groups", [1, None])
def test_case_48_the_size_of_a_head_is_free(engine, need, sizes, groups):
    embed_dim, heads, head_dim = sizes
    module = hw.MultiheadAttention(
        embed_dim, heads, head_dim=head_dim, num_kv_heads=groups, batch_first=True, engine=engine
    )
    assert module.q_proj.weight.shape == (heads * head_dim, embed_dim)
    assert module.out_proj.weight.shape == (embed_dim, heads * head_dim)
    given = inputs(module)
    check(module, given, module(*given, need_weights=need))


EXTRAS = ({}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"num_kv_heads": 1})


@over_dtypes
@over_paths
@pytest.mark.parametrize("kind", EXTRAS, ids=str)
@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0), (2, 0, 0)], ids=str)
def test_case_51_empty_batches_and_sequences(dtype, path, kind, sizes):
    batch, queries, keys = sizes
    training, mode = PATHS[path]
    module = hw.MultiheadAttention(12, 3, batch_first=True, dtype=dtype, **kind)
    extra = len({"add_bias_kv", "add_zero_attn"} & set(kind))
    masks = (
        {},
        {"is_causal": True},
        {"key_padding_mask": torch.zeros(batch, keys, dtype=torch.bool)},
        {"attn_mask": torch.zeros(queries, keys)},
        {"attn_mask": torch.zeros(batch * 3, queries, keys, dtype=torch.bool)},
    )
    for mask, need in itertools.product(masks, (True, False)):
        given = inputs(module, batch, queries, keys)
        with mode():
            output, weights = module.train(training)(*given, need_weights=need, **mask)
        assert output.shape == (batch, queries, 12)
        assert weights is None or weights.shape == (batch, queries, keys + extra)
        assert output.isfinite().all()
        assert extra or keys or not output.any()
        if mode is nullcontext:
            finite_gradients(output, *given)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 1, 7), (1, 5, 1), (2, 1, 1)], ids=str)
@over_ways
@over_dtypes
def test_acceptance_9_one_token_one_head_one_key(sizes, engine, need, dtype):
    module = hw.MultiheadAttention(
        5, 1, batch_first=True, engine=engine, dtype=dtype, mask=hw.window(0, 0)
    )
    given = inputs(module, *sizes)
    output, weights = module(*given, need_weights=need)
    _, queries, keys = sizes
    place = torch.arange(queries)[:, None] + keys - queries
    check(module, given, (output, weights), place == torch.arange(keys))

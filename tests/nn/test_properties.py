"""Properties that hold for all inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import headwise as hw
from headwise.verify.oracle.tolerance import accept
from tests.nn.oracle import Truth, exact, inputs

seeds = st.integers(0, 10_000)
sizes = st.integers(1, 7)
flags = st.booleans()
few = settings(max_examples=20)


def module(seed: int, **options: object) -> hw.MultiheadAttention:
    torch.manual_seed(seed)
    return hw.MultiheadAttention(
        **{"embed_dim": 12, "num_heads": 3, "batch_first": True, **options}
    )


@few
@given(seeds, sizes, sizes, sizes, flags)
def test_permuting_the_batch_permutes_the_output(seed, batch, queries, keys, need):
    layer = module(seed)
    tensors = inputs(layer, batch, queries, keys)
    padded = torch.rand(batch, keys) > 0.6
    order = torch.randperm(batch)
    mixed = layer(*(x[order] for x in tensors), padded[order], need)
    straight = layer(*tensors, padded, need)
    truth = exact(layer, tensors, ~padded[:, None, None])
    plain = exact(layer, tensors, ~padded[:, None, None], dtype=torch.float32)
    accept(mixed[0], plain.output[order], truth.output[order])
    accept(straight[0], plain.output, truth.output)


@few
@given(seeds, sizes, st.integers(2, 7), st.data(), flags)
def test_a_later_token_leaves_earlier_outputs_bit_equal(seed, batch, length, data, need):
    layer = module(seed, mask=hw.causal())
    x = torch.randn(batch, length, 12)
    token = data.draw(st.integers(1, length - 1))
    changed = x.clone()
    changed[:, token] = torch.randn(batch, 12)
    before, after = (layer(y, y, y, need_weights=need)[0][:, :token] for y in (x, changed))
    assert torch.equal(before, after)


@few
@given(seeds, sizes, sizes, sizes, sizes, flags)
def test_added_padding_changes_nothing(seed, batch, queries, keys, added, need):
    layer = module(seed)
    q, k, v = inputs(layer, batch, queries, keys)
    padded = torch.arange(keys + added).expand(batch, -1) >= keys
    filler = torch.randn(batch, added, 12)
    longer = layer(q, torch.cat((k, filler), 1), torch.cat((v, filler), 1), padded, need)
    truth = Truth(layer, [q, k, v])
    truth.hold(longer[0], None)
    if need:
        assert not longer[1][..., keys:].any()
        truth.hold(longer[0], longer[1][..., :keys])


@few
@given(seeds, sizes, sizes, sizes, flags, st.sampled_from([torch.nan, torch.inf, -torch.inf]))
def test_padded_keys_never_touch_the_result_or_a_gradient(seed, batch, queries, keys, need, bad):
    """Bit for bit what padding of zeros gives, whatever stands there."""
    lengths = torch.randint(0, keys + 1, (batch,))
    padded = torch.arange(keys) >= lengths[:, None]
    for options, arguments in (
        ({}, {"key_padding_mask": padded}),
        ({}, {"key_padding_mask": torch.zeros(batch, keys).masked_fill(padded, -torch.inf)}),
        ({}, {"attn_mask": padded[:, None, None].expand(-1, -1, queries, -1)}),
        ({"mask": hw.padding(lengths.tolist()) & hw.causal()}, {}),
    ):
        layer = module(seed, add_bias_kv=True, **options)
        q, k, v = inputs(layer, batch, queries, keys)
        results = []
        for filler in (0.0, bad):
            column = padded[..., None]
            leaves = [q.detach(), k.masked_fill(column, filler), v.masked_fill(column, filler)]
            leaves = [x.detach().requires_grad_() for x in leaves]
            output, _ = layer(*leaves, need_weights=need, **arguments)
            wanted = [*leaves, *layer.parameters()]
            results.append((output, *torch.autograd.grad(output.square().sum(), wanted)))
        for zero, found in zip(*results, strict=True):
            assert torch.equal(zero, found)


@few
@given(seeds, sizes, sizes, sizes)
def test_the_output_is_the_sum_of_single_heads_through_slices_of_the_output_projection(
    seed, batch, queries, keys
):
    layer = module(seed)
    nn.init.normal_(layer.out_proj.bias)
    tensors = inputs(layer, batch, queries, keys)
    total = layer.out_proj.bias.expand(batch, queries, 12)
    for head in range(3):
        rows = slice(4 * head, 4 * head + 4)
        single = module(0, num_heads=1, head_dim=4)
        with torch.no_grad():
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(single, name).weight.copy_(getattr(layer, name).weight[rows])
                getattr(single, name).bias.copy_(getattr(layer, name).bias[rows])
            single.out_proj.weight.copy_(layer.out_proj.weight[:, rows])
            single.out_proj.bias.zero_()
        total = total + single(*tensors)[0]
    truth = Truth(layer, tensors)
    accept(total, truth.plain.output, truth.oracle.output)


@pytest.mark.parametrize("need", [True, False])
def test_as_many_key_value_heads_as_heads_is_plain_multi_head(need):
    plain, grouped = module(1), module(2, num_kv_heads=3)
    grouped.load_state_dict(plain.state_dict())
    tensors = inputs(plain)
    found, right = (each(*tensors, need_weights=need) for each in (grouped, plain))
    assert torch.equal(found[0], right[0])


@few
@given(seeds, st.sampled_from([1, 2, 3]), flags)
def test_grouped_heads_are_plain_heads_that_share(seed, groups, need):
    """Key/value head g serves the query heads g·H/G and following."""
    grouped = module(seed, num_heads=6, num_kv_heads=groups)
    plain = module(seed, num_heads=6)
    with torch.no_grad():
        for name in ("q_proj", "out_proj", "k_proj", "v_proj"):
            own, shared = getattr(plain, name), getattr(grouped, name)
            times = own.out_features // shared.out_features
            for part in ("weight", "bias"):
                heads = getattr(shared, part).unflatten(0, (-1, 2))
                repeated = heads.repeat_interleave(times, 0).flatten(0, 1)
                getattr(own, part).copy_(repeated)
    tensors = inputs(plain)
    truth = Truth(plain, tensors)
    output, weights = grouped(*tensors, need_weights=need, average_attn_weights=False)
    accept(output, truth.plain.output, truth.oracle.output)
    if need:
        truth.hold(truth.plain.output.detach(), weights)

"""An (L, S) mask that repeats one row costs no more than this row."""

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.masks.patterns.by_length import Padding
from headwise.masks.patterns.from_tensor import FromTensor, unexpanded
from headwise.nn.torch_compat import from_torch, real_keys
from headwise.shapes import AttentionShape
from tests.examples import Largest, accept_with_gradients

L, EMBED, HEADS = 4099, 16, 2


def largest_of(**masks):
    """The most numbers made at once by a module whose own mask is a window."""
    torch.manual_seed(0)
    layer = hw.MultiheadAttention(EMBED, HEADS, batch_first=True, mask=hw.window(64, 64))
    x = torch.randn(1, L, EMBED)
    with Largest() as largest, torch.no_grad():
        layer(x, x, x, need_weights=False, **masks)
    return largest.numbers


def row(kind):
    """(1, L): floats for the last keys, 0 for the others."""
    values = torch.zeros(1, L)
    values[:, -9:] = {"hidden": -torch.inf, "lowest": torch.finfo().min, "bias": 0.5}[kind]
    return values


@pytest.mark.parametrize("kind", ["hidden", "lowest", "bias"])
def test_a_float_padding_makes_nothing_as_large_as_the_scores(kind):
    padding = row(kind)
    boolean = largest_of(key_padding_mask=padding != 0)
    found = largest_of(key_padding_mask=padding)
    assert found <= boolean if kind != "bias" else found < L * L / 16


@pytest.mark.parametrize("kind", ["hidden", "bias", "boolean"])
def test_an_expanded_attention_mask_makes_nothing_as_large_as_the_scores(kind):
    mask = row("hidden") != 0 if kind == "boolean" else row(kind)
    assert largest_of(attn_mask=mask.expand(L, L)) < L * L / 16


@pytest.mark.parametrize("kind", ["hidden", "bias"])
def test_attend_with_an_expanded_float_mask(kind):
    q, k, v = torch.randn(3, 1, 2, L, 8).unbind()
    with Largest() as largest, torch.no_grad():
        mask = hw.window(64, 64) & hw.from_tensor(row(kind)[0].expand(L, L))
        hw.attend(q, k, v, mask=mask)
    assert largest.numbers < L * L / 16


@pytest.mark.parametrize("kind", ["hidden", "bias", "boolean"])
@pytest.mark.parametrize("axis", [0, 1])
def test_it_means_what_the_written_mask_means(kind, axis):
    """Whichever of its axes repeats."""
    q, k, v = (t.detach().requires_grad_() for t in torch.randn(3, 2, HEADS, 23, 8).unbind())
    values = torch.zeros(23)
    values[3:7] = 0.5 if kind == "bias" else -torch.inf
    values = values == 0 if kind == "boolean" else values
    mask = (values if axis == 0 else values[:, None]).expand(23, 23)
    written = Call.of(q, k, v, mask=hw.causal() & hw.from_tensor(mask.clone(), "q k"))
    for engine in ("eager", "tiled", "rows"):
        found = hw.attend(
            *(q, k, v),
            mask=hw.causal() & hw.from_tensor(mask, "q k"),
            need=["logsumexp"],
            engine=engine,
        )
        accept_with_gradients(written, found)


@pytest.mark.parametrize("numbers", ["hidden", "lowest"])
def test_a_float_padding_of_hidden_keys_is_a_padding(numbers):
    shape = AttentionShape(1, HEADS, 5, L, L - 5, torch.device("cpu"))
    (mask,) = from_torch(None, row(numbers), False, shape, True)
    assert isinstance(mask, Padding)
    assert mask.resolve(shape).dense(shape).sum() == 5 * (L - 9)


def test_a_float_padding_that_learns_stays_a_bias():
    shape = AttentionShape(1, HEADS, 5, L, L - 5, torch.device("cpu"))
    (mask,) = from_torch(None, row("hidden").requires_grad_(), False, shape, True)
    assert isinstance(mask, FromTensor)
    assert mask.tensor.requires_grad


def test_keys_that_an_expanded_mask_hides():
    shape = AttentionShape(1, HEADS, 3, 4, 1, torch.device("cpu"))
    by_key = torch.tensor([0.0, -torch.inf, 0.0, 1.0]).expand(3, 4)
    by_query = torch.tensor([0.0, -torch.inf, 0.0])[:, None].expand(3, 4)
    for tensor, expected in ((by_key, [1, 0, 1, 1]), (by_query, [1, 1, 1, 1])):
        keys = real_keys(hw.from_tensor(tensor, "q k").resolve(shape), shape)
        assert keys is not None
        assert keys.int().tolist() == [expected]


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_every_number_once(shape):
    held = torch.randn(shape)
    assert torch.equal(unexpanded(held.expand(5, 5)), held)
    assert torch.equal(unexpanded(held), held)

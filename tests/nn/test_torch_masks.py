"""PyTorch's mask arguments: the meaning of each shape, and rejected masks."""

import warnings

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn.torch_compat import PaddingOrMask, from_torch, intersect, real_keys
from headwise.shapes import AttentionShape

B, H, L, S = 2, 3, 5, 7


def shape_of(batch: int = B, heads: int = H, queries: int = L, keys: int = S) -> AttentionShape:
    return AttentionShape(batch, heads, queries, keys, keys - queries, torch.device("cpu"))


def dense(*given: object, outer: AttentionShape | None = None, batched: bool = True) -> Tensor:
    """What the arguments of forward mean, written out: True = may attend, (B, H, L, S)."""
    outer = outer or shape_of()
    mask = intersect(from_torch(*given, outer, batched)).resolve(outer)
    return mask.dense(outer).expand(outer.batch, outer.heads, -1, -1)


@pytest.mark.parametrize(
    "shape", [(L, S), (B * H, L, S), (B, L, S), (1, L, S), (B, 1, L, S), (1, H, L, S), (B, H, L, S)]
)
@pytest.mark.parametrize("floats", [True, False])
def test_each_shape_is_batch_major_and_true_is_blocked(shape, floats):
    blocked = torch.rand(shape) > 0.5
    given = torch.zeros(shape).masked_fill(blocked, -torch.inf) if floats else blocked
    found = dense(given, None, False)
    for b in range(B):
        for h in range(H):
            if len(shape) == 2:
                row = blocked
            elif len(shape) == 4:
                row = blocked[b % shape[0], h % shape[1]]
            else:
                row = blocked[{B * H: b * H + h, B: b, 1: 0}[shape[0]]]
            assert torch.equal(found[b, h], ~row)


def test_unbatched_shapes():
    outer = shape_of(batch=1)
    each, padded = torch.rand(H, L, S) > 0.5, torch.rand(S) > 0.5
    found = dense(each, padded, False, outer=outer, batched=False)
    assert torch.equal(found[0], ~each & ~padded)


@pytest.mark.parametrize("heads", [1, H])
def test_one_head_or_one_sample_reads_a_three_axis_mask_one_way(heads):
    blocked = torch.rand(heads, L, S) > 0.5
    found = dense(blocked, None, False, outer=shape_of(batch=1, heads=heads))
    assert torch.equal(found[0], ~blocked)
    blocked = torch.rand(4, L, S) > 0.5
    assert torch.equal(
        dense(blocked, None, False, outer=shape_of(batch=4, heads=1))[:, 0], ~blocked
    )


def test_as_many_samples_as_heads_is_ambiguous():
    outer, blocked = shape_of(batch=3), torch.rand(3, L, S) > 0.5
    with pytest.raises(BadValue, match=r"is ambiguous, since B = H; .*\[:, None\].*\[None\]"):
        dense(blocked, None, False, outer=outer)
    assert torch.equal(dense(blocked[:, None], None, False, outer=outer)[:, 1], ~blocked)
    assert torch.equal(dense(blocked[None], None, False, outer=outer)[1], ~blocked)


@pytest.mark.parametrize(
    "shape",
    [(S, L), (L,), (H, L, S), (4, L, S), (B, L, L), (H, 1, L, S), (B, B, L, S), (1, B, H, L, S)],
)
def test_a_shape_that_fits_nothing_lists_what_would(shape):
    message = r"attn_mask: expected \(L, S\) = \(5, 7\), \(B\*H, L, S\) = \(6, 5, 7\).*key_padding"
    with pytest.raises(BadValue, match=message):
        dense(torch.zeros(shape).bool(), None, False)


@pytest.mark.parametrize("floats", [True, False])
def test_padding(floats):
    padded = torch.rand(B, S) > 0.5
    given = torch.zeros(B, S).masked_fill(padded, -torch.inf) if floats else padded
    assert torch.equal(dense(None, given, False)[:, 2, 3], ~padded)


@pytest.mark.parametrize(
    ("shape", "batched", "message"),
    [
        (
            (S, B),
            True,
            r"key_padding_mask: expected \(B, S\) = \(2, 7\), .* got \(7, 2\);.*attn_mask",
        ),
        ((S,), True, r"expected \(B, S\)"),
        ((B, L), True, r"expected \(B, S\)"),
        ((B, S), False, r"expected \(S,\) = \(7,\), .* got \(2, 7\)"),
    ],
)
def test_a_padding_of_another_shape_is_refused(shape, batched, message):
    with pytest.raises(BadValue, match=message):
        dense(None, torch.zeros(shape).bool(), False, batched=batched)


@pytest.mark.parametrize("queries", [1, L, S, S + 4])
def test_causal_alone_is_the_mask_that_engines_know(queries):
    outer = shape_of(queries=queries)
    assert intersect(from_torch(None, None, True, outer, True)) == hw.causal()
    assert intersect(from_torch(None, None, False, outer, True)) == hw.full()
    right = torch.ones(queries, S).tril(S - queries).bool()
    assert torch.equal(dense(None, None, True, outer=outer)[1, 1], right)


def test_all_hold_together():
    blocked, padded = torch.rand(L, S) > 0.7, torch.rand(B, S) > 0.7
    causal = torch.ones(L, S).tril(S - L).bool()
    found = dense(blocked, padded, True)
    assert torch.equal(found[:, 0], ~blocked & ~padded[:, None] & causal)


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (hw.causal(), BadType, r"expected a tensor or None, got Causal; .*mask=\.\.\."),
        ([True], BadType, "expected a tensor or None, got list"),
        (
            torch.ones(L, S, dtype=torch.uint8),
            BadType,
            r"expected dtype bool \(True = blocked\) .*uint8",
        ),
        (torch.ones(L, S).tril(), BadValue, "holds only 0 and 1"),
    ],
)
def test_what_is_no_mask_is_refused_by_name(name, mask, error, message):
    given = (mask, None, False) if name == "attn_mask" else (None, mask, False)
    with pytest.raises(error, match=f"{name}: .*{message}") as caught:
        from_torch(*given, shape_of(), True)
    assert caught.value.text.zh != caught.value.text.en


def test_only_a_padding_or_a_tensor_tells_its_hidden_keys():
    outer = shape_of()
    assert real_keys(hw.full(), outer) is None
    assert real_keys(hw.causal() & hw.window(1, 0), outer) is None
    assert real_keys(~hw.padding([3, 4]), outer) is None
    lengths = torch.arange(S) < torch.tensor([[3], [5]])
    for mask in (
        hw.padding([3, 5]),
        hw.causal() & hw.padding(lengths),
        hw.padding(lengths) & hw.full(),
    ):
        assert torch.equal(real_keys(mask.resolve(outer), outer), lengths)
    one = torch.ones(L, S, dtype=torch.bool)
    one[:, 4] = False
    both = (hw.padding([3, 5]) & hw.from_tensor(one, "q k")).resolve(outer)
    assert torch.equal(real_keys(both, outer), lengths & (torch.arange(S) != 4))
    none = shape_of(queries=0)
    assert real_keys(hw.padding([3, 5]).resolve(none), none) is None


# --- a padding given as the attention mask ---


def warned(mask: Tensor, batch: int) -> bool:
    outer = shape_of(batch=batch, queries=mask.shape[0], keys=mask.shape[1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_torch(mask, None, False, outer, True)
    for each in caught:
        assert issubclass(each.category, PaddingOrMask)
        assert each.message.text.zh != each.message.text.en
    return bool(caught)


def lengths(*real: int, keys: int = 4, left: bool = False) -> Tensor:
    """PyTorch's padding (B, S), True = padding."""
    padded = torch.arange(keys) >= torch.tensor(real)[:, None]
    return padded.flip(1) if left else padded


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("real", [(4, 2), (4, 2, 3, 1), (2, 4, 4), (4, 3, 3, 1, 0), (0, 4)])
def test_what_looks_like_padding_is_warned_about(real, left):
    mask = lengths(*real, left=left)
    assert warned(mask, len(real))
    assert warned(torch.zeros(mask.shape).masked_fill(mask, -torch.inf), len(real))
    assert not warned(mask, len(real) + 1)  # L is not B: there is one reading


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(4, 4).triu(1).bool(),
        torch.ones(4, 4).tril(-1).bool(),
        torch.ones(4, 6).triu(3).bool(),
        torch.ones(4, 3).triu(0).bool(),
        torch.zeros(4, 4).bool(),
        lengths(2, 2, 2),  # both readings are the same
        torch.tensor([[False, True, False], [False, False, True], [True, False, False]]),
        torch.tensor([[False, True, False], [False, False, False], [True, False, True]]),
        torch.randn(4, 4),
        torch.zeros(4, 4).masked_fill(lengths(4, 2, 3, 1), -torch.inf) + torch.randn(4, 4),
    ],
    ids=str,
)
def test_what_cannot_be_padding_is_not(mask):
    assert not warned(mask, mask.shape[0])


def test_the_warning_points_at_the_line_that_called_the_module():
    module = hw.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(3, 3, 4)
    with pytest.warns(UserWarning, match="key_padding_mask") as caught:
        module(x, x, x, attn_mask=lengths(3, 1, 2, keys=3))
    assert caught[0].filename == __file__

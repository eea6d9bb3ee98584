"""Reported faults: arguments of a call other than its tensors, and tensors that are not dense."""

import pytest
import torch

import headwise as hw
from headwise.call import NEEDS
from headwise.errors import BadType, BadValue

SQUARE = torch.randn(1, 2, 3, 3)


@pytest.mark.parametrize("need", [5, 2.5, True, object(), torch.ones(2), iter(NEEDS)])
def test_what_is_no_collection_of_words_is_refused(need):
    with pytest.raises(BadType, match=r"^need: expected a collection of names, got"):
        hw.attend(SQUARE, SQUARE, SQUARE, need=need)


@pytest.mark.parametrize("need", [[5], {"weight"}, ("weights", None), [["weights"]], {2: 3}])
def test_a_word_that_is_none_is_refused(need):
    with pytest.raises(BadValue, match=r"^need: unknown .*; expected one of 'weights'"):
        hw.attend(SQUARE, SQUARE, SQUARE, need=need)


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys])
def test_every_collection_of_words_is_taken(kind):
    result = hw.attend(SQUARE, SQUARE, SQUARE, need=kind(NEEDS))
    assert all(getattr(result, word) is not None for word in NEEDS)


@pytest.mark.parametrize(
    "scale",
    [
        10**400,
        -(10**400),
        pytest.param(1 << 16610, id="huge"),
        float("inf"),
        float("nan"),
        "a",
        True,
    ],
)
def test_a_scale_is_a_finite_number(scale):
    with pytest.raises(BadValue, match=r"^scale: expected a finite number"):
        hw.attend(SQUARE, SQUARE, SQUARE, scale=scale)


SPARSE = [
    pytest.param(lambda t: t.to_sparse(), id="coo"),
    pytest.param(lambda t: t.to_sparse_csr(), id="csr"),
]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("made", SPARSE)
def test_sparse_queries_keys_and_values_are_refused(made, place):
    given = [SQUARE] * 3
    given[place] = made(SQUARE)
    with pytest.raises(BadType, match=rf"^{'qkv'[place]}: expected a dense tensor, .* to_dense"):
        hw.attend(*given)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("made", SPARSE)
@pytest.mark.parametrize(
    "mask",
    [
        lambda t: t,
        hw.from_tensor,
        hw.padding,
        hw.documents,
        hw.global_tokens,
        hw.prefix,
        lambda t: hw.block_sparse(t, 2),
    ],
)
def test_sparse_masks_are_refused(made, mask):
    pairs = torch.ones(3, 3).bool()
    with pytest.raises(BadType, match=r"expected a dense tensor, got torch\.sparse_"):
        hw.attend(SQUARE, SQUARE, SQUARE, mask=mask(made(pairs)))


def test_sparse_sinks_are_refused():
    with pytest.raises(BadType, match=r"^sinks: expected a dense tensor"):
        hw.attend(SQUARE, SQUARE, SQUARE, sinks=torch.zeros(2).to_sparse())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(layout):
    rows = torch.nested.nested_tensor([SQUARE[0], SQUARE[0]], layout=layout)
    with pytest.raises(BadType, match=r"got a nested tensor; use to_padded_tensor\(0.0\)"):
        hw.attend(rows, rows, rows)

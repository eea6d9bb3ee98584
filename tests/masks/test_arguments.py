"""Every argument of every mask: too large, of a wrong type, or not fitting the call."""

import inspect
import sys
from typing import get_type_hints

import jaxtyping
import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.errors import BadType, BadValue, HeadwiseError
from headwise.masks import MASKS, Mask, Tile, every
from headwise.shapes import LARGEST, AttentionShape

CPU = torch.device("cpu")
FITTING = {
    "appended": {"mask": hw.causal(), "count": 1},
    "block_sparse": {"layout": torch.ones(2, 2).bool(), "block": 2},
    "causal": {},
    "chunked": {"size": 2},
    "dilated": {"left": 1, "right": 1, "step": 2},
    "documents": {"parts": [2, 3], "key_parts": [1, 4]},
    "every": {"step": 2},
    "fixed": {"block": 3, "summary": 1},
    "from_tensor": {"tensor": torch.ones(2, 2).bool(), "layout": "q k"},
    "full": {},
    "global_tokens": {"chosen": [1], "symmetric": True},
    "lsh": {"rounds": 1, "seed": 0, "chunk": 2, "buckets": 2, "own": True},
    "padding": {"real": [2]},
    "per_head": {"masks": [hw.causal()]},
    "prefix": {"lengths": 2},
    "random_blocks": {"block": 2, "count": 1, "seed": 0, "heads": 1},
    "strided": {"stride": 2},
    "tree": {"parents": [-1, 0]},
    "window": {"left": 1, "right": 1},
    "window2d": {"vertical": 1, "horizontal": 1, "width": 3},
}
"""Arguments that each mask takes, one at a time put in another's place below."""

ARGUMENTS = [
    pytest.param(mask, argument, id=f"{mask.__name__}-{argument}")
    for mask in MASKS
    for argument in inspect.signature(mask).parameters
]
LISTED = {"parts", "key_parts", "parents", "chosen", "real", "lengths", "buckets"}
JUNK = (None, 2.5, "no", b"no", object(), {2.5}, hw.causal(), {"a": 1}, [None], [[1, 2]], [2.5])
SPARSE = torch.eye(2).bool().to_sparse()


@pytest.fixture
def doors_unguarded(monkeypatch):
    """The type checker that tests run under would answer in the place of the message."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def made(mask, argument: str, value: object) -> Mask:
    return mask(**FITTING[mask.__name__] | {argument: value})


def test_each_argument_of_each_mask_has_one_that_fits():
    for mask in MASKS:
        assert list(inspect.signature(mask).parameters) == list(FITTING[mask.__name__])
        mask(**FITTING[mask.__name__])


@pytest.mark.parametrize(
    "value", [LARGEST + 1, sys.maxsize, 2**63, 2**70, pytest.param(1 << 16610, id="huge")]
)
@pytest.mark.parametrize(("mask", "argument"), ARGUMENTS)
def test_a_number_beyond_the_largest_is_refused_by_name(mask, argument, value):
    hint = str(get_type_hints(mask)[argument])
    if "int" not in hint:
        pytest.skip("takes no number")
    given = [value] if argument in LISTED else value
    with pytest.raises(BadValue, match=f"^{mask.__name__}: ") as caught:
        made(mask, argument, given)
    assert str(LARGEST) in str(caught.value)
    assert "必须" in caught.value.text.zh


@pytest.mark.parametrize("value", JUNK)
@pytest.mark.parametrize(("mask", "argument"), ARGUMENTS)
def test_no_other_type_is_taken_in_silence_nor_ends_in_a_bare_error(mask, argument, value):
    usual = FITTING[mask.__name__][argument]
    optional = value is None and type(None) in getattr(
        get_type_hints(mask)[argument], "__args__", ()
    )
    if optional or (isinstance(value, Mask) and isinstance(usual, Mask)):
        pytest.skip("fits")
    with pytest.raises(HeadwiseError):
        made(mask, argument, value)


@pytest.mark.parametrize("number", [1, 0])
@pytest.mark.parametrize(("mask", "argument"), ARGUMENTS)
def test_a_number_is_no_boolean_and_no_list(mask, argument, number):
    usual = FITTING[mask.__name__][argument]
    if isinstance(usual, int) and not isinstance(usual, bool):
        pytest.skip("takes a number")
    with pytest.raises(HeadwiseError):
        made(mask, argument, number)


@pytest.mark.parametrize(("mask", "argument"), ARGUMENTS)
def test_a_sparse_tensor_is_refused(mask, argument):
    with pytest.raises(HeadwiseError):
        made(mask, argument, SPARSE)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32, torch.uint64])
@pytest.mark.parametrize("mask", [hw.padding, hw.prefix, hw.documents, hw.global_tokens])
def test_a_tensor_of_numbers_is_of_integers(mask, dtype):
    with pytest.raises(BadType, match=f"^{mask.__name__}: expected"):
        mask(torch.ones(5, dtype=dtype))


EVERYTHING = [
    hw.window(LARGEST, LARGEST),
    hw.dilated(LARGEST, LARGEST, step=1),
    hw.fixed(LARGEST, LARGEST) | ~hw.causal(),
    hw.prefix(LARGEST),
    hw.padding([LARGEST]),
    hw.strided(LARGEST) | ~hw.causal(),
]
ITSELF = [hw.dilated(LARGEST, LARGEST, step=LARGEST), every(LARGEST)]


@pytest.mark.parametrize("mask", EVERYTHING + ITSELF, ids=repr)
@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (1, 1)])
def test_the_largest_number_reaches_all_of_a_sequence(mask, queries, keys):
    shape = AttentionShape(1, 1, queries, keys, keys - queries, CPU)
    allowed = mask.dense(shape)[0, 0]
    own = torch.ones(queries, keys).tril(keys - queries).triu(keys - queries).bool()
    assert torch.equal(allowed, own if mask in ITSELF else torch.ones_like(own))
    kind = mask.resolve(shape).tile(range(shape.offset, shape.offset + queries), range(keys))
    assert kind is not Tile.EMPTY
    assert kind is not Tile.FULL or bool(allowed.all())


NUMBERS = (0, 1, 3, LARGEST - 1, LARGEST)


@pytest.mark.parametrize("offset", [-LARGEST, -3, 0, LARGEST])
@pytest.mark.parametrize("left", NUMBERS)
@pytest.mark.parametrize("right", NUMBERS)
@pytest.mark.parametrize("step", [1, 2, LARGEST])
def test_reach_is_that_of_whole_numbers_without_end(left, right, step, offset):
    shape = AttentionShape(1, 1, 3, 5, offset, CPU)
    pairs = [(i + offset, j) for i in range(3) for j in range(5)]
    wanted = {
        hw.window(left, right): [-right <= i - j <= left for i, j in pairs],
        hw.dilated(left, right, step=step): [
            -right * step <= i - j <= left * step and (i - j) % step == 0 for i, j in pairs
        ],
    }
    for mask, expected in wanted.items():
        assert mask.dense(shape).flatten().tolist() == expected
        kind = mask.tile(range(offset, offset + 3), range(5))
        assert kind is not Tile.EMPTY or not any(expected)
        assert kind is not Tile.FULL or all(expected)


@pytest.mark.parametrize(
    "offset",
    [LARGEST + 1, -LARGEST - 1, sys.maxsize, 2**70, -(2**70), pytest.param(1 << 16610, id="huge")],
)
def test_an_offset_beyond_the_largest_is_refused(offset):
    q = torch.randn(1, 1, 2, 3)
    with pytest.raises(BadValue, match=r"^offset: must be from -2147483647 to 2147483647"):
        hw.attend(q, q, q, mask=hw.causal(), offset=offset)


@pytest.mark.parametrize("seed", [0, LARGEST])
@pytest.mark.parametrize(
    "make", [lambda s: hw.random_blocks(2, 1, seed=s), lambda s: hw.lsh(1, seed=s)]
)
def test_every_seed_that_is_taken_draws(make, seed):
    assert "■" in make(seed).draw(5)


def test_a_window_without_end_is_full_attention():
    q, k, v = torch.randn(3, 1, 2, 7, 3)
    whole = hw.attend(q, k, v, engine="eager")
    reach = hw.window(LARGEST, LARGEST)
    assert torch.equal(hw.attend(q, k, v, mask=reach, engine="eager"), whole)


@pytest.mark.parametrize("other", [torch.ones(3, 3).bool(), torch.ones(3, 3), True, 1, "a", [1]])
@pytest.mark.parametrize("combined", [lambda a, b: a & b, lambda a, b: a | b])
def test_what_is_no_mask_is_refused_on_either_side(other, combined):
    for pair in ((hw.causal(), other), (other, hw.causal())):
        with pytest.raises(BadType, match=r"only masks compose with & \| ~, got"):
            combined(*pair)


@pytest.mark.usefixtures("doors_unguarded")
@pytest.mark.parametrize("size", [-1, 2.5, True, "a", 2**70])
def test_a_drawing_has_a_size(size):
    for given in ((size,), (3, size)):
        with pytest.raises(HeadwiseError, match=r"^draw: (queries|keys) must be"):
            hw.causal().draw(*given)


def test_a_generator_is_read_once():
    assert repr(hw.per_head(mask for mask in (hw.causal(), hw.full()))) == (
        "per_head([causal(), full()])"
    )


def called(mask: Mask, batch: int, keys: int) -> Tensor:
    return mask.dense(AttentionShape(batch, 1, keys, keys, 0, CPU))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (hw.prefix([1, 2, 3]), "^prefix: made for a batch of 3"),
        (hw.prefix(torch.ones(1, 4).bool()), "^prefix: made for 4 keys"),
        (hw.padding([1, 2, 3]), "^padding: made for a batch of 3"),
        (hw.documents([3, 3]), "the lengths sum to 6, but must sum to Lk = 7$"),
        (hw.documents(torch.zeros(6).long()), "assign a document number to every key$"),
    ],
    ids=repr,
)
def test_a_call_of_another_size_is_answered_by_the_mask_that_was_made(mask, message):
    with pytest.raises(BadValue, match=message):
        called(mask, 2, 7)


def test_a_tensor_mask_keeps_nan_in_hidden_keys_out_of_the_hash():
    """Also a mask of the distance, and what is hidden from a float mask."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 29, 5)
    real = torch.arange(29) < 17
    bias = torch.zeros(29, 29).masked_fill(~real, -torch.inf)
    spoilt = [torch.where(real[:, None], rows, torch.nan) for rows in (k, v)]
    hiding = [
        (hw.padding(real[None]), {}),
        (hw.from_tensor(real.expand(29, 29)), {}),
        (hw.from_tensor(bias), {}),
        (hw.padding([20]) & hw.from_tensor(real.expand(29, 29)) & hw.causal(), {}),
        (hw.causal(), {"offset": -12}),
        (hw.causal() & hw.window(9, 9), {"offset": -12}),
    ]
    for mask, place in hiding:
        hashing = mask & hw.lsh(2, chunk=4, seed=0)
        clean, other = (
            hw.attend(q, *rows, mask=hashing, engine="eager", **place) for rows in ((k, v), spoilt)
        )
        assert torch.equal(clean, other), mask

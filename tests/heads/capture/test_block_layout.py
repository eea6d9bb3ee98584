"""Layers with the same mask share the allowed pairs of a text; layers with other masks do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise.call import Call
from headwise.heads.capture import block_weights, recorder
from headwise.heads.capture.block_weights import AttentionTerms, BlockLayout, LayoutCache
from headwise.heads.capture.capture_options import CaptureOptions
from headwise.heads.capture.from_tensors import measure, terms_of_call
from headwise.heads.capture.pattern import CallPattern, Pattern, TensorPattern
from headwise.heads.capture.token_positions import TokenPositions
from headwise.heads.metrics import MEASURED
from headwise.heads.names import Head, Layer
from headwise.masks import causal, documents, from_tensor, full, window
from headwise.verify.oracle.tolerance import accept

LENGTH = 7
ASKED = CaptureOptions(MEASURED, separators=frozenset({3}))
CPU = torch.device("cpu")


def terms(pattern: Pattern, length: int = LENGTH, heads: int = 2) -> AttentionTerms:
    make = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, heads, length, 5, generator=make) for _ in "qkv")
    return AttentionTerms(q=q, k=k, v=v, scale=1.0, pattern=pattern)


def place(length: int = LENGTH) -> TokenPositions:
    tokens = torch.arange(length).expand(2, -1) % 4
    real = torch.ones(2, length, dtype=torch.bool)
    return TokenPositions(0, real, real, tokens)


def tensor_pattern(**changed: object) -> TensorPattern:
    return TensorPattern(**({"keys": LENGTH, "device": CPU, "causal": True} | changed))  # type: ignore[arg-type]


def call_pattern(mask: object) -> CallPattern:
    q = torch.zeros(2, 2, LENGTH, 5)
    return CallPattern(Call.of(q, q, q, mask=mask))  # type: ignore[arg-type]


MASK = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (tensor_pattern(), tensor_pattern()),
        (tensor_pattern(), tensor_pattern(bias=torch.randn(1, 1, LENGTH, LENGTH))),
        (tensor_pattern(mask=MASK), tensor_pattern(mask=MASK)),
        (call_pattern(causal() & window(2, 0)), call_pattern(causal() & window(2, 0))),
    ],
    ids=["causal", "another bias", "one mask", "masks that are equal"],
)
def test_layers_with_one_mask_share_one_layout(low: Pattern, high: Pattern) -> None:
    layouts = LayoutCache(ASKED)
    first = layouts.of(terms(low), place())
    assert layouts.of(terms(high), place()) is first
    layouts.forget()
    assert layouts.of(terms(low), place()) is not first


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (tensor_pattern(), tensor_pattern(causal=False)),
        (tensor_pattern(mask=MASK), tensor_pattern(mask=MASK.clone())),
        (tensor_pattern(), tensor_pattern(mask=MASK)),
        (call_pattern(causal()), call_pattern(causal() & window(2, 0))),
        (call_pattern(documents([3, 4])), call_pattern(documents([4, 3]))),
        (call_pattern(full()), tensor_pattern(causal=False)),
    ],
    ids=["order", "another mask", "a mask", "a window", "documents", "another kind"],
)
def test_layers_with_another_mask_do_not(low: Pattern, high: Pattern) -> None:
    layouts = LayoutCache(ASKED)
    assert layouts.of(terms(low), place()) is not layouts.of(terms(high), place())


def test_a_mask_that_was_written_to_since_is_another() -> None:
    mask, layouts = MASK.clone(), LayoutCache(ASKED)
    first = layouts.of(terms(tensor_pattern(mask=mask)), place())
    mask[..., -1, 0] = False
    second = layouts.of(terms(tensor_pattern(mask=mask)), place())
    assert first.groups[-1].context.choices.sum() == second.groups[-1].context.choices.sum() + 2


PLACES: tuple[Callable[[TokenPositions], TokenPositions], ...] = (
    lambda given: replace(given, offset=None),
    lambda given: replace(given, offset=-1),
    lambda given: replace(given, queries=torch.arange(LENGTH).expand(2, -1) % 2 == 0),
    lambda given: replace(given, keys=torch.arange(LENGTH).expand(2, -1) > 0),
    lambda given: replace(given, tokens=torch.arange(LENGTH).expand(2, -1)),
    lambda given: replace(given, tokens=None),
)


@pytest.mark.parametrize("change", PLACES)
def test_another_text_is_looked_at_anew(change: Callable[[TokenPositions], TokenPositions]) -> None:
    layouts = LayoutCache(ASKED)
    first = layouts.of(terms(tensor_pattern()), place())
    second = layouts.of(terms(tensor_pattern()), change(place()))
    assert second is not first
    alone = BlockLayout.of(terms(tensor_pattern()), change(place()), ASKED).groups[0]
    assert torch.equal(second.groups[0].baseline.sums, alone.baseline.sums)
    same = torch.equal(first.groups[0].baseline.sums, alone.baseline.sums)
    assert not same, "the change makes a difference"


def test_only_the_last_layouts_are_remembered() -> None:
    layouts = LayoutCache(ASKED)
    masks = [MASK.clone() for _ in range(block_weights.CACHED_LAYOUTS + 1)]
    patterns = [tensor_pattern(mask=mask) for mask in masks]
    made = [layouts.of(terms(pattern), place()) for pattern in patterns]
    assert layouts.of(terms(patterns[-1]), place()) is made[-1]
    assert layouts.of(terms(patterns[1]), place()) is made[1]
    assert layouts.of(terms(patterns[0]), place()) is not made[0]


@given(
    length=st.integers(1, 90),
    most=st.integers(1, 2000),
    left=st.integers(0, 90),
    together=st.integers(1, 90),
)
def test_every_query_is_in_one_block_that_is_small_enough(
    length: int, most: int, left: int, together: int
) -> None:
    q = torch.zeros(1, 3, length, 2)
    given_terms = terms_of_call(Call.of(q, q, q, mask=causal() & window(left, 0)))
    real = torch.ones(1, length, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_weights, "WEIGHTS_OF_BLOCK", most)
        patch.setattr(block_weights, "QUERIES_OF_GROUP", together)
        patch.setattr("headwise.heads.capture.block_weights.KEY_MULTIPLE", 1)
        found = BlockLayout.of(given_terms, TokenPositions(0, real, real, None), ASKED)
    parts = [part for group in found.groups for part in group.parts]
    assert [row for part in parts for row in range(part.rows.start, part.rows.stop)] == list(
        range(length)
    )
    weights = [
        3 * (part.rows.stop - part.rows.start) * (part.keys.stop - part.keys.start)
        for part in parts
    ]
    assert found.buffer_size == max(weights)
    for part, many in zip(parts, weights, strict=True):
        assert many <= most or part.rows.stop - part.rows.start == 1
        mixed = range(part.mixed.start, part.mixed.stop)
        open_ = [n for n in range(part.keys.start, part.keys.stop) if n not in mixed]
        allowed = given_terms.allowed(part.rows, part.keys)
        assert bool(allowed[..., [n - part.keys.start for n in open_]].all())


def numbers(blocks: int, together: int, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """What is measured of one attention, cut as said."""
    make = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 61, 5, generator=make, dtype=torch.float64) for _ in "qkv")
    monkeypatch.setattr(block_weights, "WEIGHTS_OF_BLOCK", blocks)
    monkeypatch.setattr(block_weights, "QUERIES_OF_GROUP", together)
    (sums,) = measure(q, k, v, mask=causal()).statistics.layers.values()
    return torch.stack((sums.above, sums.below))


def test_how_it_is_cut_changes_no_number_beyond_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = numbers(1 << 22, 1 << 10, monkeypatch)
    for blocks, together in ((1, 1), (500, 1), (500, 20), (500, 1000), (4000, 7)):
        accept(numbers(blocks, together, monkeypatch), whole, whole)


@pytest.mark.parametrize("library", [recorder._malloc_trim(), None])
def test_memory_goes_back_where_the_c_library_can(
    library: Callable[[int], int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    trim = None if library is None else lambda most: asked.append(most) or library(most)
    monkeypatch.setattr(recorder, "_malloc_trim", lambda: trim)
    recorder.release_free_memory()
    assert asked == ([] if library is None else [0])


@pytest.mark.parametrize("inference", [False, True])
def test_a_mask_written_to_without_being_counted_is_looked_at_anew(inference: bool) -> None:
    layouts = LayoutCache(ASKED)
    with torch.inference_mode(inference):
        mask = MASK.clone()
        first = layouts.of(terms(tensor_pattern(mask=mask)), place())
        mask[..., -1, 0] = False
        second = layouts.of(terms(tensor_pattern(mask=mask)), place())
        assert first.groups[-1].context.choices.sum() == second.groups[-1].context.choices.sum() + 2


def test_blocks_that_reach_no_key_are_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(1, 1, 50, 8), torch.randn(1, 1, 10, 8)
    whole = measure(q, k, k, mask=causal()).statistics
    monkeypatch.setattr(block_weights, "WEIGHTS_OF_BLOCK", 100)
    monkeypatch.setattr(block_weights, "QUERIES_OF_GROUP", 7)
    found = measure(q, k, k, mask=causal()).statistics
    for one, other in zip(found.tensors().values(), whole.tensors().values(), strict=True):
        accept(one.double(), other.double(), other.double())


@pytest.mark.parametrize("offset", [0.0, -1e4, -1e9])
def test_the_entropy_of_scores_with_one_offset_is_as_exact(offset: float) -> None:
    """A row whose scores are all large together is as spread out as one whose are small."""
    make = torch.Generator().manual_seed(1)
    q, k = torch.zeros(1, 1, 70, 5), torch.randn(1, 1, 70, 5, generator=make)
    seen = torch.full((70, 70), offset).masked_fill(~torch.ones(70, 70).bool().tril(), -torch.inf)
    recorder = measure(q, k, k, mask=from_tensor(seen), want=["entropy", "effective_keys"])
    head = Head(Layer("", 0), 0)
    exact = torch.arange(2.0, 71.0, dtype=torch.float64)  # all keys alike
    for metric, wanted in zip(recorder.statistics.metrics, (exact.log(), exact), strict=True):
        found = recorder.statistics.value(metric, head)
        right = wanted.mean()[None]
        accept(torch.tensor([found]), right.float(), right)


def test_the_smoothed_entropy_counts_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    make = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 300, 5, generator=make, dtype=torch.float64) for _ in "qkv")
    want, found = ["smoothed_entropy"], []
    for blocks in (1 << 22, 500):
        monkeypatch.setattr(block_weights, "WEIGHTS_OF_BLOCK", blocks)
        found.append(measure(q, k, v, mask=causal(), want=want).statistics.layers[Layer("", 0)])
    accept(found[1].above, found[0].above, found[0].above)

"""Caches: a sequence in chunks gives the result of the whole sequence, for every cache."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.call import Call
from headwise.errors import BadType, BadValue
from headwise.nn.cache import GrowingCache, KVCache, SlidingCache, StaticCache
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import every_position

B, H, G, L, D, DV = 2, 6, 3, 13, 11, 7
REACH, SINKS = 3, 2
CHUNKS = ([L], [1] * L, [5, 1, 2, 1, 4], [2, 11])

CACHES: tuple[tuple[str, Callable[[], KVCache], hw.Mask], ...] = (
    ("growing", GrowingCache, hw.causal()),
    ("growing, window", GrowingCache, hw.causal() & hw.window(REACH, 0)),
    ("static", lambda: StaticCache(L), hw.causal()),
    ("static, room to spare", lambda: StaticCache(L + 4), hw.causal() & hw.window(REACH, 0)),
    ("sliding", lambda: SlidingCache(REACH), hw.causal() & hw.window(REACH, 0)),
    ("sliding, never full", lambda: SlidingCache(L), hw.causal()),
)


def drawn(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((B, H, L, D), (B, G, L, D), (B, G, L, DV))
    q, k, v = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)
    return q, k, v


def in_chunks(
    cache: KVCache,
    tensors: tuple[Tensor, Tensor, Tensor],
    sizes: list[int],
    mask: hw.Mask,
    position: hw.Position | None = None,
    real: Tensor | None = None,
) -> Tensor:
    """The output of the chunks one after the other, (B, H, L, Dv)."""
    found = []
    for q, k, v, here in zip(
        *(torch.split(t, sizes, 2) for t in tensors),
        [None] * len(sizes) if real is None else torch.split(real, sizes, 1),
        strict=True,
    ):
        held = cache.extend(k, v, here)
        seen = mask if held.real is None else mask & hw.padding(held.real)
        found.append(hw.attend(q, held.k, held.v, mask=seen, position=position))
    return torch.cat(found, 2)


@pytest.mark.parametrize("sizes", CHUNKS, ids=str)
@pytest.mark.parametrize(
    ("make", "mask"), [case[1:] for case in CACHES], ids=[c[0] for c in CACHES]
)
def test_chunks_give_what_the_whole_gives(
    make: Callable[[], KVCache], mask: hw.Mask, sizes: list[int]
) -> None:
    tensors = drawn(torch.float32)
    with torch.no_grad():
        chunked = in_chunks(make(), tensors, sizes, mask)
    call = Call.of(*tensors, mask=mask)
    accept(chunked, reference(call, torch.float32).output, reference(call).output)


@pytest.mark.parametrize("position", every_position(H, D, DV), ids=repr)
@pytest.mark.parametrize("make", [GrowingCache, lambda: SlidingCache(REACH)])
def test_relative_positions_count_from_the_last_query(
    make: Callable[[], KVCache], position: hw.Position
) -> None:
    tensors, mask = drawn(torch.float32), hw.causal() & hw.window(REACH, 0)
    with torch.no_grad():
        chunked = in_chunks(make(), tensors, [5, 1, 2, 1, 4], mask, position)
        call = Call.of(*tensors, mask=mask, position=position)
        accept(chunked, reference(call, torch.float32).output, reference(call).output)


@pytest.mark.parametrize("sizes", CHUNKS, ids=str)
def test_sinks_stay_when_the_others_leave(sizes: list[int]) -> None:
    tensors = drawn(torch.float32)
    mask = hw.causal() & (
        hw.window(REACH, 0) | hw.global_tokens(list(range(SINKS)), symmetric=False)
    )
    cache = SlidingCache(REACH, sinks=SINKS)
    with torch.no_grad():
        chunked = in_chunks(cache, tensors, sizes, mask)
    call = Call.of(*tensors, mask=mask)
    accept(chunked, reference(call, torch.float32).output, reference(call).output)
    assert cache.length == REACH + SINKS
    assert cache.seen == L


def test_a_sliding_cache_never_holds_more_memory_than_its_tokens() -> None:
    cache, token = SlidingCache(REACH, sinks=SINKS), torch.randn(B, G, 1, D)
    for _ in range(29):
        held = cache.extend(token, token)
        assert held.k.shape[2] <= REACH + SINKS + 1
    assert cache.content is not None
    assert cache.content.k.untyped_storage().nbytes() == B * G * (REACH + SINKS) * D * 4


@pytest.mark.parametrize("make", [GrowingCache, lambda: StaticCache(L), lambda: SlidingCache(L)])
def test_samples_of_different_lengths_are_padded_on_the_left(make: Callable[[], KVCache]) -> None:
    tensors, mask = drawn(torch.float32), hw.causal()
    real = torch.ones(B, L, dtype=torch.bool)
    real[1, :4] = False
    with torch.no_grad():
        chunked = in_chunks(make(), tensors, [5, 1, 3, 4], mask, real=real)
    call = Call.of(*(t[1:, :, 4:] for t in tensors), mask=mask)
    accept(chunked[1:, :, 4:], reference(call, torch.float32).output, reference(call).output)
    assert not chunked[1, :, :4].any()


def test_padding_may_begin_in_a_later_chunk() -> None:
    cache, token = GrowingCache(), torch.zeros(B, G, 2, D)
    cache.extend(token, token)
    held = cache.extend(token, token, torch.tensor([[True, False], [True, True]]))
    assert held.real is not None
    assert held.real.tolist() == [[True, True, True, False], [True] * 4]


@pytest.mark.parametrize(
    "make", [GrowingCache, lambda: StaticCache(L), lambda: SlidingCache(REACH)]
)
def test_a_beam_goes_on_from_the_sample_it_chose(make: Callable[[], KVCache]) -> None:
    tensors, mask = drawn(torch.float32), hw.causal() & hw.window(REACH, 0)
    index, cache = torch.tensor([1, 1, 0]), make()
    (q, k, v), after = (t[:, :, :9] for t in tensors), [t[index][:, :, 9:] for t in tensors]
    with torch.no_grad():
        in_chunks(cache, (q, k, v), [5, 4], mask)
        cache.reorder(index)
        chunked = in_chunks(cache, (after[0], after[1], after[2]), [1, 3], mask)
    call = Call.of(*(t[index] for t in tensors), mask=mask)
    accept(
        chunked, reference(call, torch.float32).output[:, :, 9:], reference(call).output[:, :, 9:]
    )


def test_reordering_keeps_the_padding_with_its_sample() -> None:
    cache, token = GrowingCache(), torch.zeros(B, G, 1, D)
    cache.extend(token, token, torch.tensor([[True], [False]]))
    cache.reorder(torch.tensor([1, 0]))
    held = cache.extend(token, token)
    assert held.real is not None
    assert held.real.tolist() == [[False, True], [True, True]]


def test_an_empty_cache_has_no_order() -> None:
    cache = GrowingCache()
    cache.reorder(torch.tensor([5]))
    assert cache.length == 0


def test_gradients_flow_through_a_growing_cache() -> None:
    tensors, mask = drawn(), hw.causal()
    whole = [t.requires_grad_() for t in tensors]
    chunked = in_chunks(GrowingCache(), (whole[0], whole[1], whole[2]), [5, 8], mask)
    target = torch.randn_like(chunked)
    found = torch.autograd.grad(chunked, whole, target)
    for dtype in (torch.float32, torch.float64):
        leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
        output = reference(Call.of(*leaves, mask=mask), dtype).output
        exact = torch.autograd.grad(output, leaves, target.to(dtype))
        if dtype == torch.float32:
            plain = exact
    for one, same, right in zip(found, plain, exact, strict=True):
        accept(one.float(), same, right)


def test_reset_forgets() -> None:
    for cache in (GrowingCache(), StaticCache(2), SlidingCache(2)):
        cache.extend(torch.ones(B, G, 2, D), torch.ones(B, G, 2, D))
        cache.reset()
        held = cache.extend(torch.zeros(1, G, 1, D + 1), torch.zeros(1, G, 1, DV))
        assert held.k.shape == (1, G, 1, D + 1)
        assert cache.seen == cache.length == 1
        assert "1 of 1" in repr(cache)


def test_a_static_cache_says_when_it_is_full() -> None:
    cache, token = StaticCache(2), torch.zeros(1, 1, 3, 2)
    with pytest.raises(BadValue, match="StaticCache: expected at most max_length=2 tokens, got 3"):
        cache.extend(token, token)


def test_a_static_cache_gives_no_gradient() -> None:
    token = torch.zeros(1, 1, 1, 2, requires_grad=True)
    with pytest.raises(BadValue, match="without gradients"):
        StaticCache(2).extend(token, token)
    with torch.no_grad():
        StaticCache(2).extend(token, token)


def test_what_does_not_fit_is_named() -> None:
    cache, token = GrowingCache(), torch.zeros(2, 3, 1, 5)
    with pytest.raises(BadValue, match=r"k, v: expected \(B, G, n, D\)"):
        cache.extend(token, token[0])
    with pytest.raises(BadValue, match=r"real: expected booleans \(B, n\) = \(2, 1\)"):
        cache.extend(token, token, torch.ones(2, 3, dtype=torch.bool))
    cache.extend(token, token)
    with pytest.raises(BadValue, match=r"k: the cache holds .*cache\.reset\(\)"):
        cache.extend(token[:1], token[:1])
    with pytest.raises(BadValue, match=r"v: the cache holds torch\.float32"):
        cache.extend(token, token.double())
    with pytest.raises(BadType, match="index: expected an integer tensor"):
        cache.reorder(torch.zeros(2))
    with pytest.raises(BadValue, match=r"index: .* the 2 samples in the cache"):
        cache.reorder(torch.tensor([2]))


@pytest.mark.parametrize("wrong", [True, 1.0, "3"])
def test_sizes_are_integers(wrong: object) -> None:
    with pytest.raises(BadType, match="StaticCache: max_length must be an integer"):
        StaticCache(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadType, match="SlidingCache: length must be an integer"):
        SlidingCache(wrong)  # type: ignore[arg-type]


def test_sizes_are_large_enough() -> None:
    with pytest.raises(BadValue, match="StaticCache: max_length must be >= 1, got 0"):
        StaticCache(0)
    with pytest.raises(BadValue, match="SlidingCache: length must be >= 1, got 0"):
        SlidingCache(0)
    with pytest.raises(BadValue, match="SlidingCache: sinks must be >= 0, got -1"):
        SlidingCache(3, sinks=-1)

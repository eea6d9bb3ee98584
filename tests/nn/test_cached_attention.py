"""`MultiheadAttention` with a cache: chunks give the result of the whole sequence."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.masks import appended
from headwise.nn import GrowingCache, KVCache, SlidingCache, StaticCache
from headwise.nn.cache_state import Shifted
from headwise.positions import Stage
from headwise.shapes import AttentionShape
from headwise.verify.oracle.tolerance import accept
from tests.examples import every_mask, every_position
from tests.nn.oracle import exact

B, L, E, H = 2, 13, 12, 6
REACH, SINKS = 3, 2
CHUNKS = ([L], [1] * L, [5, 1, 2, 1, 4], [2, 11])

KINDS = {
    "plain": {},
    "GQA": {"num_kv_heads": 2},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "all": {"num_kv_heads": 3, "head_dim": 5, "add_bias_kv": True, "add_zero_attn": True},
    "sizes": {"kdim": 11, "vdim": 7},
}

CACHES: dict[str, tuple[Callable[[], KVCache], hw.Mask]] = {
    "growing": (GrowingCache, hw.causal()),
    "growing, window": (GrowingCache, hw.causal() & hw.window(REACH, 0)),
    "static": (lambda: StaticCache(L), hw.causal()),
    "static, room to spare": (lambda: StaticCache(L + 4), hw.causal() & hw.window(REACH, 0)),
    "sliding": (lambda: SlidingCache(REACH), hw.causal() & hw.window(REACH, 0)),
    "sliding, never full": (lambda: SlidingCache(L), hw.causal()),
}


def make(**options: object) -> hw.MultiheadAttention:
    layer = hw.MultiheadAttention(
        **{"embed_dim": E, "num_heads": H, "batch_first": True} | options  # type: ignore[arg-type]
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=E**-0.5)
    return layer.eval()


def drawn(layer: hw.MultiheadAttention, batch: int = B, length: int = L) -> list[Tensor]:
    sizes = (layer.embed_dim, layer.kdim, layer.vdim)
    return [torch.randn(batch, length, size) for size in sizes]


def in_chunks(
    layer: hw.MultiheadAttention,
    cache: KVCache,
    given: list[Tensor],
    sizes: list[int],
    padded: Tensor | None = None,
    **options: object,
) -> Tensor:
    """The outputs of the chunks one after the other, (B, L, E)."""
    marks = [None] * len(sizes) if padded is None else torch.split(padded, sizes, 1)
    found = [
        layer(q, k, v, mark, need_weights=False, cache=cache, **options)[0]
        for q, k, v, mark in zip(*(torch.split(x, sizes, 1) for x in given), marks, strict=True)
    ]
    return torch.cat(found, 1)


def lower(reach: int | None = None) -> Tensor:
    """Causal, and no further back than ``reach``: (L, L), True = may attend."""
    back = torch.arange(L)[:, None] - torch.arange(L)
    return (back >= 0) & (back <= (L if reach is None else reach))


@pytest.mark.parametrize("sizes", CHUNKS, ids=str)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_give_what_the_whole_gives(kind: str, cache: str, sizes: list[int]) -> None:
    made, mask = CACHES[cache]
    layer = make(**KINDS[kind], mask=mask)
    given = drawn(layer)
    with torch.no_grad():
        found = in_chunks(layer, made(), given, sizes)
    allowed = lower(REACH if "window" in str(mask) else None)
    plain = exact(layer, given, allowed, dtype=torch.float32)
    accept(found, plain.output, exact(layer, given, allowed).output)


class ByPlace(hw.Position):
    """Its bias depends on where query and key stand, and not on their difference alone."""

    stages = frozenset({Stage.SCORES})

    def bias(self, q: Tensor, query: Tensor, key: Tensor, scale: float) -> Tensor:
        del scale
        wide = torch.promote_types(q.dtype, torch.float32)
        return (0.1 * query[:, None].to(wide) * (key % 2))[None, None]


@pytest.mark.parametrize(
    "position", [*every_position(H, 4, 4), ByPlace(), "Sinusoidal", "Learned"], ids=str
)
@pytest.mark.parametrize("cache", ["growing", "static", "sliding"])
def test_positions_stand_where_they_stand_in_the_whole(
    cache: str, position: hw.Position | str
) -> None:
    """An input position counts from the first token that ever came, whatever was let go."""
    if position == "Sinusoidal":
        position = hw.Sinusoidal(24)
    elif position == "Learned":
        position = hw.Learned(L, 24)
    made, _ = CACHES[cache]
    mask = hw.causal() & hw.window(REACH, 0)
    layer = make(embed_dim=24, mask=mask, position=position)
    x = torch.randn(B, L, 24)
    twin = hw.MultiheadAttention(24, H, batch_first=True, mask=mask, position=position)
    twin.load_state_dict(layer.state_dict())
    with torch.no_grad():
        found = in_chunks(layer, made(), [x] * 3, [5, 1, 2, 1, 4])
        plain = twin(x, x, x)[0]
        right = twin.double()(*[x.double()] * 3)[0]
    accept(found, plain, right)


@pytest.mark.parametrize("kind", ["plain", "GQA", "all"])
@pytest.mark.parametrize("made", [GrowingCache, lambda: StaticCache(L), lambda: SlidingCache(L)])
def test_samples_of_different_lengths(made: Callable[[], KVCache], kind: str) -> None:
    """Padded on the left, where they begin together; each is what it is alone."""
    layer = make(**KINDS[kind], mask=hw.causal())
    given = drawn(layer)
    padded = torch.arange(L) < torch.tensor([0, 4])[:, None]
    given = [x.masked_fill(padded[..., None], torch.nan) for x in given]
    with torch.no_grad():
        found = in_chunks(layer, made(), given, [5, 1, 3, 4], padded)
    for sample, first in enumerate((0, 4)):
        alone = [x[sample : sample + 1, first:] for x in given]
        allowed = lower()[: L - first, : L - first]
        plain = exact(layer, alone, allowed, dtype=torch.float32)
        accept(
            found[sample : sample + 1, first:], plain.output, exact(layer, alone, allowed).output
        )


def test_padding_may_come_in_a_later_chunk() -> None:
    """A sample that ended is filled up; what is not said to be padding is real."""
    layer = make(mask=hw.causal())
    given, cache = drawn(layer), GrowingCache()
    padded = torch.arange(L) >= torch.tensor([L, 7])[:, None]
    parts = [x.split([6, L - 6], 1) for x in given]
    with torch.no_grad():
        first = layer(*(x[0] for x in parts), cache=cache)[0]
        second = layer(*(x[1] for x in parts), padded[:, 6:], cache=cache)[0]
    allowed = lower() & ~padded[:, None, None]
    plain = exact(layer, given, allowed, dtype=torch.float32)
    accept(torch.cat((first, second), 1), plain.output, exact(layer, given, allowed).output)
    assert cache.real is not None
    assert torch.equal(cache.real, ~padded)


@pytest.mark.parametrize("average", [True, False])
def test_weights_and_masks_cover_all_keys(average: bool) -> None:
    layer = make(**KINDS["all"])
    given, cache = drawn(layer), GrowingCache()
    allowed = torch.rand(L, L) > 0.3
    bias = torch.randn(B, H, L, L)
    parts = [x.split([8, 5], 1) for x in given]
    with torch.no_grad():
        layer(*(x[0] for x in parts), cache=cache)
        output, weights = layer(
            *(x[1] for x in parts),
            attn_mask=bias[:, :, 8:].masked_fill(~allowed[8:], -torch.inf),
            average_attn_weights=average,
            is_causal=True,
            cache=cache,
        )
    told = lower() & allowed
    near, right = (
        exact(layer, given, told, bias, dtype) for dtype in (torch.float32, torch.float64)
    )
    accept(output, near.output[:, 8:], right.output[:, 8:])
    wanted = [w.weights.mean(1) if average else w.weights for w in (near, right)]
    accept(weights, *(w[..., 8:, :] for w in wanted))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_every_layout(batched: bool, batch_first: bool) -> None:
    layer = make(batch_first=batch_first, mask=hw.causal())
    given, cache = drawn(layer, 1), StaticCache(L)
    padded = (torch.arange(L) < 2)[None]

    def laid(x: Tensor) -> Tensor:
        return (x if batch_first else x.transpose(0, 1)) if batched else x[0]

    found = []
    with torch.no_grad():
        for part in range(0, L, 3):
            chunk = [laid(x[:, part : part + 3]) for x in given]
            mark = padded[:, part : part + 3]
            found.append(layer(*chunk, mark if batched else mark[0], cache=cache)[0])
    whole = torch.cat(found, 1 if batched and batch_first else 0)
    allowed = lower() & ~padded[:, None, None]
    plain = exact(layer, given, allowed, dtype=torch.float32)
    right = exact(layer, given, allowed)
    accept(whole, laid(plain.output), laid(right.output))


@pytest.mark.parametrize("sizes", CHUNKS, ids=str)
def test_sinks_stay_and_a_mask_counts_tokens_as_they_came(sizes: list[int]) -> None:
    sinks = hw.global_tokens(list(range(SINKS)), symmetric=False)
    layer = make(mask=hw.causal() & (hw.window(REACH, 0) | sinks))
    given, cache = drawn(layer), SlidingCache(REACH, sinks=SINKS)
    with torch.no_grad():
        found = in_chunks(layer, cache, given, sizes)
    allowed = lower(REACH) | (lower() & (torch.arange(L) < SINKS))
    plain = exact(layer, given, allowed, dtype=torch.float32)
    accept(found, plain.output, exact(layer, given, allowed).output)
    assert cache.length == REACH + SINKS


OF_ONE_CALL = ("random_blocks", "<bool", "tensor", "documents", "appended", "tree")
LASTING = [mask for mask in every_mask(L, L) if not any(word in str(mask) for word in OF_ONE_CALL)]


@pytest.mark.parametrize("made", [GrowingCache, lambda: SlidingCache(REACH, sinks=SINKS)])
@pytest.mark.parametrize("mask", LASTING, ids=str)
def test_every_mask_means_the_same_in_chunks(mask: hw.Mask, made: Callable[[], KVCache]) -> None:
    """What it allows of the tokens that are still held, token by token."""
    held = lower() if made is GrowingCache else lower(REACH) | (lower() & (torch.arange(L) < SINKS))
    allowed = mask.dense(AttentionShape(B, H, L, L, 0, torch.device("cpu"))) & held
    layer = make(mask=mask & hw.causal())
    given = drawn(layer)
    with torch.no_grad():
        found = in_chunks(layer, made(), given, [1] * L)
    plain = exact(layer, given, allowed, dtype=torch.float32)
    accept(found, plain.output, exact(layer, given, allowed).output)


def test_tiles_of_a_mask_whose_keys_slid() -> None:
    inner = hw.window(2, 1) | hw.global_tokens([0, 11], symmetric=False)
    slid = Shifted(inner, 5, SINKS)
    seen = slid.dense(AttentionShape(1, 1, 4, 9, 5, torch.device("cpu")))[0, 0]
    kept = [0, 1, *range(7, 14)]
    whole = inner.dense(AttentionShape(1, 1, 4, 14, 10, torch.device("cpu")))[0, 0]
    assert torch.equal(seen, whole[:, kept])
    for q in range(5, 9):
        for first in range(9):
            for last in range(first, 9):
                part = seen[q - 5, first : last + 1]
                kind = slid.tile(range(q, q + 1), range(first, last + 1)).value
                assert kind == "mixed" or bool(part.all() if kind == "full" else ~part.any())


@pytest.mark.parametrize("cache", CACHES)
def test_a_beam_goes_on_from_the_sample_it_chose(cache: str) -> None:
    made, mask = CACHES[cache]
    layer, index = make(num_kv_heads=3, mask=mask), torch.tensor([1, 1, 0])
    given, kept = drawn(layer), made()
    padded = torch.arange(L) < torch.tensor([0, 2])[:, None]
    before, after = ([x[:, :9] for x in given], [x[index][:, 9:] for x in given])
    with torch.no_grad():
        in_chunks(layer, kept, before, [5, 4], padded[:, :9])
        kept.reorder(index)
        found = in_chunks(layer, kept, after, [1, 3])
    allowed = lower(REACH if "window" in str(mask) else None) & ~padded[index][:, None, None]
    chosen = [x[index] for x in given]
    near, right = (exact(layer, chosen, allowed, dtype=d) for d in (torch.float32, torch.float64))
    accept(found, near.output[:, 9:], right.output[:, 9:])


def test_gradients_flow_through_a_growing_cache() -> None:
    layer = make(**KINDS["all"], mask=hw.causal())
    given = [x.requires_grad_() for x in drawn(layer)]
    wanted = [*given, layer.k_proj.weight, layer.bias_k]
    found = torch.autograd.grad(
        in_chunks(layer, GrowingCache(), given, [5, 8]).square().sum(), wanted
    )
    grads = []
    for dtype in (torch.float32, torch.float64):
        truth = exact(layer, given, lower(), dtype=dtype)
        names = ("query", "key", "value", "k_proj.weight", "bias_k")
        leaves = [truth.leaves[name] for name in names]
        grads.append(torch.autograd.grad(truth.output.square().sum(), leaves))
    for own, near, right in zip(found, *grads, strict=True):
        accept(own, near, right)


def test_another_text_is_looked_at_again_without_projecting_it_again() -> None:
    """Cross-attention: no new keys, and those of the first call are held."""
    layer = make(num_kv_heads=2, kdim=11, vdim=7)
    given, cache = drawn(layer), StaticCache(L)
    padded = torch.arange(L) >= torch.tensor([L, 4])[:, None]
    calls = []
    layer.k_proj.register_forward_hook(lambda _m, args, _o: calls.append(args[0].shape[1]))
    with torch.no_grad():
        first = layer(given[0][:, :1], *given[1:], padded, cache=cache)[0]
        rest = [
            layer(q, given[1][:, :0], given[2][:, :0], cache=cache)[0]
            for q in given[0][:, 1:].split(1, 1)
        ]
    allowed = ~padded[:, None, None]
    plain = exact(layer, given, allowed, dtype=torch.float32)
    accept(torch.cat((first, *rest), 1), plain.output, exact(layer, given, allowed).output)
    assert calls == [L, *[0] * (L - 1)]


def test_statistics_of_heads_while_generating() -> None:
    layer = make(mask=hw.causal())
    x, cache = torch.randn(B, L, E), GrowingCache()
    padded = torch.arange(L) < torch.tensor([0, 2])[:, None]
    with torch.no_grad():
        layer(x[:, :9], x[:, :9], x[:, :9], padded[:, :9], cache=cache)
        found = layer.attend(x[:, 9:], x[:, 9:], x[:, 9:], cache=cache, need=["received"])
    allowed = lower() & ~padded[:, None, None]
    near, right = (
        exact(layer, [x] * 3, allowed, dtype=d).weights[:, :, 9:].sum(2)
        for d in (torch.float32, torch.float64)
    )
    accept(found.received, near, right)


def test_memory_is_bounded_by_a_sliding_cache() -> None:
    layer, cache = make(mask=hw.causal() & hw.window(REACH, 0)), SlidingCache(REACH)
    with torch.no_grad():
        for token in torch.randn(1, 29, E).split(1, 1):
            layer(token, token, token, cache=cache)
    assert (cache.length, cache.seen) == (REACH, 29)


# --- what is refused ---


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"cache": {}},
            BadType,
            r"cache: expected a headwise cache or None, got dict; .*GrowingCache",
        ),
        (
            {"key_padding_mask": torch.zeros(B, L)},
            BadType,
            r"key_padding_mask: with a cache, expected a boolean .*got torch.float32",
        ),
        (
            {"key_padding_mask": torch.zeros(B, L + 4, dtype=torch.bool)},
            BadValue,
            r"key_padding_mask: with a cache, .* only, \(B, n\) = \(2, 13\), .*got \(2, 17\)",
        ),
        (
            {"attn_mask": torch.zeros(L, L, dtype=torch.bool)},
            BadValue,
            r"attn_mask: expected \(L, S\) = \(13, 17\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    layer, cache = make(), GrowingCache()
    with torch.no_grad():
        layer(*drawn(layer, length=4), cache=cache)
        with pytest.raises(error, match=message) as caught:
            layer(*drawn(layer), **{"cache": cache} | change)
    assert caught.value.text.zh != caught.value.text.en
    assert cache.seen == 4  # a call that was refused leaves the cache alone


def test_another_batch_is_refused() -> None:
    layer, cache = make(), GrowingCache()
    layer(*drawn(layer), cache=cache)
    with pytest.raises(
        BadValue, match=r"cache: it holds 2 samples, got a batch of 3; call cache.reset"
    ):
        layer(*drawn(layer, 3), cache=cache)


def test_an_unbatched_padding_is_named() -> None:
    layer, x = make(), torch.randn(L, E)
    with pytest.raises(BadValue, match=r"key_padding_mask: .* \(n,\) = \(13,\), .*got \(1, 13\)"):
        layer(x, x, x, torch.zeros(1, L, dtype=torch.bool), cache=GrowingCache())


@pytest.mark.parametrize(
    "mask",
    [
        hw.lsh(1, seed=1),
        hw.causal() & (hw.window(1, 0) | ~hw.random_blocks(2, 1, seed=5)),
        hw.per_head([hw.random_blocks(2, 1, seed=5)] * H),
        appended(hw.causal(), 2),
    ],
    ids=["lsh", "random", "per head", "appended"],
)
def test_a_pattern_of_the_whole_sequence_is_refused(mask: hw.Mask) -> None:
    layer = make(mask=mask)
    with pytest.raises(BadValue, match=r"cache: .* cannot depend on future tokens"):
        layer(*drawn(layer), cache=GrowingCache())


def test_projections_of_global_tokens_are_refused() -> None:
    layer = make(mask=hw.global_tokens([0]), global_projections=True)
    with pytest.raises(BadValue, match="cache: a cache cannot be used with global_projections"):
        layer(*drawn(layer), cache=GrowingCache())

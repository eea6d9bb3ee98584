"""A memory that is projected once, and caches that a caller writes."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn import GrowingCache, MemoryCache
from headwise.verify.oracle.tolerance import accept

ROOT = Path(__file__).parent.parent.parent
OWN = runpy.run_path(str(ROOT / "examples" / "own_caches.py"))
LATENT = runpy.run_path(str(ROOT / "examples" / "latent_and_differential.py"))
B, L, S, E, H, KDIM, VDIM = 2, 5, 7, 12, 3, 5, 11

OPTIONS = [
    {},
    {"kdim": KDIM, "vdim": VDIM, "num_kv_heads": 1},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"position": hw.T5Bias(H), "mask": hw.window(4, 4), "sinks": True, "softcap": 2.0},
    {"key_norm": torch.nn.RMSNorm(4), "query_norm": torch.nn.RMSNorm(4)},
    {"position": hw.Sinusoidal(E)},
]


def made(**options) -> tuple[hw.MultiheadAttention, Tensor, Tensor, Tensor]:
    layer = hw.MultiheadAttention(E, H, batch_first=True, **options).double().eval()
    memory = torch.randn(B, S, layer.kdim).double()
    value = memory if layer.vdim == layer.kdim else torch.randn(B, S, layer.vdim).double()
    return layer, torch.randn(B, L, E).double(), memory, value


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_call_is_that_without_a_cache(options):
    layer, x, memory, value = made(**options)
    padding = torch.tensor([[False] * S, [False] * 4 + [True] * 3])
    blocked = torch.rand(L, S) > 0.7
    cache = MemoryCache()
    for part, more in ((x[:, :1], {}), (x, {"attn_mask": blocked}), (x[:, :2], {})):
        options = {"key_padding_mask": padding, **more}
        right, weights = layer(part, memory, value, **options)
        found, own = layer(part, memory, value, cache=cache, **options)
        accept(found, right.float(), right)
        accept(own, weights.float(), weights)
    statistics = layer.attend(x, memory, value, cache=cache, need=["entropy"])
    right = layer.attend(x, memory, value, need=["entropy"])
    accept(statistics.entropy, right.entropy.float(), right.entropy)


def test_the_memory_is_projected_once():
    layer, x, memory, value = made()
    calls = []
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer, name).register_forward_hook(lambda *_, name=name: calls.append(name))
    cache = MemoryCache()
    for token in x.split(1, 1):
        layer(token, memory, value, cache=cache)
    assert (calls.count("q_proj"), calls.count("k_proj"), calls.count("v_proj")) == (L, 1, 1)
    cache.reset()
    layer(x, memory, value, cache=cache)
    assert calls.count("k_proj") == 2
    assert repr(cache) == f"MemoryCache(<{S} tokens>)"


def test_gradients_reach_the_memory():
    layer, x, memory, _ = made()
    memory.requires_grad_()
    right = layer(x, memory, memory)[0]
    found = layer(x, memory, memory, cache=MemoryCache())[0]
    inputs = (memory, layer.k_proj.weight, layer.v_proj.weight)
    grads = [torch.autograd.grad(y.square().sum(), inputs) for y in (found, right)]
    for own, theirs in zip(*grads, strict=True):
        accept(own, theirs.float(), theirs)


def test_beams_share_a_memory():
    layer, x, memory, _ = made()
    cache, index = MemoryCache(), torch.tensor([1, 1, 0])
    layer(x, memory, memory, cache=cache)
    cache.reorder(index)
    right = layer(x[index], memory[index], memory[index])[0]
    found = layer(x[index], memory[index], memory[index], cache=cache)[0]
    accept(found, right.float(), right)


def test_another_memory_is_refused():
    layer, x, memory, _ = made()
    cache = MemoryCache()
    layer(x, memory, memory, cache=cache)
    other = memory[:, :3]
    with pytest.raises(BadValue, match=r"holds a memory of \(B, S\) = \(2, 7\), got \(2, 3\); res"):
        layer(x, other, other, cache=cache)
    with pytest.raises(BadType, match="index: expected an integer tensor"):
        cache.reorder(torch.tensor([0.5]))
    layer.global_proj = torch.nn.Identity()
    with pytest.raises(BadValue, match="cannot be used with global_projections"):
        layer(x, memory, memory, cache=MemoryCache())


CACHES = [
    pytest.param(lambda: OWN["PagedCache"](pages=24, size=4, groups=2, dim=8), id="pages"),
    pytest.param(OWN["Int8Cache"], id="int8"),
]


class Rounded(GrowingCache):
    """Keeps every number as 8 bits give it back."""

    def store(self, k, v, real):
        rounded = []
        for rows in (k, v):
            integers, scale = OWN["Int8Cache"].quantised(rows)
            assert ((integers * scale - rows).abs() <= scale / 2 * (1 + 1e-6)).all()
            rounded.append(integers * scale)
        return super().store(*rounded, real)


def stepped(layer, x, make, index) -> Tensor:
    """Some tokens, a step of a beam search, and the others."""
    with torch.no_grad():
        cache = make()
        first = [layer(p, p, p, cache=cache)[0] for p in x[:, :6].split([5, 1], 1)]
        cache.reorder(index)
        rest = x[index, 6:]
        last = [layer(p, p, p, cache=cache)[0] for p in rest.split([1, 3, 1], 1)]
        assert cache.length == cache.seen == x.shape[1]
        assert cache.batch == len(index)
        cache.reset()
        assert (cache.length, cache.seen, cache.batch) == (0, 0, None)
    return torch.cat((torch.cat(first, 1)[index], *last), 1)


@pytest.mark.parametrize("make", CACHES)
def test_a_cache_of_one_s_own_is_used_as_the_library_s(make):
    layer, x = OWN["example"]()
    for index in (torch.tensor([0, 1]), torch.tensor([1, 1, 0])):
        same = Rounded if make is OWN["Int8Cache"] else GrowingCache
        assert torch.equal(stepped(layer, x, make, index), stepped(layer, x, same, index))


def test_padding_is_kept_by_an_int8_cache_and_refused_by_pages():
    layer, x = OWN["example"]()
    padding = torch.tensor([[True] * 3 + [False] * 2, [False] * 5])
    right, found = Rounded(), OWN["Int8Cache"]()
    with torch.no_grad():
        for cache in (right, found):
            layer(x[:, :5], x[:, :5], x[:, :5], key_padding_mask=padding, cache=cache)
        one, other = (layer(*[x[:, 5:6]] * 3, cache=cache)[0] for cache in (right, found))
    assert torch.equal(found.real, right.real)
    assert torch.equal(one, other)
    pages = OWN["PagedCache"](pages=8, size=4, groups=2, dim=8)
    with pytest.raises(ValueError, match="PagedCache keeps no padding"):
        layer(x[:, :5], x[:, :5], x[:, :5], key_padding_mask=padding, cache=pages)


def test_what_does_not_fit_an_own_cache_is_refused_by_the_interface():
    cache, k = OWN["Int8Cache"](), torch.randn(2, 2, 3, 8)
    cache.extend(k, k)
    with pytest.raises(BadValue, match="k: the cache holds"):
        cache.extend(k.double(), k.double())
    with pytest.raises(BadValue, match=r"index: .* of the 2 samples in the cache"):
        cache.reorder(torch.tensor([2]))


def test_latent_attention_is_the_same_absorbed():
    """In float64: absorbing the up projections is one matrix product moved."""
    layer, x = LATENT["LatentAttention"](), torch.randn(2, 9, LATENT["E"])
    exact = copy.deepcopy(layer).double()
    accept(layer.absorbed(x), layer(x), exact(x.double()))
    accept(exact.absorbed(x.double()), exact(x.double()).float(), exact(x.double()))


def test_differential_attention_is_the_difference_of_two_softmaxes():
    q, k, v = (torch.randn(2, 4, 9, n).double() for n in (16, 16, 8))
    later = torch.ones(9, 9).triu(1).bool()
    first, second = (
        (a @ b.mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
        for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    )
    right = (first - 0.3 * second) @ v
    accept(LATENT["differential"](q, k, v, 0.3), right.float(), right)

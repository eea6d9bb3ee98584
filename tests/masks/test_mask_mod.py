"""A user's mask function: its values, its tiles, and the plan."""

# ruff: noqa: ARG005 - the arguments are those of flex_attention

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import and_masks, create_mask, or_masks

import headwise as hw
from headwise.call import Call
from headwise.engines import best, blockwise, eager, sdpa, tiled
from headwise.errors import BadType, BadValue
from headwise.masks import Mask, Tile
from headwise.masks.tiles import Tiles
from headwise.nn import GrowingCache
from headwise.shapes import AttentionShape
from headwise.verify.oracle.tolerance import accept
from tests.examples import HEADS, accept_with_gradients, tensors

CPU = torch.device("cpu")
B, H, Q, K = 2, HEADS, 23, 29
with torch.random.fork_rng():
    torch.manual_seed(0)
    DOCUMENT = torch.randint(0, 4, (B, 64)).sort(-1).values
    LENGTHS, SEEN = torch.tensor([7, 20]), torch.rand(H, 64, 64) > 0.4
    REACH = torch.tensor(6)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def local(b, h, q_idx, kv_idx):
    return ((q_idx - kv_idx) <= 5) & (-(q_idx - kv_idx) <= 3)


def dilated(b, h, q_idx, kv_idx):
    return torch.logical_and(abs(q_idx - kv_idx) < 12, (q_idx - kv_idx) % 3 == 0)


def chunk(b, h, q_idx, kv_idx):
    return q_idx // 8 == kv_idx // 8


def document(b, h, q_idx, kv_idx):
    return DOCUMENT[b, q_idx] == DOCUMENT[b, kv_idx]


def prefix(b, h, q_idx, kv_idx):
    return (kv_idx < LENGTHS[b]) | (q_idx >= kv_idx)


def by_head(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() <= h + 1


def table(b, h, q_idx, kv_idx):
    return SEEN[h, q_idx, kv_idx]


def neighbourhood(b, h, q_idx, kv_idx):
    """A window on a grid of width 5, moved inwards at the edges, as NATTEN's."""
    row, column, r, c = q_idx // 5, q_idx % 5, kv_idx // 5, kv_idx % 5
    return ((row.clamp(1, 3) - r).abs() <= 1) & ((column.clamp(1, 3) - c).abs() <= 1)


def within_tensor(b, h, q_idx, kv_idx):
    return ~(torch.abs(q_idx - kv_idx) > REACH) | (torch.minimum(q_idx, kv_idx) != 3)


def chosen(b, h, q_idx, kv_idx):
    return torch.where(q_idx < 10, kv_idx, kv_idx + 5) <= 2 * q_idx - 1


MODS = [causal, local, dilated, chunk, document, prefix, by_head, table, neighbourhood,
        within_tensor, chosen, and_masks(causal, document), or_masks(local, prefix)]  # fmt: skip


def gathered(b, h, q_idx, kv_idx):
    """The same as `document`, by a function that ranges do not have."""
    mine = DOCUMENT.expand(B, -1)[b, q_idx]
    return mine == torch.index_select(DOCUMENT[0], 0, kv_idx.flatten()).view(kv_idx.shape)


@pytest.mark.parametrize("mod", MODS, ids=lambda mod: mod.__name__)
@pytest.mark.parametrize(("queries", "keys"), [(Q, K), (K, Q), (1, K)])
def test_the_rule_is_what_torch_makes_of_the_function(mod, queries, keys):
    right = create_mask(mod, B, H, queries, keys, device="cpu")
    found = hw.from_mask_mod(mod).dense(AttentionShape(B, H, queries, keys, keys - queries, CPU))
    assert torch.equal(found.expand(B, H, -1, -1), right)


@pytest.mark.parametrize("mod", MODS, ids=lambda mod: mod.__name__)
@given(data=st.data())
def test_no_tile_is_told_wrongly(mod, data):
    offset = data.draw(st.integers(-3, 9))
    shape = AttentionShape(B, H, Q, K, offset, CPU)
    mask = hw.from_mask_mod(mod).resolve(shape)
    assert mask.untold_tiles() is None
    q0, k0 = data.draw(st.integers(0, Q - 1)), data.draw(st.integers(0, K - 1))
    q1, k1 = data.draw(st.integers(q0 + 1, Q)), data.draw(st.integers(k0 + 1, K))
    seen = mask.dense(shape).expand(B, H, -1, -1)[:, :, q0:q1, k0:k1]
    kind = mask.tile(range(q0 + offset, q1 + offset), range(k0, k1))
    assert kind is not Tile.EMPTY or not seen.any()
    assert kind is not Tile.FULL or seen.all()


@pytest.mark.parametrize(
    ("mod", "mask"),
    [
        (causal, hw.causal()),
        (local, hw.window(5, 3)),
        (chunk, hw.chunked(8)),
        (document, hw.documents(DOCUMENT)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_tiles_are_those_of_the_mask_of_the_same_meaning(mod, mask):
    shape = AttentionShape(B, H, 64, 64, 0, CPU)
    own, right = (Tiles.of(m.resolve(shape), shape, 4) for m in (hw.from_mask_mod(mod), mask))
    assert torch.equal(own.kinds, right.kinds)


@pytest.mark.parametrize("mod", [local, document, by_head, gathered], ids=lambda mod: mod.__name__)
def test_every_engine_gives_what_the_oracle_gives(mod):
    mask: Mask = hw.from_mask_mod(mod) & hw.padding([60, 0])
    call = Call.of(*tensors(61, 64), mask=mask)
    results = [engine.run(call) for engine in (tiled, blockwise, sdpa, eager)]
    accept_with_gradients(call, *results)


def test_a_long_pattern_costs_what_it_is_and_the_plan_says_where_not():
    q = torch.zeros(1, 1, 4096, 8)
    numbers = torch.arange(4096) // 256

    def packed(b, h, q_idx, kv_idx):
        return (numbers[q_idx] == numbers[kv_idx]) & (q_idx >= kv_idx)

    def untold(b, h, q_idx, kv_idx):
        return numbers.index_select(0, kv_idx.flatten())[None] == numbers[q_idx]

    told = hw.plan(q, q, q, mask=hw.from_mask_mod(packed))
    assert told.engine == "tiled"
    assert told.share < 0.1
    assert told.untold is None
    plan = hw.plan(q, q, q, mask=hw.from_mask_mod(untold) & hw.causal())
    assert plan.engine == "tiled"
    assert plan.untold is not None
    assert "mask: every pair is computed, since from_mask_mod(untold) cannot compute with" in str(
        plan
    )
    assert "from_mask_mod(untold)" in plan.untold.zh != plan.untold.en
    exact = hw.attend(*(torch.randn(1, 1, 300, 8) for _ in range(3)), mask=hw.from_mask_mod(packed))
    assert exact.isfinite().all()
    assert best(Call.of(q, q, q, mask=hw.from_mask_mod(packed))) is tiled


@pytest.mark.parametrize(
    "mod",
    [
        lambda b, h, q, k: (q >= k) if q > 3 else k < 2,
        lambda b, h, q, k: q.float().sqrt() >= k,
        lambda b, h, q, k: (q * k).square() > 3,
        lambda b, h, q, k: DOCUMENT[0][q] == k / 2,
    ],
)
def test_what_has_no_ranges_is_mixed_and_named(mod):
    shape = AttentionShape(1, 1, 5, 5, 0, CPU)
    mask = hw.from_mask_mod(mod).resolve(shape)
    assert mask.tile(range(5), range(5)) is Tile.MIXED
    assert "cannot compute with ranges" in mask.untold_tiles().en


def test_it_is_drawn_and_named_and_composes():
    mask = hw.causal() & ~hw.from_mask_mod(chunk)
    assert repr(mask) == "causal() & ~from_mask_mod(chunk)"
    assert mask.draw(9).splitlines()[-1] == "■ ■ ■ ■ ■ ■ ■ ■ ·"
    assert hw.from_mask_mod(causal) == hw.from_mask_mod(causal)


def test_under_compile_it_keeps_its_meaning(monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    q, k, v = (torch.randn(1, 2, 17, 8) for _ in range(3))
    mask = hw.from_mask_mod(local)
    compiled = torch.compile(lambda *qkv: hw.attend(*qkv, mask=mask), backend="eager")
    assert torch.equal(compiled(q, k, v), hw.attend(q, k, v, mask=mask, engine="sdpa"))


@pytest.mark.parametrize("wrong", [3, None, hw.causal(), torch.ones(2, 2).bool(), Mask])
def test_what_is_no_function_is_refused(monkeypatch, wrong):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(BadType, match=r"from_mask_mod: expected a function .*q_idx >= kv_idx"):
        hw.from_mask_mod(wrong)


def test_an_answer_that_is_no_boolean_is_refused():
    q = torch.zeros(1, 1, 3, 4)
    for mod in (lambda b, h, q, k: q - k, lambda b, h, q, k: True):
        with pytest.raises(
            BadType, match="mask_mod: expected the function to return a boolean tensor"
        ):
            hw.attend(q, q, q, mask=hw.from_mask_mod(mod))


def test_with_a_cache_it_takes_positions_and_is_refused_without():
    layer = hw.MultiheadAttention(8, 2, batch_first=True, mask=hw.from_mask_mod(local)).eval()
    x = torch.randn(1, 19, 8)
    with pytest.raises(BadValue, match=r"numbers the queries of every call from 0.*positions=True"):
        layer(x, x, x, cache=GrowingCache())
    layer.mask = hw.from_mask_mod(causal, positions=True) & hw.from_mask_mod(local, positions=True)
    with torch.no_grad():
        cache, whole = GrowingCache(), layer.double()(*[x.double()] * 3)[0]
        steps = [layer(*[part.double()] * 3, cache=cache)[0] for part in x.split(5, 1)]
    accept(torch.cat(steps, 1), whole.float(), whole)
    with pytest.raises(BadType, match="positions must be True or False"):
        hw.from_mask_mod(local, positions=1)

"""Distant pairs whose position needs no bias, and the bias that is read by a strided view."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.call import Call
from headwise.engines import tiled
from headwise.engines.tiled import TiledAttention
from headwise.engines.tiled import problem as far
from headwise.engines.tiled.problem import AHEAD, BEHIND, NEAR, Region
from headwise.masks import Tile
from headwise.verify.oracle.tolerance import accept
from tests.examples import DIM, HEADS, VALUE_DIM, accept_with_gradients, tensors

L = 131
MASKS = {
    "full": hw.full(),
    "causal": hw.causal(),
    "padding": hw.padding([L - 8, 3]),
    "causal, padding": hw.causal() & hw.padding([L - 8, 0]),
    "documents": hw.causal() & hw.documents([71, L - 71]),
    "pairs": hw.from_tensor(torch.rand(L, L) > 0.3, "q k"),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of which a short sequence has several."""
    monkeypatch.setattr(far, "BLOCK", 16)
    monkeypatch.setattr(far, "GRAIN", 8)


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call since had far keys."""
    seen: list[bool] = []
    whole = TiledAttention.problem

    def problem(self: TiledAttention, given: list[torch.Tensor]) -> object:
        seen.append(self.reach is not None)
        return whole(self, given)

    monkeypatch.setattr(TiledAttention, "problem", problem)
    return seen


@given(
    which=st.sampled_from((NEAR, BEHIND, AHEAD)),
    reach=st.integers(0, 90),
    q=st.tuples(st.integers(-300, 900), st.integers(1, 600)),
    k=st.tuples(st.integers(0, 900), st.integers(1, 600)),
)
def test_a_place_knows_its_tiles(
    which: int, reach: int, q: tuple[int, int], k: tuple[int, int]
) -> None:
    rows, columns = (range(start, start + size) for start, size in (q, k))
    zero = torch.zeros(1, dtype=torch.long)
    at, to = torch.tensor(list(rows))[:, None], torch.tensor(list(columns))
    rules = {each: Region(each, reach).rule(zero, zero, at, to) for each in (NEAR, BEHIND, AHEAD)}
    kind = Region(which, reach).tile(rows, columns)
    assert kind is not Tile.FULL or bool(rules[which].all())
    assert kind is not Tile.EMPTY or not bool(rules[which].any())
    assert bool((rules[NEAR] ^ rules[BEHIND] ^ rules[AHEAD]).all())  # each pair in one place
    assert not bool((rules[BEHIND] & (at - to < reach)).any())
    assert not bool((rules[AHEAD] & (to - at < reach)).any())


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
@pytest.mark.parametrize("reach", [1, 3])  # the one vector of reach 0 has gradient 0
@pytest.mark.parametrize("mask", MASKS)
def test_far_keys_stand_for_shaws_last_vectors(
    mask: str, reach: int, value_dim: int | None, small: None, folded: list[bool]
) -> None:
    position = hw.Shaw(reach, DIM, value_dim=value_dim)
    call = Call.of(*tensors(L, L, dtype=torch.float32), mask=MASKS[mask], position=position)
    accept_with_gradients(call, tiled.run(call))
    assert all(folded)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_far_keys_in_every_dtype(dtype: torch.dtype, small: None, folded: list[bool]) -> None:
    call = Call.of(
        *tensors(L, L, dtype=dtype), mask=hw.causal(), position=hw.Shaw(3, DIM, value_dim=VALUE_DIM)
    )
    accept_with_gradients(call, tiled.run(call))
    assert all(folded)


@pytest.mark.parametrize(("queries", "offset"), [(67, None), (67, 5), (L, 40), (L, -30)])
def test_far_keys_with_an_offset(
    queries: int, offset: int | None, small: None, folded: list[bool]
) -> None:
    call = Call.of(
        *tensors(queries, L, dtype=torch.float32),
        mask=hw.causal(),
        position=hw.Shaw(5, DIM),
        offset=offset,
    )
    accept_with_gradients(call, tiled.run(call))
    assert all(folded)


def test_hidden_nan_stays_hidden_from_far_keys(small: None) -> None:
    q, k, v = (t.detach() for t in tensors(L, L, dtype=torch.float32))
    position, mask = hw.Shaw(3, DIM, value_dim=VALUE_DIM), hw.padding([L - 8, L])
    call = Call.of(q, k, v, mask=mask, position=position)
    wanted = tiled.run(call).output
    bad_k, bad_v = k.clone(), v.clone()
    bad_k[0, :, L - 8 :], bad_v[0, :, L - 8 :] = torch.nan, torch.inf
    found = tiled.run(Call.of(q, bad_k, bad_v, mask=mask, position=position)).output
    assert torch.equal(found, wanted)


def test_the_second_derivative_knows_no_places(small: None) -> None:
    position = hw.Shaw(2, DIM).double()
    length = 61
    q, k, v = (t[:1, :1] for t in tensors(length, length, groups=1))

    def attend(q: torch.Tensor) -> torch.Tensor:
        return hw.attend(q, k[:, :1], v[:, :1], position=position, engine="tiled")[..., :2]

    probe = torch.randn_like(q)
    output = attend(q)
    (first,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
    (second,) = torch.autograd.grad((first * probe).sum(), position.table)
    call = hw.attend(q, k[:, :1], v[:, :1], position=position, engine="eager")[..., :2]
    (plain,) = torch.autograd.grad(call.square().sum(), q, create_graph=True)
    (wanted,) = torch.autograd.grad((plain * probe).sum(), position.table)
    accept(second, wanted, wanted)


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (hw.full(), True),
        (hw.causal(), True),
        (hw.window(20, 0), False),
        (hw.causal() & hw.window(9, 0), False),
        (hw.window(9, 9) | hw.global_tokens([0]), False),
    ],
    ids=str,
)
def test_places_are_told_apart_where_most_pairs_are_far(
    mask: hw.Mask, told: bool, small: None, folded: list[bool]
) -> None:
    q, k, v = (t.detach() for t in tensors(L, L, dtype=torch.float32))
    tiled.run(Call.of(q, k, v, mask=mask, position=hw.Shaw(3, DIM)))
    assert folded == [told]


@pytest.mark.parametrize("logsumexp", [False, True])
@pytest.mark.parametrize("position", [hw.Shaw(3, DIM), hw.TransformerXL(HEADS, DIM)], ids=repr)
def test_the_logsumexp_has_its_gradient(
    position: hw.Position, logsumexp: bool, small: None
) -> None:
    def gradients(dtype: torch.dtype, engine: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        leaves = [t.detach().to(dtype).requires_grad_() for t in tensors(L, L)]
        position.to(dtype)
        result = hw.attend(*leaves, position=position, need=("logsumexp",), engine=engine)
        assert result.logsumexp is not None
        total = result.output.square().sum() + logsumexp * result.logsumexp.square().sum()
        return list(torch.autograd.grad(total, [*leaves, *position.parameters()]))

    ways = ((torch.float32, "tiled"), (torch.float32, "eager"), (torch.float64, "eager"))
    for found, plain, exact in zip(*(gradients(*way) for way in ways), strict=True):
        accept(found, plain, exact)

"""Relative positions on the tiled engine: exact, without a tensor of size (Lq, Lk)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.call import Call
from headwise.engines import tiled
from headwise.engines.tiled import backward, forward
from headwise.engines.tiled.parts import Part, StridedRows
from headwise.engines.tiled.problem import GradientBuffers, Problem
from headwise.positions import Position, Stage
from headwise.positions.position import PositionIds
from headwise.positions.relative_terms import RelativeTerms, differences
from headwise.verify.oracle.tolerance import accept
from tests.examples import DIM, HEADS, VALUE_DIM, Largest, accept_with_gradients, named, tensors

torch.manual_seed(0)  # what is drawn here does not depend on what else is collected
L = 137
RELATIVE = (
    hw.ALiBi(HEADS),
    hw.Shaw(3, DIM),
    hw.Shaw(2, DIM, value_dim=VALUE_DIM),
    hw.T5Bias(HEADS, num_buckets=8, max_distance=31),
    hw.TransformerXL(HEADS, DIM, embed_dim=5),
)
LEARNED = tuple(p for p in RELATIVE[1:] if Stage.VALUES not in p.stages)
MASKS = (
    hw.full(),
    hw.causal(),
    hw.window(19, 7),
    hw.dilated(3, 2, step=4),
    hw.causal() & hw.padding([L - 8, 3]),
    hw.documents([71, 5, L - 76]) & hw.causal(),
    hw.window(11, 5) | hw.global_tokens([0, 40]),
    hw.window(11, 0) | hw.random_blocks(16, 1, seed=5),
    hw.causal() & hw.from_tensor(torch.randn(L, L), "q k"),
)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How often gradients of a part came by products, and how often by autograd."""
    times = {"products": 0, "autograd": 0}
    with monkeypatch.context() as patch:
        for name, word in (("add_by_products", "products"), ("_add_exactly", "autograd")):
            inner = getattr(backward, name)

            def counting(*args: Any, inner: Any = inner, word: str = word, **words: Any) -> None:
                times[word] += 1
                inner(*args, **words)

            patch.setattr(backward, name, counting)
        yield times


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.name[:40])
@pytest.mark.parametrize("position", RELATIVE, ids=named)
def test_every_gradient_is_right(position: Position, mask: hw.Mask) -> None:
    call = Call.of(*tensors(L, L, dtype=torch.float32), mask=mask, position=position)
    accept_with_gradients(call, tiled.run(call))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("position", LEARNED, ids=named)
def test_in_every_dtype_and_for_any_number_of_groups(
    position: Position, groups: int, dtype: torch.dtype
) -> None:
    call = Call.of(
        *tensors(L, L, groups=groups, dtype=dtype), mask=hw.window(19, 3), position=position
    )
    accept_with_gradients(call, tiled.run(call))


@pytest.mark.parametrize(("queries", "offset"), [(67, None), (67, 5), (L, 40), (1, None)])
@pytest.mark.parametrize("position", RELATIVE, ids=named)
def test_with_an_offset(position: Position, queries: int, offset: int | None) -> None:
    call = Call.of(
        *tensors(queries, L, dtype=torch.float32),
        mask=hw.causal(),
        position=position,
        offset=offset,
    )
    accept_with_gradients(call, tiled.run(call))


@pytest.mark.parametrize("position", LEARNED, ids=named)
def test_a_query_that_sees_one_key_moves_no_score(position: Position) -> None:
    call = Call.of(*tensors(L, L, dtype=torch.float32), mask=hw.window(0, 0), position=position)
    result = tiled.run(call)
    gradients = torch.autograd.grad(result.output.sum(), [call.q, *position.parameters()])
    assert not any(bool(each.any()) for each in gradients)


@pytest.mark.parametrize(
    ("position", "way"),
    [(position, {"products"}) for position in LEARNED]
    + [(hw.ALiBi(HEADS), set()), (hw.T5Bias(HEADS).requires_grad_(False), set())],
    ids=named,
)
def test_a_few_products_give_the_gradients(
    position: Position, way: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a bias that nothing is learned of stays with the fused kernel."""
    q, k, v = tensors(L, L, dtype=torch.float32)
    with counted(monkeypatch) as times:
        hw.attend(q, k, v, mask=hw.causal(), position=position, engine="tiled").sum().backward()
    assert {word for word, count in times.items() if count} == way


@pytest.mark.parametrize("position", RELATIVE, ids=named)
def test_nothing_as_large_as_the_scores_is_made(
    position: Position, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor anything of L² numbers for one head of the six: forward, backward, all gradients."""
    for name in ("SCORES", "MOVING"):
        monkeypatch.setattr(forward, name, 1 << 14)
    length = 331
    q, k, v = tensors(length, length, dtype=torch.float32, batch=1)
    with Largest() as largest:
        output = hw.attend(q, k, v, position=position, engine="tiled")
        output.backward(torch.ones_like(output))
    assert HEADS * length * DIM <= largest.numbers < length * length


def test_a_position_of_ones_own_needs_its_bias_only() -> None:
    class Even(Position):
        """Keys at an even distance count less."""

        stages = frozenset({Stage.SCORES})

        def bias(self, q: Tensor, query: PositionIds, key: PositionIds, scale: float) -> Tensor:
            del scale
            even = (query[:, None] - key[None]) % 2 == 0
            return -even.to(q.dtype)[None, None]

    for mask in (hw.causal(), hw.window(9, 2) | hw.global_tokens([3])):
        call = Call.of(*tensors(L, L, dtype=torch.float32), mask=mask, position=Even())
        accept_with_gradients(call, tiled.run(call))


@pytest.mark.parametrize("position", RELATIVE, ids=named)
@pytest.mark.parametrize(("queries", "keys", "step"), [(5, 7, 1), (7, 3, 1), (1, 5, 1), (3, 5, 2)])
def test_along_a_row_the_bias_is_that_of_every_pair(
    position: Position, queries: int, keys: int, step: int
) -> None:
    position = position.double()
    q = torch.randn(2, HEADS, queries, DIM, dtype=torch.float64)
    query, key = torch.arange(queries) * step + 4, torch.arange(keys) * step
    wanted = position.bias(q, query, key, 0.3)
    found = position.bias_grid(q, query, key, 0.3)
    assert wanted is not None
    assert found is not None
    accept(found, wanted, wanted)
    position.float()


def test_relative_is_its_formula_for_every_pair() -> None:
    q = torch.randn(2, HEADS, 3, DIM, dtype=torch.float64)
    query, key = torch.arange(3), torch.arange(5)
    vectors = torch.randn(HEADS, 7, DIM, dtype=torch.float64)
    shift, numbers = torch.randn(HEADS, DIM).double(), torch.randn(HEADS, 7).double()
    by_vectors, by_numbers = RelativeTerms(vectors, shift), RelativeTerms(numbers=numbers)
    least = int(differences(query, key)[0])
    for i in range(3):
        for j in range(5):
            place = j - i - least
            wanted = ((q[:, :, i] + shift) * vectors[:, place]).sum(-1) * 0.3
            accept(by_vectors.bias(q, 0.3)[:, :, i, j], wanted, wanted)
            assert torch.equal(by_numbers.bias(q, 0.3)[0, :, i, j], numbers[:, place])
    part = by_vectors.at(slice(1, 6))
    wanted = by_vectors.bias(q, 0.3)[:, :, :2, :4]
    accept(part.bias(q[:, :, :2], 0.3), wanted, wanted)


def test_a_relative_bias_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="Relative: neither vectors nor numbers"):
        RelativeTerms().bias(torch.zeros(1, 1, 1, 1), 1.0)


def test_products_refuse_a_part_without_a_relative_bias() -> None:
    call = Call.of(*tensors(L, L))
    q, k, v = (t.detach() for t in (call.q, call.k, call.v))
    problem = Problem(q, k, v, q, call.mask, call.position, call.scale, call.shape)
    part = Part(StridedRows(0, 1, L), StridedRows(0, 1, L))
    with pytest.raises(ValueError, match="tiled: a part whose blocks differ"):
        backward._add_bias(GradientBuffers.of(problem, (), written=False), problem, part, q, q)

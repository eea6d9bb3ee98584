"""Small attention calls for the tests; every size is a different prime, except H."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import headwise as hw
from headwise.call import Call, Result
from headwise.masks import Mask, appended
from headwise.positions import Position
from headwise.reference import reference
from tests.roundings import hold, nudged

BATCH, HEADS, GROUPS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 6, 3, 5, 7, 11, 13


def tensors(
    queries: int = QUERIES,
    keys: int = KEYS,
    *,
    groups: int = GROUPS,
    dtype: torch.dtype = torch.float64,
    batch: int = BATCH,
) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, Dv) that want gradients."""
    shapes = (
        (batch, HEADS, queries, DIM),
        (batch, groups, keys, DIM),
        (batch, groups, keys, VALUE_DIM),
    )
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return q, k, v


def every_mask(queries: int = QUERIES, keys: int = KEYS, batch: int = BATCH) -> list[Mask]:
    """Each mask there is, and compositions, with blind rows and hidden keys among them."""
    pairs = torch.rand(batch, HEADS, queries, keys) > 0.5
    pairs[0, 0, 0] = False  # a blind row in one head of one sample
    bias = torch.randn(queries, keys).masked_fill(torch.rand(queries, keys) > 0.7, -torch.inf)
    lengths = ([keys - 2, 0] * batch)[:batch]
    return [
        hw.full(),
        hw.causal(),
        hw.window(2, 1),
        hw.window(0, 0),
        hw.padding(lengths),
        hw.padding(torch.rand(batch, keys) > 0.4),
        hw.from_tensor(pairs),
        hw.from_tensor(bias, "q k"),
        appended(hw.causal(), 2),
        hw.causal() & hw.window(3, 0) & hw.padding(lengths),
        ~hw.causal() | hw.window(1, 0),
        ~hw.padding(lengths),
        hw.causal() & hw.from_tensor(torch.randn(HEADS, queries, keys), "h q k"),
        hw.dilated(2, 1, step=2),
        hw.strided(3),
        hw.fixed(3, 1),
        hw.prefix(([3, 1] * batch)[:batch]),
        hw.documents([2, 3, keys - 5]) & hw.causal(),
        hw.documents(torch.randint(0, 3, (batch, keys))),
        hw.window(1, 1) | hw.global_tokens([0, 4]),
        hw.global_tokens(torch.rand(batch, keys) > 0.7, symmetric=False),
        hw.block_sparse(torch.rand(HEADS, 2, 3) > 0.5, 3),
        hw.window(1, 0) | hw.random_blocks(2, 1, seed=5, heads=HEADS),
        hw.per_head([hw.causal(), hw.full(), *(hw.window(n, 0) for n in range(HEADS - 2))]),
        hw.chunked(4) & hw.causal(),
        hw.window2d(1, 0, width=3),
        hw.tree([-1, 0, 0, 2]),
        hw.documents(torch.randint(0, 3, (batch, queries)), [2, keys - 2]),
    ]


def every_position(
    heads: int = HEADS, dim: int = DIM, value_dim: int = VALUE_DIM
) -> list[Position]:
    """Each position that acts inside `attend`, in its variants."""
    torch.manual_seed(1)
    return [
        hw.NoPosition(),
        hw.ALiBi(heads),
        hw.Rotary(dim, pairs="halves", rotary_dim=dim - dim % 2),
        hw.Rotary(dim, pairs="neighbours", rotary_dim=2 * (dim // 4) or 2),
        hw.Shaw(3, dim),
        hw.Shaw(2, dim, value_dim=value_dim),
        hw.T5Bias(heads, num_buckets=8, max_distance=5),
        hw.T5Bias(heads, num_buckets=6, max_distance=7, bidirectional=False),
        hw.TransformerXL(heads, dim, embed_dim=5),
        hw.Rotary(dim, pairs="halves", rotary_dim=dim - dim % 2) + hw.ALiBi(heads),
        hw.Shaw(2, dim, value_dim=value_dim) + hw.TransformerXL(heads, dim, embed_dim=5),
    ]


def named(position: Position) -> str:
    """A test's name for a position."""
    return repr(position)


def identity(mask: Mask) -> str:
    """A test's name for a mask."""
    return mask.name


def formulas(call: Call, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every statistic written out, from the reference in a dtype."""
    weights = reference(call, dtype).weights.to(torch.promote_types(dtype, torch.float32))
    query, key = (place.to(weights.dtype) for place in call.position_ids())
    terms = torch.where(weights > 0, weights * weights.log(), 0.0)
    return {
        "entropy": -terms.sum(-1),
        "received": weights.sum(2),
        "distance": (weights * (query[:, None] - key[None, :]).abs()).sum(-1),
        "largest": weights.max(-1).values,
    }


def accept_with_gradients(call: Call, *results: Result) -> None:
    """Assert that an engine's output and every gradient of it are accepted, or each of several's.

    The gradient of the values is joined to one that is exactly 0, as that of a query with one key
    is: alone it would be noise without a scale.
    """
    seed = torch.randn(reference(call).output.shape, dtype=torch.float64)

    def gradients(output: Tensor, of: Call) -> tuple[Tensor, ...]:
        inputs = (of.v, of.q, of.k, *of.position.parameters())
        return torch.autograd.grad(output, inputs, seed.to(output.dtype), retain_graph=True)

    def numbers(output: Tensor, of: Call) -> list[Tensor]:
        first, *others = gradients(output, of)
        joined = [
            each if scaled else torch.cat((each.flatten(), first.flatten()))
            for each, scaled in zip(others, has_scale, strict=True)
        ]
        return [output, first, *joined]

    def again(run: int) -> list[Tensor]:
        other = rounded_otherwise(call, run)
        return numbers(reference(other, call.q.dtype).output, other)

    oracle = reference(call).output
    has_scale = [bool(each.any()) for each in gradients(oracle, call)[1:]]
    exact, near = numbers(oracle, call), numbers(reference(call, call.q.dtype).output, call)
    for result in results:
        hold(numbers(result.output, call), near, exact, again)


def rounded_otherwise(call: Call, run: int) -> Call:
    """The call with inputs and learned numbers that differ by less than their rounding."""
    position = copy.deepcopy(call.position)
    for parameter in position.parameters():
        parameter.data = nudged(parameter, run).detach()
    sinks = None if call.sinks is None else nudged(call.sinks, run)
    q, k, v = (nudged(x, run) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, position=position, sinks=sinks)


class Largest(TorchDispatchMode):
    """The most float32 numbers that would fit into what any operation gave at once."""

    numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // 4)
        return result

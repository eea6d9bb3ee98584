"""Which calls the tiled engine can run, as one or head by head, and when it is worthwhile."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines.autograd_transforms import no_transform_rule, transformed, under_functorch
from headwise.engines.statistics import not_returned
from headwise.engines.tiled.decompose import conjuncts, disjuncts, distance_ranges, parts
from headwise.engines.tiled.encoding import encodable, encode
from headwise.engines.tiled.forward import SIDE
from headwise.lang import Text
from headwise.masks import Mask, Tile, causal, full
from headwise.masks.mask import And, Not, Or
from headwise.masks.patterns.composed import PerHead
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.positions import Stage
from headwise.shapes import AttentionShape

Group = tuple[tuple[int, ...], Mask]
"""Some heads, and the mask that they share."""


def head_groups(call: Call) -> list[Group]:
    """The heads grouped by their masks; one group of all heads where they cannot be separated.

    They cannot where a mask other than `per_head` depends on the head, or where a position adds to
    scores or values, since it may have parameters for every head.
    """
    heads = tuple(range(call.shape.heads))
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    if acts or not heads or not _splits(call.mask, call.shape):
        return [(heads, call.mask)]
    found: dict[Mask, tuple[int, ...]] = {}
    for head in heads:
        mask = _of(call.mask, head)
        found[mask] = (*found.get(mask, ()), head)
    return [(some, mask) for mask, some in found.items()]


def run_per_head(call: Call, apart: list[Group], run: Callable[[Call], Result]) -> Result:
    """Every group separately, concatenated in the order of the heads."""
    results = [run(_part(call, heads, mask)) for heads, mask in apart]
    order = torch.tensor([head for heads, _ in apart for head in heads], device=call.q.device)
    back = order.argsort()

    def joined(pieces: list[Tensor]) -> Tensor:
        return torch.cat(pieces, dim=1).index_select(1, back)

    sums = [r.logsumexp for r in results if r.logsumexp is not None]
    output = joined([result.output for result in results])
    return Result(output, logsumexp=joined(sums) if sums else None)


def _splits(mask: Mask, shape: AttentionShape) -> bool:
    """Whether a mask contains `per_head`, and no other part of it depends on the head."""
    patterns = [part for part in mask.walk() if not isinstance(part, And | Or | Not | PerHead)]
    splits = any(isinstance(part, PerHead) for part in mask.walk())
    return splits and not any(_depends_on_head(pattern, shape) for pattern in patterns)


def _depends_on_head(mask: Mask, shape: AttentionShape) -> bool:
    """Whether the rule or the bias has an axis of heads."""
    first = replace(shape, queries=min(shape.queries, 1), keys=min(shape.keys, 1)).indices()
    given = [mask.rule(*first)]
    added = mask.bias(*first)
    given += [] if added is None else [added]
    return any(values.dim() > 2 and values.shape[-3] > 1 for values in given)


def _of(mask: Mask, head: int) -> Mask:
    """The mask of one head."""
    if isinstance(mask, PerHead):
        return _of(mask.masks[head], head)
    return mask.map(lambda child: _of(child, head))


def _part(call: Call, heads: tuple[int, ...], mask: Mask) -> Call:
    """The call of some heads, every head with its own key/value head."""
    own = torch.tensor(heads, device=call.q.device)
    q = call.q.index_select(1, own)
    k, v = (rows.index_select(1, own // call.group) for rows in (call.k, call.v))
    sinks = None if call.sinks is None else call.sinks.index_select(0, own)
    shape = replace(call.shape, heads=len(heads))
    return replace(call, q=q, k=k, v=v, mask=mask, shape=shape, sinks=sinks)


SHORT, LONG = 512, 2048
"""Keys below which all scores are cheap to hold, and from which a bias of (Lq, Lk) is expensive."""

LEVELS = 5
"""How often an estimate bisects the queries and the keys."""

SHARE, SCATTERED = 0.5, 0.25
"""The largest share of pairs, in large tiles and in small ones, for which tiles are worthwhile."""

SAMPLES, ROWS = 16, 64
"""Blocks of queries that are sampled, and queries of a block."""


def why_not(call: Call) -> Iterator[Text]:
    """Every reason why this engine cannot run the call."""
    if "weights" in call.need:
        yield Text("it never holds the weights, Lq x Lk numbers")
    yield from not_returned(call.need, ("weights", "logsumexp"))
    if call.empty:
        yield Text("a size is 0")
    if call.q.device.type == "meta":
        yield Text("the tensors hold no numbers")
    if call.mask.biased and not encodable(call.mask):
        yield Text("it cannot see into the bias of {name}", name=type(call.mask).__name__)
    if under_functorch() or transformed(call):
        yield no_transform_rule()
    if torch.compiler.is_compiling():
        yield from _why_not_compiled(call)


def _why_not_compiled(call: Call) -> Iterator[Text]:
    """The reasons against a call under `torch.compile`, which sees an operator."""
    if {Stage.SCORES, Stage.VALUES} & call.position.stages and not encodable(call.position):
        yield Text(
            "under torch.compile {name} cannot be written as integers and tensors",
            name=type(call.position).__name__,
        )
    if not encodable(call.mask):
        yield Text(
            "under torch.compile {name} cannot be written as integers and tensors",
            name=type(call.mask).__name__,
        )


def worthwhile(call: Call) -> bool:
    """Whether the engine is the best choice for a call.

    It is where at least half of the pairs lie in empty tiles, or where other engines would write
    out a position's bias (Lq, Lk); not for short sequences.
    """
    shape = call.shape
    if shape.keys < SHORT or next(why_not(call), None) is not None:
        return False
    stored = shape.keys >= LONG and _bias_stored_elsewhere(call)
    if call.mask in (full(), causal()):
        return stored and shape.queries > 1
    if torch.compiler.is_compiling():
        return stored or _sparse_at_compile_time(call)
    apart = head_groups(call)
    if len(apart) > 1:
        calls = ((len(heads), replace(call, mask=mask)) for heads, mask in apart)
        kept = sum(
            count * (decomposed_share(one) if _has_lines_or_combs(one) else nonempty_share(one))
            for count, one in calls
        )
        return kept <= SHARE * shape.heads
    return stored or _sparse(call)


def _sparse(call: Call) -> bool:
    """Whether half of the pairs lie in empty tiles, or most in small ones.

    Rows, columns and combs touch almost every tile and hold few pairs: they do not count.
    """
    if nonempty_share(call) <= SHARE:
        return True
    return (_has_lines_or_combs(call) and decomposed_share(call) <= SHARE) or sampled_share(
        call
    ) <= SCATTERED


def _sparse_at_compile_time(call: Call) -> bool:
    """`_sparse` for the conjuncts that hold no tensor, at rounded lengths.

    The values of a tensor are unknown then; the other conjuncts alone allow at least as many pairs.
    Lengths are rounded down to a power of 2, so that a compiled function serves others as well.
    """
    without = [term for term in conjuncts(call.mask) if not encode(term)[1]]
    if not without:
        return False
    queries, keys = _power(call.shape.queries), _power(call.shape.keys)
    shape = replace(call.shape, queries=queries, keys=keys, offset=keys - queries)
    return _sparse(replace(call, mask=reduce(And, without), shape=shape))


def _power(size: int) -> int:
    """The greatest power of 2 that is not above a size."""
    power = 1
    while 2 * power <= size:
        power *= 2
    return power


def _has_lines_or_combs(call: Call) -> bool:
    """Whether a mask has global tokens or a comb of distances, which are computed separately.

    Combs are for long sequences, and are unknown while compiling.
    """
    every = [part for term in disjuncts(call.mask) for part in conjuncts(term)]
    if any(isinstance(part, GlobalTokens) for part in every):
        return True
    if call.shape.keys < LONG or torch.compiler.is_compiling():
        return False
    near = (part for part in every if part.by_distance and part not in (full(), causal()))
    return any(reach.step > 1 for part in near for reach in distance_ranges(part, call.shape))


def decomposed_share(call: Call) -> float:
    """The share of the pairs that the parts of the decomposed mask hold."""
    pairs = sum(part.pairs for part in parts(call.mask, call.shape, SIDE))
    return pairs / (call.shape.queries * call.shape.keys)


def _bias_stored_elsewhere(call: Call) -> bool:
    """Whether other engines would write out a bias that is computed in blocks here."""
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    return bool(acts) and not call.mask.biased


def nonempty_share(call: Call) -> float:
    """The share of the pairs in tiles that are not empty, on a coarse grid."""
    shape = call.shape
    queries = range(shape.offset, shape.offset + shape.queries)
    return _kept(call.mask, queries, range(shape.keys), LEVELS) / (shape.queries * shape.keys)


def sampled_share(call: Call) -> float:
    """The share of the pairs in small tiles that are not empty, estimated from some blocks."""
    shape, kept, seen = call.shape, 0, 0
    blocks = range(0, shape.queries, ROWS)
    for first in blocks[:: max(1, -(-len(blocks) // SAMPLES))]:
        stop = min(first + ROWS, shape.queries)
        queries = range(first + shape.offset, stop + shape.offset)
        kept += len(queries) * _columns(call.mask, queries, range(shape.keys))
        seen += len(queries) * shape.keys
    return kept / seen


def _columns(mask: Mask, q: range, k: range) -> int:
    """How many keys lie in tiles that are not empty, for some queries."""
    kind = mask.tile(q, k)
    if kind is Tile.EMPTY:
        return 0
    if kind is Tile.FULL or len(k) <= ROWS:
        return len(k)
    return sum(_columns(mask, q, half) for half in _halves(k))


def _kept(mask: Mask, q: range, k: range, levels: int) -> int:
    kind = mask.tile(q, k)
    if kind is Tile.EMPTY:
        return 0
    if kind is Tile.FULL or not levels or len(q) == 1 or len(k) == 1:
        return len(q) * len(k)
    halves = ((half, other) for half in _halves(q) for other in _halves(k))
    return sum(_kept(mask, half, other, levels - 1) for half, other in halves)


def _halves(numbers: range) -> tuple[range, range]:
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle:]

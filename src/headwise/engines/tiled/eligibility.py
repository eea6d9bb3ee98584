"""Which calls the tiled engine can run, as a whole or per head, and when it is worthwhile."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import product

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines.autograd_transforms import no_transform_rule
from headwise.engines.statistics import not_returned
from headwise.engines.tiled.decompose import conjuncts, disjuncts, distance_ranges, parts
from headwise.engines.tiled.encoding import encodable, encode
from headwise.engines.tiled.forward import SIDE
from headwise.lang import Text
from headwise.masks import Mask, Tile, causal, full
from headwise.masks.arguments import without_numbers
from headwise.masks.mask import And, Not, Or
from headwise.masks.patterns.composed import PerHead
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.shapes import AttentionShape

Group = tuple[tuple[int, ...], Mask]  # some heads, and the mask that they share

SHORT, LONG = 512, 2048
"""Lk below which all scores are cheap to store, and from which an (Lq, Lk) bias is expensive."""

DENSE = LONG * LONG  # number of pairs from which no whole mask is stored: it would be slower

LEVELS = 5  # how many times an estimate bisects the queries and the keys

SHARE, SCATTERED = 0.5, 0.25
"""The largest share of pairs, in large tiles and in small ones, for which tiles are worthwhile."""

SAMPLES, ROWS = 16, 64  # blocks of queries that are sampled, and queries of a block


def why_not(call: Call) -> Iterator[Text]:
    """Yield every reason why this engine cannot run the call."""
    if "weights" in call.need:
        yield Text("it never stores the Lq x Lk weights")
    yield from not_returned(call.need, ("weights", "logsumexp"))
    if call.empty:
        yield Text("a size is 0")
    if without_numbers(call.q):
        yield Text("the tensors hold no numbers")
    if call.mask.biased and not encodable(call.mask):
        yield Text("it cannot see into the bias of {name}", name=type(call.mask).__name__)
    if call.score_mod is not None and call.score_mod_requires_grad():
        yield Text("score_mod reads a tensor that requires a gradient")
    if call.score_mod is not None and torch.compiler.is_compiling():
        yield Text("under torch.compile a score_mod cannot be written as integers and tensors")
    yield from no_transform_rule(call, compiling=True)
    if torch.compiler.is_compiling():  # an operator carries the mask and the position
        acting = (call.position.after_content, call.mask)
        for part in acting if call.position.acts_after_content else (call.mask,):
            if not encodable(part):
                yield Text(
                    "under torch.compile {name} cannot be written as integers and tensors",
                    name=type(part).__name__,
                )


def head_groups(call: Call) -> list[Group]:
    """Return the heads grouped by their masks, or one group if they cannot be separated.

    They cannot if a mask other than `per_head` depends on the head, if a position adds to scores or
    values, since it may have parameters for every head, or with a ``score_mod``, which gets the
    head's index.
    """
    heads = tuple(range(call.shape.heads))
    together = call.position.acts_after_content or call.score_mod is not None
    if together or not heads or not _splits(call.mask, call.shape):
        return [(heads, call.mask)]
    by_mask: dict[Mask, tuple[int, ...]] = {}
    for head in heads:
        mask = _of_head(call.mask, head)
        by_mask[mask] = (*by_mask.get(mask, ()), head)
    return [(some, mask) for mask, some in by_mask.items()]


def run_per_head(call: Call, groups: list[Group], run: Callable[[Call], Result]) -> Result:
    """Run every group separately; concatenate the results in the order of the heads."""
    results, indices = list[Result](), list[Tensor]()
    for heads, mask in groups:  # select for every head its key/value head
        index = torch.tensor(heads, device=call.q.device)
        q = call.q.index_select(1, index)
        k, v = (rows.index_select(1, index // call.group) for rows in (call.k, call.v))
        sinks = None if call.sinks is None else call.sinks.index_select(0, index)
        shape = replace(call.shape, heads=len(heads))
        results.append(run(replace(call, q=q, k=k, v=v, mask=mask, shape=shape, sinks=sinks)))
        indices.append(index)
    back = torch.cat(indices).argsort()

    output = torch.cat([result.output for result in results], 1).index_select(1, back)
    sums = [result.logsumexp for result in results if result.logsumexp is not None]
    return Result(output, logsumexp=torch.cat(sums, 1).index_select(1, back) if sums else None)


def _splits(mask: Mask, shape: AttentionShape) -> bool:
    """Return whether a mask contains `per_head`, and no other part depends on the head."""
    patterns = [part for part in mask.walk() if not isinstance(part, And | Or | Not | PerHead)]
    splits = any(isinstance(part, PerHead) for part in mask.walk())
    return splits and not any(_depends_on_head(pattern, shape) for pattern in patterns)


def _depends_on_head(mask: Mask, shape: AttentionShape) -> bool:
    """Return whether the rule or the bias has an axis of heads."""
    first = replace(shape, queries=min(shape.queries, 1), keys=min(shape.keys, 1)).indices()
    terms = (mask.rule(*first), mask.bias(*first))
    return any(x is not None and x.dim() > 2 and x.shape[-3] > 1 for x in terms)


def _of_head(mask: Mask, head: int) -> Mask:
    if isinstance(mask, PerHead):
        return _of_head(mask.masks[head], head)
    return mask.map(lambda child: _of_head(child, head))


def worthwhile(call: Call) -> bool:
    """Return whether the engine is the best choice for a call.

    It is if at least half of the pairs lie in empty tiles, or if other engines would store a mask
    or a position's bias for many pairs; but not for short sequences.
    """
    shape = call.shape
    if shape.keys < SHORT or next(why_not(call), None) is not None:
        return False
    acts = call.position.acts_after_content or call.score_function is not None
    biased = shape.keys >= LONG and acts and not call.mask.biased
    if call.mask in (full(), causal()):
        return biased and shape.queries > 1
    if shape.queries * shape.keys >= DENSE:
        return True
    if torch.compiler.is_compiling():
        return biased or _sparse_at_compile_time(call)
    groups = head_groups(call)
    if len(groups) == 1:
        return biased or _sparse(call)
    kept = 0.0
    for heads, mask in groups:
        own = replace(call, mask=mask)
        share = decomposed_share if _has_lines_or_combs(own) else nonempty_share
        kept += len(heads) * share(own)
    return kept <= SHARE * shape.heads


def _sparse(call: Call) -> bool:
    """Return whether half of the pairs lie in empty tiles, or most of them in small empty tiles.

    Rows, columns and combs touch almost every tile but hold few pairs, so they do not count.
    """
    if nonempty_share(call) <= SHARE:
        return True
    if _has_lines_or_combs(call) and decomposed_share(call) <= SHARE:
        return True
    return sampled_share(call) <= SCATTERED


def _sparse_at_compile_time(call: Call) -> bool:
    """Evaluate `_sparse` for the conjuncts that hold no tensor, at rounded lengths.

    The values of a tensor are unknown while compiling; the other conjuncts alone allow at least as
    many pairs. Lengths are rounded down to a power of 2, so a compiled function serves many
    lengths.
    """
    without = [term for term in conjuncts(call.mask) if not encode(term)[1]]
    if not without:
        return False
    queries, keys = _power(call.shape.queries), _power(call.shape.keys)
    shape = replace(call.shape, queries=queries, keys=keys, offset=keys - queries)
    return _sparse(replace(call, mask=reduce(And, without), shape=shape))


def _power(size: int) -> int:
    """Return the greatest power of 2 that is not above a size."""
    power = 1
    while 2 * power <= size:
        power *= 2
    return power


def _has_lines_or_combs(call: Call) -> bool:
    """Return whether a mask has global tokens or a comb, which are computed separately.

    Combs count for long sequences only, and are unknown while compiling.
    """
    patterns = [part for term in disjuncts(call.mask) for part in conjuncts(term)]
    if any(isinstance(part, GlobalTokens) for part in patterns):
        return True
    if call.shape.keys < LONG or torch.compiler.is_compiling():
        return False
    near = (part for part in patterns if part.by_distance and part not in (full(), causal()))
    return any(reach.step > 1 for part in near for reach in distance_ranges(part, call.shape))


def decomposed_share(call: Call) -> float:
    """Return the share of all pairs that the parts of the decomposed mask hold."""
    pairs = sum(part.pairs for part in parts(call.mask, call.shape, SIDE))
    return pairs / (call.shape.queries * call.shape.keys)


def nonempty_share(call: Call) -> float:
    """Return the share of the pairs in tiles that are not empty, on a coarse grid."""
    shape = call.shape
    queries = range(shape.offset, shape.offset + shape.queries)
    return _kept(call.mask, queries, range(shape.keys), LEVELS) / (shape.queries * shape.keys)


def sampled_share(call: Call) -> float:
    """Return the share of the pairs in small nonempty tiles, estimated from some blocks."""
    shape, kept, seen = call.shape, 0, 0
    blocks = range(0, shape.queries, ROWS)
    for first in blocks[:: max(1, -(-len(blocks) // SAMPLES))]:
        stop = min(first + ROWS, shape.queries)
        queries = range(first + shape.offset, stop + shape.offset)
        kept += len(queries) * _columns(call.mask, queries, range(shape.keys))
        seen += len(queries) * shape.keys
    return kept / seen


def _columns(mask: Mask, q: range, k: range) -> int:
    """Return how many keys lie in tiles that are not empty, for some queries."""
    kind = mask.tile(q, k)
    if kind is Tile.MIXED and len(k) > ROWS:
        return sum(_columns(mask, q, half) for half in _halves(k))
    return 0 if kind is Tile.EMPTY else len(k)


def _kept(mask: Mask, q: range, k: range, levels: int) -> int:
    """Return how many pairs lie in tiles that are not empty, after ``levels`` bisections."""
    kind = mask.tile(q, k)
    if kind is Tile.MIXED and levels and len(q) > 1 and len(k) > 1:
        halves = product(_halves(q), _halves(k))
        return sum(_kept(mask, *half, levels - 1) for half in halves)
    return 0 if kind is Tile.EMPTY else len(q) * len(k)


def _halves(numbers: range) -> tuple[range, range]:
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle:]

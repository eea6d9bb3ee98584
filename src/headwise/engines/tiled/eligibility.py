"""When the engine cannot run a call, and when it has nothing to win."""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

import torch

from headwise.call import Call
from headwise.engines.autograd_transforms import no_transform_rule, transformed, under_functorch
from headwise.engines.statistics import not_returned
from headwise.engines.tiled.decompose import conjuncts, disjuncts, distance_ranges, parts
from headwise.engines.tiled.encoding import encode, known
from headwise.engines.tiled.forward import SIDE
from headwise.engines.tiled.per_head import head_groups
from headwise.lang import Text
from headwise.masks import Mask, Tile, causal, full
from headwise.masks.mask import And
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.positions import Stage

SHORT, LONG = 512, 2048
"""Keys below which all scores are cheap to hold, and from which a bias of (Lq, Lk) is dear."""

LEVELS = 5
"""How often an estimate halves the queries and the keys."""

SHARE, SCATTERED = 0.5, 0.25
"""The share of all pairs that a mask may leave for its pattern to pay: in large tiles, in small."""

SAMPLES, ROWS = 16, 64
"""Blocks of queries that stand for all of them, and queries of each."""


def why_not(call: Call) -> Iterator[Text]:
    """Every reason why this engine cannot run the call."""
    if "weights" in call.need:
        yield Text("it never holds the weights, Lq x Lk numbers")
    yield from not_returned(call.need, ("weights", "logsumexp"))
    if call.empty:
        yield Text("a size is 0")
    if call.q.device.type == "meta":
        yield Text("the tensors hold no numbers")
    if call.mask.biased and not known(call.mask):
        yield Text("it cannot see into the bias of {name}", name=type(call.mask).__name__)
    if under_functorch() or transformed(call):
        yield no_transform_rule()
    if torch.compiler.is_compiling():
        yield from _why_not_compiled(call)


def _why_not_compiled(call: Call) -> Iterator[Text]:
    """The reasons against a call under `torch.compile`, which sees an operator."""
    if {Stage.SCORES, Stage.VALUES} & call.position.stages and not known(call.position):
        yield Text(
            "under torch.compile it knows headwise's own positions only, not {name}",
            name=type(call.position).__name__,
        )
    if not known(call.mask):
        yield Text(
            "under torch.compile it knows headwise's own masks only, not {name}",
            name=type(call.mask).__name__,
        )


def worthwhile(call: Call) -> bool:
    """Whether the engine is the better choice for a call it can run.

    It is where at least half of the pairs lie in empty tiles, and where a position's bias of
    (Lq, Lk) would have to be written out otherwise; not for short sequences.
    """
    frame = call.frame
    if frame.keys < SHORT or next(why_not(call), None) is not None:
        return False
    stored = frame.keys >= LONG and _stored(call)
    if call.mask in (full(), causal()):
        return stored and frame.queries > 1
    if torch.compiler.is_compiling():
        return stored or _foreseen(call)
    apart = head_groups(call)
    if len(apart) > 1:
        each = ((len(heads), replace(call, mask=mask)) for heads, mask in apart)
        kept = sum(count * (held(one) if _apart(one) else share(one)) for count, one in each)
        return kept <= SHARE * frame.heads
    return stored or _sparse(call)


def _sparse(call: Call) -> bool:
    """Whether half of the pairs lie in empty tiles, or most in small ones, or beside what is apart.

    That is lines and combs, which leave hardly a tile empty and hold few of the pairs.
    """
    if share(call) <= SHARE:
        return True
    return (_apart(call) and held(call) <= SHARE) or sampled_share(call) <= SCATTERED


def _foreseen(call: Call) -> bool:
    """The same while compiling: by masks that hold no tensor, at lengths that stand for more.

    What a tensor holds is not known then, so that only the masks beside it count: all together can
    but leave fewer pairs. And what is compiled should serve other lengths: the greatest power of 2
    that is no longer stands for all up to the next.
    """
    without = [each for each in conjuncts(call.mask) if not encode(each)[1]]
    if not without:
        return False
    queries, keys = _power(call.frame.queries), _power(call.frame.keys)
    frame = replace(call.frame, queries=queries, keys=keys, offset=keys - queries)
    return _sparse(replace(call, mask=reduce(And, without), frame=frame))


def _power(size: int) -> int:
    """The greatest power of 2 that is not above a size."""
    power = 1
    while 2 * power <= size:
        power *= 2
    return power


def _apart(call: Call) -> bool:
    """Whether a mask has global tokens, which become lines, or distances that become combs.

    Combs are for long sequences, and while compiling nothing is known of them.
    """
    every = [part for each in disjuncts(call.mask) for part in conjuncts(each)]
    if any(isinstance(part, GlobalTokens) for part in every):
        return True
    if call.frame.keys < LONG or torch.compiler.is_compiling():
        return False
    near = (part for part in every if part.by_distance and part not in (full(), causal()))
    return any(reach.step > 1 for part in near for reach in distance_ranges(part, call.frame))


def held(call: Call) -> float:
    """The share of the pairs that are computed once the mask is taken apart."""
    pairs = sum(part.pairs for part in parts(call.mask, call.frame, SIDE))
    return pairs / (call.frame.queries * call.frame.keys)


def _stored(call: Call) -> bool:
    """Whether others would write out a bias that is made a block at a time here."""
    acts = {Stage.SCORES, Stage.VALUES} & call.position.stages
    return bool(acts) and not call.mask.biased


def share(call: Call) -> float:
    """The share of the pairs in tiles that the mask does not leave empty, on a coarse grid."""
    frame = call.frame
    queries = range(frame.offset, frame.offset + frame.queries)
    return _kept(call.mask, queries, range(frame.keys), LEVELS) / (frame.queries * frame.keys)


def sampled_share(call: Call) -> float:
    """The share of the pairs in small tiles that are not empty, by some blocks of queries only."""
    frame, kept, seen = call.frame, 0, 0
    blocks = range(0, frame.queries, ROWS)
    for first in blocks[:: max(1, -(-len(blocks) // SAMPLES))]:
        stop = min(first + ROWS, frame.queries)
        queries = range(first + frame.offset, stop + frame.offset)
        kept += len(queries) * _columns(call.mask, queries, range(frame.keys))
        seen += len(queries) * frame.keys
    return kept / seen


def _columns(mask: Mask, q: range, k: range) -> int:
    """How many keys stand in tiles of some queries that are not empty."""
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

"""Which engine would run an attention, and why, with its cost and its peak memory."""

import math
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headwise.attention import AUTO, choose
from headwise.call import Call, softmax_dtype
from headwise.engines import ENGINES, blockwise, eager, lsh, sdpa, tiled
from headwise.engines.tiled.eligibility import head_groups
from headwise.lang import Lang, Text, joined, same
from headwise.masks import Mask, Tile
from headwise.masks.tiles import Tiles
from headwise.positions import Position, Stage
from headwise.shapes import AttentionShape, Index

PIECE = 64
"""Queries and keys of the piece that is looked at."""


def bytes_per_pair(
    rule: Callable[[Index, Index, Index, Index], Tensor | None], shape: AttentionShape
) -> float:
    """The most bytes that a rule or a bias holds at once, for each pair of a query and a key.

    It is found by running it on a small piece for all samples and heads, and counts what every step
    makes and lets go, such as distances as integers of 8 bytes.

    Args:
        rule: of a mask that is resolved for the shape.
        shape: the call's shape, with a query and a key at least.
    """
    queries, keys = min(shape.queries, PIECE), min(shape.keys, PIECE)
    indices = replace(shape, queries=queries, keys=keys).indices()
    with _Working(queries * keys) as working:
        rule(*indices)
    return float(working.most / (queries * keys))


class _Working(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors of some size that are made inside and not yet let go."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.now, self.most = least, 0, 0
        self.users: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {_place(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._made(leaf, given)
        return result

    def _made(self, tensor: Tensor, given: set[int]) -> None:
        """Count a tensor, unless it is small or a view of what was there before."""
        place, size = _place(tensor), tensor.untyped_storage().nbytes()
        if not place or size < self.least * tensor.element_size():
            return
        if place not in self.users:
            if place in given:
                return
            self.now += size
            self.most = max(self.most, self.now)
        self.users[place] = self.users.get(place, 0) + 1
        weakref.finalize(tensor, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self.users[place] -= 1
        if not self.users[place]:
            del self.users[place]
            self.now -= size


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


KINDS = {"empty": Text("empty"), "mixed": Text("mixed"), "full": Text("full")}
"""The kinds of tiles."""

SPARSE = ("tiled", "flex")
"""Engines that skip empty tiles."""


@dataclass(frozen=True)
class Plan:
    """How one attention would be run.

    Attributes:
        engine: the name of the engine that runs it.
        refused: for each other engine that cannot, every reason.
        tiles: how many tiles of 128 x 128 the mask calls empty, mixed or full.
        share: share of the pairs that lie in tiles which are not empty, 0 to 1.
        flops: floating point operations of the forward pass with this engine, without the tiles
            that it skips.
        bytes: bytes of q, k, v and the output, and the peak of scores and masks in this engine.
    """

    engine: str
    refused: dict[str, list[Text]]
    tiles: dict[str, int]
    share: float
    flops: int
    bytes: int

    def rows(self) -> list[tuple[Text, Text]]:
        """The plan as names and values."""
        return [
            (Text("engine"), same(self.engine)),
            *(
                (Text("not {name}", name=name), joined(Text("; "), reasons))
                for name, reasons in self.refused.items()
            ),
            (
                Text("tiles"),
                joined(Text(", "), [_kind(kind, count) for kind, count in self.tiles.items()]),
            ),
            (Text("pairs in tiles that are not empty"), same(f"{self.share:.1%}")),
            (Text("FLOPs"), same(f"{self.flops:,}")),
            (Text("bytes"), same(f"{self.bytes:,}")),
        ]

    def describe(self, lang: Lang = "en") -> str:
        """The plan as text."""
        return "\n".join(f"{label.to(lang)}: {value.to(lang)}" for label, value in self.rows())

    def __str__(self) -> str:
        return self.describe()


def plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    position: Position | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    sinks: Tensor | None = None,
    need: Collection[str] | None = None,
    engine: str = AUTO,
) -> Plan:
    """The plan of `attend` for the same arguments; nothing is computed.

    Raises:
        BadValue, BadType, EngineRefused: exactly where `attend` raises.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.zeros(1, 2, 5, 8)
        >>> hw.plan(x, x, x, mask=hw.causal(), need=["weights"]).engine
        'eager'
    """
    call = Call.of(
        q,
        k,
        v,
        mask=mask,
        position=position,
        scale=scale,
        dropout=dropout,
        offset=offset,
        sinks=sinks,
        need=need or (),
    )
    tiles, pairs = Tiles.of(call.mask, call.shape), call.shape.queries * call.shape.keys
    chosen = choose(call, engine).NAME
    refusals = ((e.NAME, list(e.why_not(call))) for e in ENGINES)
    seen = _nonempty_pairs(call, tiles) if chosen == tiled.NAME else pairs - tiles.pairs(Tile.EMPTY)
    return Plan(
        engine=chosen,
        refused={name: reasons for name, reasons in refusals if reasons},
        tiles={kind.value: tiles.count(kind) for kind in Tile},
        share=seen / pairs if pairs else 0.0,
        flops=_flops(call, _computed_pairs(call, chosen, seen)),
        bytes=_bytes(call, chosen),
    )


def _kind(kind: str, count: int) -> Text:
    return Text("{count:,} {kinds}", count=count, kinds=KINDS[kind])


def _nonempty_pairs(call: Call, tiles: Tiles) -> int:
    """Pairs in tiles that are not empty, the mean over heads, which may have different masks."""
    groups = head_groups(call)
    by_mask = [tiles] if len(groups) == 1 else [Tiles.of(mask, call.shape) for _, mask in groups]
    pairs = call.shape.queries * call.shape.keys
    seen = (pairs - of.pairs(Tile.EMPTY) for of in by_mask)
    weighted = sum(len(heads) * n for (heads, _), n in zip(groups, seen, strict=True))
    return round(weighted / call.shape.heads) if call.shape.heads else 0


def _computed_pairs(call: Call, engine: str, seen: int) -> int:
    """Pairs that an engine computes for a head, of which ``seen`` lie in nonempty tiles."""
    if engine == lsh.NAME:
        return lsh.pairs(call)
    return seen if engine in SPARSE else call.shape.queries * call.shape.keys


def _flops(call: Call, pairs: int) -> int:
    """Two products for every pair and head: q kᵀ over D, and weights v over Dv."""
    heads = call.shape.batch * call.shape.heads
    return 2 * heads * pairs * (call.q.shape[3] + call.v.shape[3])


def _bytes(call: Call, engine: str) -> int:
    shape = call.shape
    written = shape.batch * shape.heads * shape.queries * call.v.shape[3]
    elements = call.q.numel() + call.k.numel() + call.v.numel() + written
    return elements * call.q.element_size() + _score_bytes(call, engine)


def _score_bytes(call: Call, engine: str) -> int:
    """Bytes of tensors (Lq, Lk), or of one block in an engine that computes in blocks."""
    shape, wide = call.shape, softmax_dtype(call.q.dtype).itemsize
    if 0 in (shape.batch, shape.heads, shape.queries, shape.keys):
        return 0
    if engine == eager.NAME:  # scores and weights
        return 2 * shape.batch * shape.heads * shape.queries * shape.keys * wide
    if engine == blockwise.NAME:
        samples, queries = blockwise.block_size(call)
        return 2 * min(samples, shape.batch) * shape.heads * queries * shape.keys * wide
    if engine == sdpa.NAME and not sdpa.without_mask(call):
        return _mask_bytes(call, wide)
    return 0


def _mask_bytes(call: Call, wide: int) -> int:
    """Bytes of a mask that is written out, and of copies of the keys and values.

    The peak is the rule while it is evaluated; or the booleans with the bias while it is computed,
    or with the bias and the terms added to the scores.
    """
    first = replace(call.shape, queries=1, keys=1).indices()
    rule, bias = call.mask.rule(*first), call.mask.bias(*first)
    allowed, biased = _mask_count(rule), 0 if bias is None else _mask_count(bias)
    if Stage.SCORES in call.position.stages:
        biased = call.shape.batch * call.shape.heads
    numbers = max(allowed, biased) + biased
    of_rule = bytes_per_pair(call.mask.rule, call.shape)
    of_bias = bytes_per_pair(call.mask.bias, call.shape)
    per_pair = max(of_rule, allowed + of_bias, allowed + numbers * wide)
    copies = (call.k.numel() + call.v.numel()) * call.q.element_size()
    return math.ceil(per_pair * call.shape.queries * call.shape.keys) + copies


def _mask_count(values: Tensor) -> int:
    """How many masks there are over samples and heads, from the values of one pair."""
    return math.prod(values.shape[:-2])

"""The engine that would run an attention, the reasons, the cost and the peak memory."""

import math
import weakref
from collections.abc import Callable, Collection, Iterator
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
from headwise.score_functions import ScoreMod
from headwise.shapes import AttentionShape, Index

PIECE = 64  # queries and keys of the piece on which memory is measured


def bytes_per_pair(
    rule: Callable[[Index, Index, Index, Index], Tensor | None], shape: AttentionShape
) -> float:
    """Return the peak memory of a rule or a bias, in bytes per query-key pair.

    It is measured on a small piece of the resolved mask, for all samples and heads. It includes
    every intermediate tensor, such as distances as 8-byte integers.
    """
    queries, keys = min(shape.queries, PIECE), min(shape.keys, PIECE)
    indices = replace(shape, queries=queries, keys=keys).indices()
    with _Working(queries * keys) as memory:
        rule(*indices)
    return float(memory.most / (queries * keys))


class _Working(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A counter of the bytes of tensors of at least some size that exist at one time."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.now, self.most = least, 0, 0
        self.users: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        inputs = {_address(leaf) for leaf in _tensors((args, kwargs))}
        for leaf in _tensors(result):
            self._count(leaf, inputs)
        return result

    def _count(self, tensor: Tensor, inputs: set[int]) -> None:
        """Count a tensor, unless it is small or a view of an input."""
        address, size = _address(tensor), tensor.untyped_storage().nbytes()
        if not address or size < self.least * tensor.element_size():
            return
        if address not in self.users:
            if address in inputs:
                return
            self.now += size
            self.most = max(self.most, self.now)
        self.users[address] = self.users.get(address, 0) + 1
        weakref.finalize(tensor, self._freed, address, size)

    def _freed(self, address: int, size: int) -> None:
        self.users[address] -= 1
        if not self.users[address]:
            del self.users[address]
            self.now -= size


def _tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


KINDS = {"empty": Text("empty"), "mixed": Text("mixed"), "full": Text("full")}  # the kinds of tiles
SPARSE = ("tiled", "flex")  # engines that skip empty tiles


@dataclass(frozen=True)
class Plan:
    """How `attend` would run one attention.

    Attributes:
        engine: the name of the engine that runs it.
        refused: for each engine that cannot run the call, every reason.
        tiles: how many tiles of 128 x 128 are empty, mixed or full under the mask.
        share: share of the pairs in tiles that are not empty, 0 to 1.
        flops: floating point operations of the forward pass with this engine, without the tiles
            that it skips.
        bytes: bytes of q, k, v and the output, plus the peak of scores and masks in this engine.
        untold: why the kinds of the mask's tiles are unknown, so that none is skipped; or None.
    """

    engine: str
    refused: dict[str, list[Text]]
    tiles: dict[str, int]
    share: float
    flops: int
    bytes: int
    untold: Text | None = None

    def rows(self) -> list[tuple[Text, Text]]:
        refused = [
            (Text("why not {name}", name=name), joined(Text("; "), reasons))
            for name, reasons in self.refused.items()
        ]
        tiles = joined(Text(", "), tile_counts(self.tiles))
        return [
            (Text("engine"), same(self.engine)),
            *refused,
            (Text("tiles"), tiles),
            *([] if self.untold is None else [(Text("mask"), self.untold)]),
            (Text("pairs in nonempty tiles"), same(f"{self.share:.1%}")),
            (Text("FLOPs"), same(f"{self.flops:,}")),
            (Text("memory in bytes"), same(f"{self.bytes:,}")),
        ]

    def describe(self, lang: Lang = "en") -> str:
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
    softcap: float | None = None,
    score_mod: ScoreMod | None = None,
    need: Collection[str] | None = None,
    engine: str = AUTO,
) -> Plan:
    """Return how `attend` would run the same arguments; nothing is computed.

    Raises:
        BadValue, BadType, EngineRefused: in the same cases as `attend`.

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
        softcap=softcap,
        score_mod=score_mod,
        need=need or (),
    )
    shape, tiles = call.shape, Tiles.of(call.mask, call.shape)
    pairs = shape.queries * shape.keys
    chosen = choose(call, engine).NAME
    refusals = ((e.NAME, list(e.why_not(call))) for e in ENGINES)
    seen = _nonempty_pairs(call, tiles) if chosen == tiled.NAME else pairs - tiles.pairs(Tile.EMPTY)
    written = shape.batch * shape.heads * shape.queries * v.shape[3]
    elements = q.numel() + k.numel() + v.numel() + written
    computed = pairs  # for one head
    if chosen in (lsh.NAME, *SPARSE):
        computed = lsh.pairs(call) if chosen == lsh.NAME else seen
    return Plan(
        engine=chosen,
        refused={name: reasons for name, reasons in refusals if reasons},
        tiles=tiles.counts(),
        share=seen / pairs if pairs else 0.0,
        flops=2 * shape.batch * shape.heads * computed * (q.shape[3] + v.shape[3]),
        bytes=elements * q.element_size() + _score_bytes(call, chosen),
        untold=call.mask.untold_tiles(),
    )


def tile_counts(tiles: dict[str, int]) -> list[Text]:
    """Return the number of tiles of each kind, as in "3 full"."""
    return [Text("{count:,} {kinds}", count=n, kinds=KINDS[kind]) for kind, n in tiles.items()]


def _nonempty_pairs(call: Call, tiles: Tiles) -> int:
    """Return the pairs in tiles that are not empty, as a mean over heads with different masks."""
    groups = head_groups(call)
    by_mask = [tiles] if len(groups) == 1 else [Tiles.of(mask, call.shape) for _, mask in groups]
    pairs = call.shape.queries * call.shape.keys
    seen = (pairs - of.pairs(Tile.EMPTY) for of in by_mask)
    weighted = sum(len(heads) * n for (heads, _), n in zip(groups, seen, strict=True))
    return round(weighted / call.shape.heads) if call.shape.heads else 0


def _score_bytes(call: Call, engine: str) -> int:
    """Return the bytes of tensors (Lq, Lk), or of one block in a blockwise engine."""
    shape, wide = call.shape, softmax_dtype(call.q.dtype).itemsize
    if 0 in (shape.batch, shape.heads, shape.queries, shape.keys):
        return 0
    if engine == eager.NAME:  # scores and weights; a function has a temporary tensor
        tensors = 2 if call.score_function is None else 3
        return tensors * shape.batch * shape.heads * shape.queries * shape.keys * wide
    if engine == blockwise.NAME:
        samples, queries = blockwise.block_size(call)
        return 2 * min(samples, shape.batch) * shape.heads * queries * shape.keys * wide
    if engine == sdpa.NAME and not sdpa.without_mask(call):
        return _mask_bytes(call, wide)
    return 0


def _mask_bytes(call: Call, wide: int) -> int:
    """Return the bytes of a dense mask, and of copies of the keys and values.

    The peak occurs while the rule or the bias is evaluated, or when both results exist.
    """
    first = replace(call.shape, queries=1, keys=1).indices()
    rule, bias = call.mask.rule(*first), call.mask.bias(*first)
    allowed = math.prod(rule.shape[:-2])  # number of masks, which may differ by sample and head
    biased = 0 if bias is None else math.prod(bias.shape[:-2])
    if Stage.SCORES in call.position.stages:
        biased = call.shape.batch * call.shape.heads
    numbers = max(allowed, biased) + biased
    of_rule = bytes_per_pair(call.mask.rule, call.shape)
    of_bias = bytes_per_pair(call.mask.bias, call.shape)
    per_pair = max(of_rule, allowed + of_bias, allowed + numbers * wide)
    copies = (call.k.numel() + call.v.numel()) * call.q.element_size()
    return math.ceil(per_pair * call.shape.queries * call.shape.keys) + copies

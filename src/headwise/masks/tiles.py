"""The kind of every tile of one call, without evaluating the rule: empty, mixed or full."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.masks.mask import And, Mask, Not, Or, Tile
from headwise.masks.patterns.by_length import Padding
from headwise.masks.patterns.sparse_transformer import Fixed
from headwise.shapes import AttentionShape, Truth

SIDE = 128  # default number of queries and keys of a tile
AT_ONCE = 2**22  # the most pairs evaluated at once
NARROW = 16  # the most tiles of a block for which a fixed pattern is evaluated by column
_CODES = (Tile.EMPTY, Tile.MIXED, Tile.FULL)


@dataclass(frozen=True, eq=False)
class Tiles:
    """The kinds of the tiles of one call, created by `Tiles.of`."""

    mask: Mask  # resolved for the shape of the call
    shape: AttentionShape
    side: int  # queries and keys of a tile; the last tiles may be shorter
    kinds: Tensor  # (query tiles, key tiles), int8 on the CPU: 0 empty, 1 mixed, 2 full

    @classmethod
    def of(cls, mask: Mask, shape: AttentionShape, side: int = SIDE) -> "Tiles":
        """Return the tiles of a resolved mask.

        The operands of ``&``, ``|`` and ``~`` are classified separately. For a mask by distance,
        one tile per diagonal is classified; for padding, one per column; for a fixed pattern, the
        tiles near the diagonal and one per column. Any other mask is classified by large
        rectangles, which are halved where they are mixed.

        Example:
            >>> from headwise.masks import causal
            >>> cpu = torch.device("cpu")
            >>> shape = AttentionShape(1, 1, queries=5, keys=5, offset=0, device=cpu)
            >>> Tiles.of(causal(), shape, side=2).kinds.tolist()
            [[1, 0, 0], [2, 1, 0], [2, 2, 2]]
        """
        rows, columns = -(-shape.queries // side), -(-shape.keys // side)
        wanted = torch.ones(rows, columns, dtype=torch.bool)
        return cls(mask, shape, side, _Grid(shape, side).kinds(mask, wanted))

    def counts(self) -> dict[str, int]:
        return {kind.value: int((self.kinds == code).sum()) for code, kind in enumerate(_CODES)}

    def pairs(self, kind: Tile) -> int:
        """Return the number of query-key pairs in tiles of a kind, for one sample and head."""
        rows, columns = self._lengths()
        of_kind = (self.kinds == _CODES.index(kind)).long()
        return int(rows @ (of_kind @ columns))

    def seen(self) -> tuple[Tensor, Tensor]:
        """Return the number of allowed keys of each query, and of allowed queries of each key.

        Only mixed tiles are evaluated, several at a time.

        Returns:
            (B or 1, H or 1, Lq) and (B or 1, H or 1, Lk), integers on the CPU.
        """
        queries, keys = self.shape.queries, self.shape.keys
        if self.mask.by_distance and self.kinds.numel():
            before = self.shape.allowed_before(self.mask.rule).cpu()
            by_query = before[keys:] - before[:queries]
            by_key = (before[queries:] - before[:keys]).flip(0)
            return by_query[None, None], by_key[None, None]
        rows, columns = self._lengths()
        full = (self.kinds == 2).long()
        by_query = (full @ columns)[None, None, :, None].repeat(1, 1, 1, self.side)
        by_key = (rows @ full)[None, None, :, None].repeat(1, 1, 1, self.side)
        for places, allowed in self._mixed():
            if allowed.shape[:2] != by_query.shape[:2]:
                by_query, by_key = (t.repeat(*allowed.shape[:2], 1, 1) for t in (by_query, by_key))
            by_query.index_add_(2, places[:, 0], allowed.sum(-1).cpu())
            by_key.index_add_(2, places[:, 1], allowed.sum(-2).cpu())
        return by_query.flatten(2)[..., :queries], by_key.flatten(2)[..., :keys]

    def _mixed(self) -> Iterator[tuple[Tensor, Truth]]:
        """Yield mixed tiles in batches: their indices (n, 2) and the rule (B, H, n, side, side)."""
        queries, keys, device = self.shape.queries, self.shape.keys, self.shape.device
        b = torch.arange(self.shape.batch, device=device).view(-1, 1, 1, 1, 1)
        h = torch.arange(self.shape.heads, device=device).view(-1, 1, 1, 1)
        within = torch.arange(self.side, device=device)
        mixed, start, many = (self.kinds == 1).nonzero(), 0, 1
        while start < len(mixed):
            places = mixed[start : start + many]
            first = places.to(device) * self.side
            q = first[:, 0, None, None] + within[:, None]
            k = first[:, 1, None, None] + within
            inside = (q < queries) & (k < keys)
            place = q.clamp(max=queries - 1) + self.shape.offset
            allowed = self.mask.rule(b, h, place, k.clamp(max=keys - 1)) & inside
            allowed = allowed[(None,) * (5 - allowed.dim())]
            start += many
            many = max(1, AT_ONCE * many // allowed.numel())  # counts B and H if the rule has them
            yield places, allowed

    def _lengths(self) -> tuple[Tensor, Tensor]:
        """Return the number of queries in each row of tiles, and of keys in each column."""
        rows, columns = (torch.arange(count) * self.side for count in self.kinds.shape)
        shape, side = self.shape, self.side
        return (shape.queries - rows).clamp(max=side), (shape.keys - columns).clamp(max=side)


class _Grid:
    """A classifier of the tiles of masks for one shape."""

    def __init__(self, shape: AttentionShape, side: int) -> None:
        self.shape, self.side = shape, side

    def kinds(self, mask: Mask, wanted: Tensor) -> Tensor:
        """Return the kinds of the ``wanted`` tiles; the kinds of other tiles may be wrong."""
        match mask:
            case And() | Or():
                first, second = sorted((mask.left, mask.right), key=_is_costly)
                known = self.kinds(first, wanted)
                both, done = isinstance(mask, And), 0 if isinstance(mask, And) else 2
                rest = self.kinds(second, wanted & (known != done))
                joined = torch.minimum(known, rest) if both else torch.maximum(known, rest)
                return torch.where(known == done, known, joined)
            case Not():
                return 2 - self.kinds(mask.inner, wanted)
            case Padding():
                codes = [self.code(mask, 0, 1, j, j + 1) for j in range(wanted.shape[1])]
                return torch.tensor(codes, dtype=torch.int8).expand_as(wanted)
            case Fixed() if mask.block <= NARROW * self.side:
                return self.by_column(mask)
        return self.by_diagonal(mask) if mask.by_distance else self.top_down(mask, wanted)

    def by_diagonal(self, mask: Mask) -> Tensor:
        """Classify one tile per diagonal, and the shorter tiles at the edges one by one."""
        queries, keys, side = self.shape.queries, self.shape.keys, self.side
        rows, columns = -(-queries // side), -(-keys // side)
        kinds = torch.zeros(rows, columns, dtype=torch.int8)
        whole_rows, whole_columns = queries // side, keys // side
        if whole_rows and whole_columns:
            left = [(i, 0) for i in range(whole_rows - 1, 0, -1)]
            top = [(0, j) for j in range(whole_columns)]
            codes = [self.code(mask, i, i + 1, j, j + 1) for i, j in left + top]
            diagonal = torch.arange(whole_columns) - torch.arange(whole_rows)[:, None]
            alike = torch.tensor(codes, dtype=torch.int8)[diagonal + whole_rows - 1]
            kinds[:whole_rows, :whole_columns] = alike
        for i in range(rows):
            for j in range(whole_columns if i < whole_rows else 0, columns):
                kinds[i, j] = self.code(mask, i, i + 1, j, j + 1)
        return kinds

    def by_column(self, mask: Fixed) -> Tensor:
        """Classify one tile for all rows that begin after the block of the column's last key."""
        shape, side, block = self.shape, self.side, mask.block
        rows, columns = -(-shape.queries // side), -(-shape.keys // side)
        kinds = torch.zeros(rows, columns, dtype=torch.int8)
        for j in range(columns):
            last = min((j + 1) * side, shape.keys) - 1
            later = (last // block + 1) * block  # the first position after that key's block
            alike = min(rows, max(0, -((shape.offset - later) // side)))
            if alike < rows:
                kinds[alike:, j] = self.code(mask, alike, alike + 1, j, j + 1)
            for i in range(max(0, (j * side - shape.offset) // side), alike):
                kinds[i, j] = self.code(mask, i, i + 1, j, j + 1)
        return kinds

    def top_down(self, mask: Mask, wanted: Tensor) -> Tensor:
        """Classify rectangles of tiles, and halve those that are mixed."""
        kinds = torch.zeros(wanted.shape, dtype=torch.int8)
        waiting = [(0, wanted.shape[0], 0, wanted.shape[1])]
        while waiting:
            q0, q1, k0, k1 = waiting.pop()
            if q0 == q1 or k0 == k1 or not bool(wanted[q0:q1, k0:k1].any()):
                continue
            code = self.code(mask, q0, q1, k0, k1)
            if code == 1 and (q1 - q0 > 1 or k1 - k0 > 1):
                q, k = (q0 + q1 + 1) // 2, (k0 + k1 + 1) // 2
                waiting += [(q0, q, k0, k), (q0, q, k, k1), (q, q1, k0, k), (q, q1, k, k1)]
            elif code:
                kinds[q0:q1, k0:k1] = code
        return kinds

    def code(self, mask: Mask, q0: int, q1: int, k0: int, k1: int) -> int:
        side, shape = self.side, self.shape
        rows = range(q0 * side + shape.offset, min(q1 * side, shape.queries) + shape.offset)
        columns = range(k0 * side, min(k1 * side, shape.keys))
        return _CODES.index(mask.tile(rows, columns))


def _is_costly(mask: Mask) -> bool:
    """Return whether every tile must be classified, so the other operand should come first."""
    return not (mask.by_distance or isinstance(mask, Padding))

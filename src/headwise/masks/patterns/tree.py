"""The mask of a tree of draft tokens, as speculative decoding verifies it in one call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks.arguments import INTEGERS, check_integers, without_numbers
from headwise.masks.mask import Mask, Tile, zero_index
from headwise.shapes import AttentionShape, Index, Truth, broadcasts, check_dense, describe

MOST = 2**11  # the most nodes: a table of their pairs is kept


@dataclass(frozen=True, repr=False, eq=False)
class Tree(Mask):
    """The mask of `tree`; `resolve` says where the tree begins."""

    ancestors: Tensor  # (B or 1, n, n), True where the second node is the first or above it
    first: int | None = None  # the position of node 0

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        if self.first is None:
            raise BadValue(
                "tree: its nodes are the last keys of a call; use mask.resolve(shape) or "
                "mask.dense(shape)"
            )
        table = self.ancestors.to(k.device)
        last, row = table.shape[1] - 1, b if len(table) > 1 else zero_index(b)
        node, other = q - self.first, k - self.first
        inside = (node >= 0) & (node <= last) & (other >= 0) & (other <= last)
        above = table[row, node.clamp(0, last), other.clamp(0, last)]
        return torch.where(inside, above, (k <= q) & (other < 0))

    def tile(self, q: range, k: range) -> Tile:
        if self.first is None:
            return Tile.MIXED
        nodes = self.ancestors.shape[1]
        if k[-1] < self.first:  # the context
            if k[-1] <= q[0]:
                return Tile.FULL
            return Tile.EMPTY if k[0] > q[-1] else Tile.MIXED
        if k[0] < self.first:
            return Tile.MIXED
        rows = slice(max(q[0] - self.first, 0), max(q[-1] + 1 - self.first, 0))
        part = self.ancestors[:, rows, k[0] - self.first : k[-1] + 1 - self.first]
        inside = q[0] >= self.first and q[-1] < self.first + nodes
        return Tile.of(part, inside)

    @property
    def depths(self) -> Tensor:
        """(B or 1, n), how many nodes are above each node: 0 for a root.

        The position of a node, for `Rotary.at`, is the number of tokens before the tree plus this.
        """
        return self.ancestors.sum(-1) - 1

    @property
    def name(self) -> str:
        """With the parents of the nodes: of all ancestors the one that is deepest."""
        if len(self.ancestors) > 1 or without_numbers(self.ancestors):
            return f"tree(<{tuple(self.ancestors.shape[:2])}>)"
        own = torch.eye(self.ancestors.shape[1], dtype=torch.bool, device=self.ancestors.device)
        above, depths = (self.ancestors & ~own)[0], self.depths[0]
        parents = torch.where(above, depths + 1, 0).argmax(-1).masked_fill(~above.any(-1), -1)
        return f"tree({parents.tolist()})"

    def required_sizes(self) -> dict[str, int]:
        return {"B": len(self.ancestors)}

    def resolve(self, shape: AttentionShape) -> Mask:
        batch, nodes = self.ancestors.shape[:2]
        if not broadcasts(batch, shape.batch) or nodes > shape.keys:
            raise BadValue(
                "tree: made for a batch of {batch} and {nodes} nodes, called with a batch of "
                "{got} and {keys} keys; the nodes are the last keys",
                batch=batch,
                nodes=nodes,
                got=shape.batch,
                keys=shape.keys,
            )
        return replace(self, first=shape.keys - nodes)


def tree(parents: Sequence[int] | Tensor) -> Mask:
    """A tree of draft tokens after a context: a node sees the context, its ancestors and itself.

    The nodes are the last keys. What stands before them is causal, as in one call that reads a
    text and verifies a tree; usually the context lies in a cache, and the queries are the nodes.
    The tokens of one level have one position: see `Tree.depths` for a rotary encoding.

    Args:
        parents: the number of each node's parent, which comes before it, or -1 for a root: one list
            for all samples, or integers (n,) or (B, n).

    Raises:
        BadType, BadValue: if it is no list of integers, a parent does not come before its child,
            there are more than 2048 nodes, or, when called, B or Lk do not fit.

    Source: Miao et al. 2024 (SpecInfer), section 4, tree attention; Cai et al. 2024 (Medusa),
        section 3.1.

    Example:
        >>> print(tree([-1, 0, 0, 1]).draw(4, 6))  # two tokens of context, then the four nodes
        ■ ■ ■ · · ·
        ■ ■ ■ ■ · ·
        ■ ■ ■ · ■ ·
        ■ ■ ■ ■ · ■
    """
    tables = [_ancestors(sample) for sample in _samples(parents)]
    device = parents.device if isinstance(parents, Tensor) else None
    return Tree(torch.tensor(tables, dtype=torch.bool, device=device))


def _ancestors(parents: list[int]) -> list[list[bool]]:
    """For each node which nodes are it or above it."""
    rows = list[list[bool]]()
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise BadValue(
                "tree: the parent of node {node} must be from -1 to {last}, got {got}; number the "
                "nodes so that a parent comes before its children",
                node=node,
                last=node - 1,
                got=parent,
            )
        row = [False] * len(parents) if parent < 0 else rows[parent].copy()
        row[node] = True
        rows.append(row)
    return rows


def _samples(parents: Sequence[int] | Tensor) -> list[list[int]]:
    """The parents of each sample, or of all."""
    if isinstance(parents, Tensor):
        check_dense("tree", parents)
        table = parents[None] if parents.dim() == 1 else parents
        if parents.dtype not in INTEGERS or table.dim() != 2:
            raise BadType(
                "tree: expected the parents of the nodes, integers (n,) or (B, n), got {got}",
                got=describe(parents),
            )
        rows: list[list[int]] = table.tolist()
    else:
        rows = [check_integers("tree", Text("parent"), parents, Text("-1 is a root"), -1)]
    nodes = len(rows[0]) if rows else 0
    if not 1 <= nodes <= MOST:
        raise BadValue("tree: expected 1 to {most} nodes, got {nodes}", most=MOST, nodes=nodes)
    return rows

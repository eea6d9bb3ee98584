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

MOST = 2**11  # the maximum number of nodes; a table of all their pairs is stored


@dataclass(frozen=True, repr=False, eq=False)
class Tree(Mask):
    """The mask of `tree`; `resolve` sets the position of the first node."""

    ancestors: Tensor  # (B or 1, n, n), True if the second node is the first or its ancestor
    first: int | None = None  # the position of node 0

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        if self.first is None:
            raise BadValue(
                "tree: the mask needs the number of keys of a call, since the nodes are the last "
                "keys; use mask.resolve(shape) or mask.dense(shape)"
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
        """The depth of each node, (B or 1, n): the number of its ancestors, 0 for a root.

        In `Rotary.at`, the position of a node is the number of context tokens plus its depth.
        """
        return self.ancestors.sum(-1) - 1

    @property
    def name(self) -> str:
        """The name with the parents of the nodes; a parent is the deepest ancestor."""
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
                "tree: the mask has batch size {batch} and {nodes} nodes, but the call has batch "
                "size {got} and {keys} keys; the nodes must be the last keys",
                batch=batch,
                nodes=nodes,
                got=shape.batch,
                keys=shape.keys,
            )
        return replace(self, first=shape.keys - nodes)


def tree(parents: Sequence[int] | Tensor) -> Mask:
    """A tree of draft tokens: each node attends to the context, its ancestors and itself.

    The nodes are the last keys, and the context tokens before them are causal. Usually, a cache
    contains the context, and only the nodes are queries. All nodes at the same depth should have
    the same position: pass positions computed from `Tree.depths` to `Rotary.at`.

    Args:
        parents: the index of each node's parent, which must come before the node, or -1 for a root;
            a list for all samples, or an integer tensor (n,) or (B, n).

    Raises:
        BadType, BadValue: if parents are not integers, a parent does not come before its child, or
            there are more than 2048 nodes; when called, if B or Lk does not fit.

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
    """Return for each node whether each node is the node itself or one of its ancestors."""
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
    """Return the list of parents for each sample, or one list for all samples."""
    if isinstance(parents, Tensor):
        check_dense("tree", parents)
        table = parents[None] if parents.dim() == 1 else parents
        if parents.dtype not in INTEGERS or table.dim() != 2:
            raise BadType(
                "tree: expected an integer tensor (n,) or (B, n) of parents, got {got}",
                got=describe(parents),
            )
        rows: list[list[int]] = table.tolist()
    else:
        rows = [check_integers("tree", Text("parent"), parents, Text("-1 is a root"), -1)]
    nodes = len(rows[0]) if rows else 0
    if not 1 <= nodes <= MOST:
        raise BadValue("tree: expected 1 to {most} nodes, got {nodes}", most=MOST, nodes=nodes)
    return rows

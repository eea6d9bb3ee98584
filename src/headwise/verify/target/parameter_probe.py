"""Map the parameters of a user's module to projections, by their effect on the output.

Where names say nothing, the parameters are told apart by how the output depends on them:

    out      linear; one row of it moves one feature of the output
    v        linear; one row of it moves every feature
    q, k     not linear, since they stand inside the softmax; which is which nobody can tell from
             outside before the outputs are compared, so that both readings are given
    k bias   moves nothing: the softmax does not see a constant
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.errors import BadFile
from headwise.verify.oracle.jobs import Weights
from headwise.verify.target.parameter_names import (
    POSITION,
    Binding,
    ParameterSlot,
    fitting,
    place_of,
)

Give = Callable[[Mapping[str, Tensor]], Tensor]
"""The output (B, L, E) of a module with some of its parameters replaced."""

Kind = Literal["still", "straight", "turned", "linear", "curved"]
"""Moves nothing; linear, and a row (or a column) of it moves one feature; linear; not linear."""

SMALL = 1e-4
"""A share of what moved that is rounding in float32 and no curvature: sums of a hundred products
are true to 1e-5, and a softmax of scores around 1 is bent by far more."""

MOST_PARAMETERS = 64
"""A module with more of them is more than one attention."""


@dataclass(frozen=True)
class Block:
    """One projection or bias: rows of parameters that belong together.

    Attributes:
        places: the parameters, one below the other, as they would be turned.
        part, parts: which of how many equal parts of them it is.
    """

    places: tuple[ParameterSlot, ...]
    part: int
    parts: int

    @property
    def bias(self) -> bool:
        """Whether it is one number for each feature."""
        return len(self.places[0].shape) == 1


def probe(module: nn.Module, give: Give, weights: Weights, heads: int) -> tuple[Binding, ...]:
    """Every binding of a module's parameters that its outputs allow, the likely one first.

    Args:
        module: somebody's.
        give: its output with some parameters replaced; raises where it cannot be called.
        weights: weights of the sizes that it was made for, a key/value head for every head.
        heads: H.

    Returns:
        Bindings that differ in which of two projections is the query's; none where the parameters
        are not those of one attention.
    """
    named = {n: p.detach() for n, p in module.named_parameters() if not POSITION.search(n)}
    if not 0 < len(named) <= MOST_PARAMETERS:
        return ()
    start = _drawn(named)
    blocks = _blocks(module, named, weights.q.shape, heads)
    try:
        with torch.no_grad():
            kinds = {block: _kind(give, start, block) for block in blocks}
    except Exception:
        return ()  # what it does not do with its own parameters it does with no other
    return _readings(module, kinds, weights, heads)


def _drawn(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Seeded matrices and biases that give scores around 1."""
    draw = torch.Generator().manual_seed(5)
    drawn = {}
    for name, parameter in named.items():
        if parameter.dim() == 0 or not parameter.is_floating_point():
            continue
        size = parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 2.0
        drawn[name] = torch.randn(parameter.shape, generator=draw) / size
    return drawn


def _blocks(
    module: nn.Module, named: Mapping[str, Tensor], square: tuple[int, ...], heads: int
) -> list[Block]:
    """The parameters that could be projections or biases, apart or in equal parts."""
    total, embed_dim = square
    blocks: list[Block] = []
    for names in _together(named, total, heads):
        places = tuple(place_of(module, name, named[name]) for name in names)
        rows = sum(_rows(place, embed_dim) for place in places)
        parts = rows // total if rows >= total else 1
        whole = rows % total == 0 if rows >= total else rows and rows % (total // heads) == 0
        if whole and parts <= 3:
            blocks += [Block(places, part, parts) for part in range(parts)]
    return blocks


def _together(named: Mapping[str, Tensor], total: int, heads: int) -> list[tuple[str, ...]]:
    """Names one by one, and those of the heads' own parameters together."""
    alike: dict[str, list[str]] = {}
    for name in named:
        alike.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    result: list[tuple[str, ...]] = []
    for names in alike.values():
        sizes = {named[name].shape for name in names}
        one = len(sizes) == 1 and total // heads in next(iter(sizes))
        if len(names) == heads > 1 and one:
            result.append(tuple(names))
        else:
            result += [(name,) for name in names]
    return result


def _rows(place: ParameterSlot, embed_dim: int) -> int:
    """How many features a parameter gives; 0 where it is no projection of E features."""
    shape = place.shape
    if len(shape) == 3:
        first, middle, last = shape
        return first * (last if middle == embed_dim else middle if last == embed_dim else 0)
    if len(shape) == 1:
        return shape[0]
    if len(shape) != 2 or embed_dim not in shape:
        return 0
    return shape[0] if shape[1] == embed_dim else shape[1]


def _kind(give: Give, start: Mapping[str, Tensor], block: Block) -> Kind:
    once, twice = (give({**start, **_moved(start, block, by)}) for by in (1.0, 2.0))
    before = give(start)
    moved = (once - before).abs().max()
    if not bool(moved > SMALL * before.abs().max()):
        return "still"
    if bool((twice - 2 * once + before).abs().max() > SMALL * max(moved, before.abs().max())):
        return "curved"
    kinds: tuple[Literal["straight", "turned"], ...] = ("straight", "turned")
    for kind in kinds:
        one = give({**start, **_moved(start, block, 1.0, only=kind)})
        if int(((one - before).abs().amax((0, 1)) > SMALL * moved).sum()) == 1:
            return kind
    return "linear"


def _moved(
    start: Mapping[str, Tensor], block: Block, by: float, only: str | None = None
) -> dict[str, Tensor]:
    """The block's parameters with a step added to the block, or to its first row or column."""
    draw = torch.Generator().manual_seed(6)
    moved = {}
    for place in block.places:
        tensor = start[place.name].clone()
        step = torch.randn(tensor.shape, generator=draw) / max(tensor.shape) ** 0.5
        axis = _axis(place, block)
        part = tensor.shape[axis] // block.parts
        kept = torch.zeros_like(step)
        kept.narrow(axis, block.part * part, part).fill_(1.0)
        if only is not None and tensor.dim() > 1:
            line = 0 if only == "straight" else tensor.dim() - 1
            at = block.part * part if line == axis else 0
            first = torch.zeros_like(step)
            first.narrow(line, at, 1).fill_(1.0)
            kept *= first
        elif only is not None:
            first = torch.zeros_like(step)
            first[block.part * part] = 1.0
            kept *= first
        moved[place.name] = tensor + by * step * kept
        if only is not None:
            break  # one row stands in one parameter
    return moved | {
        place.name: start[place.name] for place in block.places if place.name not in moved
    }


def _axis(place: ParameterSlot, block: Block) -> int:
    """The axis along which parts stand: that of the features it gives."""
    if len(place.shape) != 2 or block.parts == 1:
        return 0
    return 0 if place.shape[0] > place.shape[1] else 1


def _readings(
    module: nn.Module, kinds: Mapping[Block, Kind], weights: Weights, heads: int
) -> tuple[Binding, ...]:
    matrices = {block: kind for block, kind in kinds.items() if not block.bias}
    scores = [block for block, kind in matrices.items() if kind == "curved"]
    lines = [block for block, kind in matrices.items() if kind not in ("curved", "still")]
    outs = [block for block in lines if matrices[block] != "linear"]
    if len(scores) != 2 or len(lines) not in (1, 2) or len(outs) > 1:
        return ()
    (value,) = lines if len(lines) == 1 else [block for block in lines if block not in outs]
    out = outs[0] if len(lines) == 2 else None
    turned = matrices[outs[0]] == "turned" if outs else None
    result = []
    for query, key in permutations(scores):
        roles = {query: "q", key: "k", value: "v", **({out: "out"} if out else {})}
        for biases in _biases(roles, kinds):
            binding = _binding(roles, biases, turned)
            with suppress(BadFile):  # other sizes than an attention has
                result += [] if binding is None else [fitting(binding, module, weights, heads)]
    return tuple(result)


def _biases(
    roles: Mapping[Block, str], kinds: Mapping[Block, Kind]
) -> tuple[dict[Block, str], ...]:
    """Biases go with the weight of their own module; parameters that stand alone by their kind.

    With a softmax over the wrong axis it is the query's bias that moves nothing: where the kind
    told, there is a second reading.
    """
    biases = [block for block in kinds if block.bias]
    owners = Counter(_homes(block) for block in roles if block.part == 0)
    homes = {(_homes(block), block.part, block.parts): role for block, role in roles.items()}
    has_out = "out" in roles.values()
    result: dict[Block, str] = {}
    guessed = False
    for block in biases:
        role = homes.get((_homes(block), block.part, block.parts))
        if role is None or owners[_homes(block)] > 1:
            kind = kinds[block]
            local = "out" if has_out else "v"
            by_kind = {"curved": "q", "still": "k", "linear": "v", "straight": local}
            role, guessed = by_kind.get(kind, local), True
        if role not in result.values():
            result[block] = role
    other = {"q": "k", "k": "q"}
    named = {block: f"{role}_bias" for block, role in result.items()}
    swapped = {block: f"{other.get(role, role)}_bias" for block, role in result.items()}
    return (named, swapped) if guessed else (named,)


def _homes(block: Block) -> tuple[str, ...]:
    """The modules that hold the block's parameters."""
    return tuple(place.name.rpartition(".")[0] for place in block.places)


def _binding(
    roles: Mapping[Block, str], biases: Mapping[Block, str], turned: bool | None
) -> Binding | None:
    """The blocks by their parameters; None where a part of a parameter has no role."""
    grouped: dict[tuple[ParameterSlot, ...], dict[int, str]] = {}
    parts: dict[tuple[ParameterSlot, ...], int] = {}
    for block, role in (*roles.items(), *biases.items()):
        grouped.setdefault(block.places, {})[block.part] = role
        parts[block.places] = block.parts
    places = {}
    for group, by_part in grouped.items():
        if len(by_part) != parts[group]:
            return None
        names = tuple(by_part[part] for part in range(parts[group]))
        places[names] = tuple(_oriented(place, turned) for place in group)
    return Binding(places)


def _oriented(place: ParameterSlot, turned: bool | None) -> ParameterSlot:
    """A raw matrix the way the output projection stands; others as their shape or kind says."""
    if not place.transposed or turned is None or len(place.shape) != 2:
        return place
    return ParameterSlot(place.name, turned, place.shape)

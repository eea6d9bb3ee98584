"""Map the parameters of a user's module to projections, by their effect on the output.

out      linear; one row of it changes one feature of the output
v        linear; one row of it changes every feature
q, k     not linear, since they are inside the softmax; only a comparison of outputs shows which
is which, so that both interpretations are returned
k bias   changes nothing: a constant added to all scores does not change the softmax
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.errors import BadFile
from headwise.verify.oracle.jobs import Weights
from headwise.verify.target.parameters.parameter_names import (
    POSITION,
    Binding,
    ParameterSlot,
    fitting,
    place_of,
)

Give = Callable[[Mapping[str, Tensor]], Tensor]
"""The output (B, L, E) of a module with some of its parameters replaced."""

Kind = Literal["still", "straight", "turned", "linear", "curved"]
"""No effect; linear, and a row (or a column) of it changes one feature; linear; not linear."""

SMALL = 1e-4
"""The share of a change that is rounding in float32: sums of a hundred products are accurate to
1e-5, and the curvature of a softmax of scores around 1 is far larger."""

MOST_PARAMETERS = 64  # a module with more parameters is more than one attention


@dataclass(frozen=True)
class Block:
    """One projection or bias: one of several equal parts of parameters, one below the other."""

    places: tuple[ParameterSlot, ...]
    part: int
    parts: int

    @property
    def bias(self) -> bool:
        """Whether it has one number for each feature."""
        return len(self.places[0].shape) == 1


def probe(module: nn.Module, give: Give, weights: Weights, heads: int) -> tuple[Binding, ...]:
    """Every binding of a module's parameters that its outputs allow, the likely one first.

    They differ in which of two projections is the query's. There is none where the parameters are
    not those of one attention. The weights have a key/value head for every head.
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
        return ()
    every = dict(module.named_parameters())
    return tuple(
        replace(binding, unplaced=_rest(binding, every), zeroed=_positions(every))
        for binding in _bindings(module, kinds, weights, heads)
    )


def _rest(binding: Binding, every: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The parameters that are neither projections nor positions."""
    placed = {slot.name for slot in binding.slots}
    return tuple(name for name in every if name not in placed and not POSITION.search(name))


def _positions(every: Mapping[str, Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(p.shape)) for name, p in every.items() if POSITION.search(name))


def _drawn(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Seeded matrices and biases that give scores around 1."""
    draw = torch.Generator().manual_seed(5)
    drawn = {}
    for name, parameter in named.items():
        if parameter.dim() and parameter.is_floating_point():
            size = parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 2.0
            drawn[name] = torch.randn(parameter.shape, generator=draw) / size
    return drawn


def _blocks(
    module: nn.Module, named: Mapping[str, Tensor], square: tuple[int, ...], heads: int
) -> list[Block]:
    """The parameters that could be projections or biases, whole or in equal parts."""
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
    """Names of parameters, alone, or in one group where every head has its own."""
    alike: dict[str, list[str]] = {}
    for name in named:
        alike.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    groups: list[tuple[str, ...]] = []
    for names in alike.values():
        sizes = {named[name].shape for name in names}
        per_head = len(sizes) == 1 and total // heads in next(iter(sizes))
        together = len(names) == heads > 1 and per_head
        groups += [tuple(names)] if together else [(name,) for name in names]
    return groups


def _rows(place: ParameterSlot, embed_dim: int) -> int:
    """The number of output features of a parameter; 0 where it is no projection of E features."""
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
    change = (once - before).abs().max()
    largest = before.abs().max()
    if not bool(change > SMALL * largest):
        return "still"
    if bool((twice - 2 * once + before).abs().max() > SMALL * max(change, largest)):
        return "curved"
    kinds: tuple[Literal["straight", "turned"], ...] = ("straight", "turned")
    for kind in kinds:
        one = give({**start, **_moved(start, block, 1.0, only=kind)})
        if int(((one - before).abs().amax((0, 1)) > SMALL * change).sum()) == 1:
            return kind
    return "linear"


def _moved(
    start: Mapping[str, Tensor], block: Block, by: float, only: str | None = None
) -> dict[str, Tensor]:
    """The block's parameters with a step added to the block, or to its first row or column."""
    draw = torch.Generator().manual_seed(6)
    moved = {}
    for place in block.places:
        tensor = start[place.name]
        step = torch.randn(tensor.shape, generator=draw) / max(tensor.shape) ** 0.5
        axis = _axis(place, block)
        size = tensor.shape[axis] // block.parts
        own = torch.zeros_like(step)
        own.narrow(axis, block.part * size, size).fill_(1.0)
        if only is not None:
            line = 0 if only == "straight" else tensor.dim() - 1
            first = torch.zeros_like(step)
            first.narrow(line, block.part * size if line == axis else 0, 1).fill_(1.0)
            own *= first
        moved[place.name] = tensor + by * step * own
        if only is not None:
            break  # one row is in one parameter
    return moved


def _axis(place: ParameterSlot, block: Block) -> int:
    if len(place.shape) != 2 or block.parts == 1:
        return 0
    return 0 if place.shape[0] > place.shape[1] else 1


def _bindings(
    module: nn.Module, kinds: Mapping[Block, Kind], weights: Weights, heads: int
) -> tuple[Binding, ...]:
    matrices = {block: kind for block, kind in kinds.items() if not block.bias}
    scores = [block for block, kind in matrices.items() if kind == "curved"]
    linear = [block for block, kind in matrices.items() if kind not in ("curved", "still")]
    outs = [block for block in linear if matrices[block] != "linear"]
    if len(scores) != 2 or len(linear) not in (1, 2) or len(outs) not in (len(linear) - 1, 1):
        return ()
    (value,) = linear if len(linear) == 1 else [block for block in linear if block not in outs]
    turned = matrices[outs[0]] == "turned" if outs else None
    after = {outs[0]: "out"} if len(linear) == 2 else {}
    result = []
    for query, key in permutations(scores):
        roles = {query: "q", key: "k", value: "v", **after}
        for biases in _biases(roles, kinds):
            binding = _binding(roles, biases, turned)
            with suppress(BadFile):  # other sizes than an attention has
                result += [] if binding is None else [fitting(binding, module, weights, heads)]
    return tuple(result)


def _biases(
    roles: Mapping[Block, str], kinds: Mapping[Block, Kind]
) -> tuple[dict[Block, str], ...]:
    """Biases go with the weight of their own module; parameters without a module by their kind.

    With a softmax over the wrong axis, the query's bias has no effect: where the kind decided,
    there is a second interpretation.
    """
    owners = Counter(_homes(block) for block in roles if block.part == 0)
    homes = {(_homes(block), block.part, block.parts): role for block, role in roles.items()}
    last = "out" if "out" in roles.values() else "v"
    by_kind = {"curved": "q", "still": "k", "linear": "v"}
    result: dict[Block, str] = {}
    guessed = False
    for block in (block for block in kinds if block.bias):
        role = homes.get((_homes(block), block.part, block.parts))
        if role is None or owners[_homes(block)] > 1:
            role, guessed = by_kind.get(kinds[block], last), True
        if role not in result.values():
            result[block] = role
    other = {"q": "k", "k": "q"}
    named = {block: f"{role}_bias" for block, role in result.items()}
    swapped = {block: f"{other.get(role, role)}_bias" for block, role in result.items()}
    return (named, swapped) if guessed else (named,)


def _homes(block: Block) -> tuple[str, ...]:
    return tuple(place.name.rpartition(".")[0] for place in block.places)


def _binding(
    roles: Mapping[Block, str], biases: Mapping[Block, str], turned: bool | None
) -> Binding | None:
    """The blocks by their parameters; None where a part of a parameter has no role."""
    grouped: dict[tuple[tuple[ParameterSlot, ...], int], dict[int, str]] = {}
    for block, role in (*roles.items(), *biases.items()):
        grouped.setdefault((block.places, block.parts), {})[block.part] = role
    places = {}
    for (group, parts), by_part in grouped.items():
        if len(by_part) != parts:
            return None
        names = tuple(by_part[part] for part in range(parts))
        places[names] = tuple(_oriented(place, turned) for place in group)
    return Binding(places)


def _oriented(place: ParameterSlot, turned: bool | None) -> ParameterSlot:
    """A raw matrix in the orientation of the output projection; any other as it is."""
    if not place.transposed or turned is None or len(place.shape) != 2:
        return place
    return ParameterSlot(place.name, turned, place.shape)

"""Map the parameters of a user's module to projections, by name."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.nn.projections import guess_role, is_transposed
from headwise.verify.oracle.jobs import Weights
from headwise.verify.target import not_recognised

POSITION = re.compile(r"(?i)relative|rel_pos|position_bias|pos_bias|rel_bias")
"""Parameters that make a score depend on where its tokens stand."""


@dataclass(frozen=True)
class ParameterSlot:
    """One parameter, and the layout of a projection in it.

    A transposed one is (in, out), multiplied as x @ W; three axes hold a matrix for each head, or a
    convolution of one position. A shared one holds the rows of the first head only.
    """

    name: str
    transposed: bool
    shape: tuple[int, ...]
    shared: bool = False

    def lay(self, part: Tensor) -> Tensor:
        """A weight (out, in) or a bias in the layout of this parameter."""
        if self.shared:
            own = self.shape[::-1] if self.transposed else self.shape
            part = part[tuple(slice(0, size) for size in own)]
        if self.shape[part.dim() :] and set(self.shape[part.dim() :]) == {1}:
            return part.reshape(self.shape)
        if part.dim() == 2 and len(self.shape) == 3:
            heads, first, last = self.shape
            if (heads * last, first) == tuple(part.shape):
                return part.reshape(heads, last, first).transpose(1, 2)
            return part.T.reshape(heads, first, last)
        turned = part.T if self.transposed and part.dim() == 2 else part
        return turned.reshape(self.shape) if part.dim() == 1 else turned


Layout = Literal["parts", "heads", "last", "q v k"]
"""The order of q, k and v in one matrix: one below the other, or within each head, or within each
feature of each head, or q above v above k."""


@dataclass(frozen=True)
class Binding:
    """The parameters of a module that hold each weight of `Weights`.

    Attributes:
        places: for each group of weights, such as ("q",) or ("q", "k", "v") or ("q_bias",), the
            parameters that hold them one below the other.
        layout: the order of q, k and v in one matrix.
        groups: G, the key/value heads; None for as many as heads.
        zeroed: parameters of a position, which are set to 0, with their shapes.
        unplaced: parameters that are none of these, with their own values.
        interleaved: whether head h has every H-th feature, in the split and in the merge.
    """

    places: Mapping[tuple[str, ...], tuple[ParameterSlot, ...]]
    layout: Layout = "parts"
    groups: int | None = None
    zeroed: tuple[tuple[str, tuple[int, ...]], ...] = ()
    unplaced: tuple[str, ...] = ()
    interleaved: bool = False

    @property
    def lacks(self) -> frozenset[str]:
        """The weights that the module does not have."""
        by_role = {name for names in self.places for name in names}
        return frozenset(Weights.__dataclass_fields__) - by_role

    @property
    def slots(self) -> tuple[ParameterSlot, ...]:
        """Every parameter."""
        return tuple(slot for slots in self.places.values() for slot in slots)

    @property
    def packed(self) -> tuple[str, ...]:
        """The parameters that hold q, k and v in one."""
        groups = self.places.items()
        return tuple(slots[0].name for names, slots in groups if (len(names), len(slots)) == (3, 1))

    def untransposed(self) -> "Binding":
        """The same with every weight in PyTorch's orientation."""
        places = {
            names: tuple(replace(slot, transposed=False) for slot in slots)
            for names, slots in self.places.items()
        }
        return replace(self, places=places)

    def lay(self, weights: Weights, heads: int = 1) -> dict[str, Tensor]:
        """The parameters of the module that hold these weights; gradients flow through."""
        named = self._interleaved(weights, heads) if self.interleaved else weights.named()
        parameters = {name: weights.q.new_zeros(shape) for name, shape in self.zeroed}
        for names, places in self.places.items():
            whole = self._whole([named[name] for name in names], heads)
            for place, part in zip(places, whole.chunk(len(places)), strict=True):
                parameters[place.name] = place.lay(part)
        return parameters

    @staticmethod
    def _interleaved(weights: Weights, heads: int) -> dict[str, Tensor]:
        """The weights with the features of the heads in turn."""

        def in_turn(tensor: Tensor) -> Tensor:
            rest = tensor.shape[1:]
            return tensor.reshape(heads, -1, *rest).transpose(0, 1).reshape(-1, *rest)

        named = weights.named()
        turned = {name: in_turn(t) if name[0] in "qkv" else t for name, t in named.items()}
        if "out" in named:
            turned["out"] = in_turn(named["out"].T).T
        return turned

    def _whole(self, parts: list[Tensor], heads: int) -> Tensor:
        """Projections (H D, E), or biases (H D,), in one."""
        if self.layout == "q v k" and len(parts) == 3:
            return torch.cat((parts[0], parts[2], parts[1]))
        if self.layout in ("parts", "q v k") or len(parts) == 1:
            return torch.cat(parts)
        by_head = [part.reshape(heads, -1, *part.shape[1:]) for part in parts]
        split = torch.stack(by_head)  # (3, H, D, ...)
        order = (1, 0, 2) if self.layout == "heads" else (1, 2, 0)
        return split.permute(*order, *range(3, split.dim())).flatten(0, 2)


def bindings(module: nn.Module, weights: Weights, heads: int) -> tuple[Binding, ...]:
    """The projections of a module, by name; the output projection also by what is left.

    The weights have its sizes, and a key/value head for every head.

    Raises:
        BadFile: if q, k or v is not found, or does not fit.
    """
    binding = bind(module, weights, heads)
    if "out" not in binding.lacks or not binding.unplaced:
        return (binding,)
    result = []
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in binding.unplaced):
        own = [name for name in binding.unplaced if name.rpartition(".")[0] == owner]
        matrices = [name for name in own if module.get_parameter(name).dim() > 1]
        for matrix in matrices:
            biases = [n for n in own if n not in matrices] if owner else []
            rest = {("out",): matrix} | ({("out_bias",): biases[0]} if biases else {})
            more: dict[tuple[str, ...], tuple[ParameterSlot, ...]] = {
                k: (place_of(module, n, module.get_parameter(n)),) for k, n in rest.items()
            }
            left = tuple(name for name in binding.unplaced if name not in rest.values())
            whole = replace(binding, places={**binding.places, **more}, unplaced=left)
            with suppress(BadFile):
                result.append(fitting(whole, module, weights, heads))
    return (*result, binding)


def bind(module: nn.Module, weights: Weights, heads: int) -> Binding:
    """The projections of a module by the names of its parameters.

    Raises:
        BadFile: if q, k or v is not found, or does not fit.
    """
    groups: dict[tuple[str, ...], list[ParameterSlot]] = {}
    parameters = dict(module.named_parameters())
    unplaced = []
    for name, parameter in parameters.items():
        if POSITION.search(name):
            continue
        key = _key(name)
        if key:
            groups.setdefault(key, []).append(place_of(module, name, parameter))
        else:
            unplaced.append(name)
    zeroed = tuple((n, tuple(p.shape)) for n, p in parameters.items() if POSITION.search(n))
    places = {k: tuple(slots) for k, slots in groups.items()}
    binding = Binding(places, zeroed=zeroed, unplaced=tuple(unplaced))
    missing = sorted({"q", "k", "v"} & binding.lacks)
    if missing:
        has = ", ".join(parameters)[:200] or "no parameter"
        words = ", ".join(missing)
        reason = Text(
            "no parameter is recognised as {missing}; it has {has}", missing=words, has=has
        )
        raise not_recognised(reason)
    return fitting(binding, module, weights, heads)


def _sharing(binding: Binding, weights: Weights, heads: int) -> Binding:
    """The binding with grouped heads, where the shape of the key projection shows them.

    Where the query's projection is that of one head too, all heads share every projection.
    """
    head_dim = weights.q.shape[0] // heads
    query = binding.places.get(("q",), ())
    if heads > 1 and len(query) == 1 and len(query[0].shape) == 2 and head_dim in query[0].shape:
        return _shared_by_heads(binding, head_dim)
    places = binding.places.get(("k",), ())
    if len(places) != 1 or len(places[0].shape) != 2:
        return binding
    (key,) = places
    size = key.shape[1 if key.transposed else 0]
    groups = size // head_dim
    fits = groups and size == groups * head_dim and groups < heads and heads % groups == 0
    return replace(binding, groups=groups) if fits else binding


def _shared_by_heads(binding: Binding, head_dim: int) -> Binding:
    """The binding with one projection for all heads where a parameter has the rows of one."""

    def shared(slot: ParameterSlot) -> ParameterSlot:
        rows = slot.shape[-1 if slot.transposed else 0]
        return replace(slot, shared=rows == head_dim)

    places = {
        names: tuple(map(shared, slots)) if names[0][0] in "qkv" and len(names) == 1 else slots
        for names, slots in binding.places.items()
    }
    return replace(binding, places=places)


def fitting(binding: Binding, module: nn.Module, weights: Weights, heads: int) -> Binding:
    """The binding, with grouped heads where there are any, if its shapes fit.

    Raises:
        BadFile: if the weights in this layout have other shapes than the parameters.
    """
    binding = _sharing(binding, weights, heads)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    try:
        parameters = binding.lay(weights.shared(heads, binding.groups or heads))
    except (RuntimeError, ValueError) as error:
        names = ", ".join(slot.name for slot in binding.slots)
        reason = Text("the parameters {names} are not one attention's projections", names=names)
        raise not_recognised(reason) from error
    for name, tensor in parameters.items():
        if tuple(tensor.shape) != shapes[name]:
            reason = Text(
                "the parameter {name} has shape {shape}, expected {expected}",
                name=name,
                shape=shapes[name],
                expected=tuple(tensor.shape),
            )
            raise not_recognised(reason)
    return binding


def place_of(module: nn.Module, name: str, parameter: Tensor) -> ParameterSlot:
    """One parameter; a raw one is assumed to be multiplied as x @ W, as in Conv1D."""
    owner = module.get_submodule(name.rpartition(".")[0])
    leaf = name.rpartition(".")[2]
    known = nn.Linear | nn.Conv1d | nn.Conv2d
    raw = not isinstance(owner, known) and not leaf.endswith(("_weight", "_bias"))
    return ParameterSlot(name, raw or is_transposed(owner), tuple(parameter.shape))


def _key(name: str) -> tuple[str, ...] | None:
    """Which weights a parameter holds: ("q",), ("q_bias",), ("q", "k", "v"), … or None."""
    role = guess_role(name)
    if role is None:
        return None
    leaf = name.rpartition(".")[2].lower()
    bias = "bias" in leaf or bool(re.fullmatch(r"b_?(q|k|v|o|qkv|out)|(q|k|v|o|out)_?b", leaf))
    letters = (role,) if role == "out" else tuple(role)
    return tuple(letter + "_bias" * bias for letter in letters)

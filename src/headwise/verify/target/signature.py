"""The signature of a target: the role of each argument, and the forms of its masks."""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.shapes import Allowed
from headwise.verify.target import not_recognised

FIRST = ("x", "query", "q", "queries", "hidden_states", "input", "inputs", "xs", "src", "qx")
OTHERS = ("key", "keys", "k", "value", "values", "v", "context", "memory", "kv", "y", "enc", "kx")
ADDED = ("attention_bias", "attn_bias", "score_bias", "position_bias", "relative_position_bias")
LENGTHS = (
    *("valid_lens", "valid_len", "valid_length", "valid_lengths", "lengths", "lens", "seq_lens"),
    *("seq_lengths", "key_lengths", "key_lens", "src_lengths", "src_lens", "sequence_lengths"),
)
OTHER_MASKS = ("head_mask", "layer_head_mask", "cross_attn_head_mask")
"""Masks of heads, not of keys."""
OTHER_TEXT = ("encoder_", "memory_", "cross_")
"""Prefixes of masks of another sequence, which self-attention does not have."""
FLAGS = ("is_causal", "causal")
ANGLES = ("position_embeddings",)
"""Arguments that take the cosines and sines by which q and k are rotated."""

Encoding = Literal["may", "blocked", "additive", "ones", "zeros", "lengths"]
ENCODINGS: tuple[Encoding, ...] = ("may", "blocked", "additive", "ones", "zeros")
"""Booleans that are True where a query may attend, or where it may not; floats that are added;
floats that are 1 where it may attend, or where it may not. Arguments of lengths take "lengths", the
number of real keys of each sample."""

SHAPES = ("q k", "b 1 q k", "b q k", "1 1 q k", "b h q k", "b k", "b 1 1 k")


@dataclass(frozen=True)
class MaskForm:
    """The form of a mask: its argument, its axes, and what its values mean."""

    argument: str
    shape: str
    encoding: Encoding

    def encode(self, allowed: Allowed) -> Tensor | None:
        """The mask (B, H, Lq, Lk) in this form, or None where the form cannot say it."""
        if self.encoding == "lengths":
            return lengths_of(allowed)
        shaped = _shaped(allowed, self.shape)
        if shaped is None or self.encoding == "may":
            return shaped
        if self.encoding == "blocked":
            return ~shaped
        if self.encoding == "additive":
            return torch.zeros(shaped.shape).masked_fill(~shaped, -torch.inf)
        return (shaped if self.encoding == "ones" else ~shaped).float()


def lengths_of(allowed: Allowed) -> Tensor | None:
    """How many keys of each sample are real, (B,), or None where the mask says something else."""
    shaped = _shaped(allowed, "b k")
    if shaped is None:
        return None
    lengths = shaped.sum(-1)
    first = torch.arange(shaped.shape[1]) < lengths[:, None]
    return lengths if bool((first == shaped).all()) else None


def pads(argument: str) -> bool:
    """Whether an argument says which keys of a sample are real, and nothing else."""
    return "padding" in argument or argument.lower() in LENGTHS


def _shaped(allowed: Allowed, shape: str) -> Tensor | None:
    axes = shape.split()
    sizes = {"k": allowed.shape[3], "1": 1}
    for axis, letter in enumerate("bhq"):
        if letter not in axes:
            first = allowed.narrow(axis, 0, 1)
            if not bool((allowed == first).all()):
                return None
            allowed = first
        sizes[letter] = allowed.shape[axis]
    return allowed.reshape([sizes[letter] for letter in axes])


@dataclass(frozen=True)
class Signature:
    """How a function takes its tensors.

    Attributes:
        tensors: the one to three arguments that are query, key and value, each with its role: "x",
            "q", "k", "v" or "kv".
        masks: the arguments that look like masks.
        needs_mask: whether a mask is required.
        extras: arguments that ask for the weights of each head.
        left: arguments that are left at their default.
        flags: those among them that ask for a causal mask.
        angles: arguments that take cosines and sines (B, L, D).
    """

    tensors: tuple[tuple[str, str], ...]
    masks: tuple[str, ...]
    needs_mask: bool
    extras: dict[str, object]
    left: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    angles: tuple[str, ...] = ()

    def arguments(self, query: Tensor, key: Tensor, value: Tensor) -> dict[str, object]:
        """The tensors by name, and the extras."""
        roles = {"x": query, "q": query, "k": key, "v": value, "kv": key}
        return {name: roles[role] for name, role in self.tensors} | self.extras

    def zero_angles(self, query: Tensor, head_dim: int) -> dict[str, object]:
        """Cosines of 1 and sines of 0 for the arguments that take angles: no rotation."""
        ones = query.new_ones(*query.shape[:2], head_dim)
        return dict.fromkeys(self.angles, (ones, torch.zeros_like(ones)))


def read_signature(function: Callable[..., object], name: str) -> Signature:
    """Recognise the arguments of ``forward`` or of a function by their names.

    Raises:
        BadFile: if there is an argument that must be given and is not recognised.
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = parameters_of(function, name)
    parameters = [p for p in every if p.kind not in variadic and p.name != "self"]
    masks = tuple(p.name for p in parameters if _mask(p.name.lower()))
    angles = tuple(p.name for p in parameters if p.name in ANGLES)
    tensors = [p for p in parameters if p.name not in (*masks, *angles) and _tensor(p)]
    crosses = any(p.name.startswith(OTHER_TEXT) for p in tensors)
    masks = tuple(name for name in masks if crosses or not name.startswith(OTHER_TEXT))
    required = [p for p in parameters if p.default is p.empty]
    unknown = [p.name for p in required if p not in tensors and p.name not in (*masks, *angles)]
    if unknown or not 1 <= len(tensors) <= 3:
        words = ", ".join(unknown or [p.name for p in parameters]) or "()"
        raise not_recognised(
            Text("the arguments {words} of {name} are not recognised", words=words, name=name)
        )
    flags = {"need_weights": True, "average_attn_weights": False}
    extras: dict[str, object] = {p.name: flags[p.name] for p in parameters if p.name in flags}
    used = {*masks, *extras, *angles, *(p.name for p in tensors)}
    return Signature(
        tensors=_roles([p.name for p in tensors]),
        masks=masks,
        needs_mask=any(p.name in masks for p in required),
        extras=extras,
        left=tuple(p.name for p in parameters if p.name not in used),
        flags=tuple(p.name for p in parameters if p.name in FLAGS and p.default is False),
        angles=angles,
    )


def _mask(name: str) -> bool:
    return ("mask" in name and name not in OTHER_MASKS) or name in (*ADDED, *LENGTHS)


def parameters_of(function: Callable[..., object], name: str) -> list[inspect.Parameter]:
    """The parameters of a function.

    Raises:
        BadFile: if Python cannot tell them, as for functions written in C.
    """
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        documented = _documented(function)
        if documented:
            return documented
        raise not_recognised(
            Text("Python cannot tell the arguments of {name}", name=name)
        ) from error


def _documented(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters of a C function, by PyTorch's docstring: ``name(query, p=0.0) -> Tensor``."""
    name = re.escape(str(getattr(function, "__name__", "")))
    result = re.match(rf"\s*{name}\((.*?)\)\s*->", str(getattr(function, "__doc__", "")), re.DOTALL)
    if not name or result is None:
        return []
    try:
        tree = ast.parse(f"def f({result[1]}): ...")
        arguments = next(node.args for node in tree.body if isinstance(node, ast.FunctionDef))
        values = [ast.literal_eval(argument) for argument in arguments.defaults]
    except (SyntaxError, ValueError):
        return []
    names = [argument.arg for argument in arguments.args]
    defaults = [*[inspect.Parameter.empty] * (len(names) - len(values)), *values]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [
        inspect.Parameter(name, kind, default=default)
        for name, default in zip(names, defaults, strict=True)
    ]


def _tensor(parameter: inspect.Parameter) -> bool:
    if parameter.default is parameter.empty:
        return True
    return parameter.default is None and parameter.name.lower() in (*FIRST, *OTHERS)


def _roles(names: list[str]) -> tuple[tuple[str, str], ...]:
    """Roles by the first letter where that tells them apart, by the order otherwise."""
    if len(names) == 1:
        return ((names[0], "x"),)
    if len(names) == 2:
        return ((names[0], "q"), (names[1], "kv"))
    letters = [name.lower().removeprefix("x_")[0] for name in names]
    roles = letters if sorted(letters) == ["k", "q", "v"] else ["q", "k", "v"]
    return tuple(zip(names, roles, strict=True))


def forms_for(signature: Signature) -> tuple[MaskForm, ...]:
    """Every form a mask of this signature could have, the likely ones first.

    An argument called padding takes (B, Lk), one of lengths takes (B,), and what is called a bias
    is added; in PyTorch's own names True means blocked.
    """
    forms: list[MaskForm] = []
    for argument in signature.masks:
        name = argument.lower()
        if name in LENGTHS:
            forms.append(MaskForm(argument, "b", "lengths"))
            continue
        encodings: tuple[Encoding, ...] = ("additive",) if name in ADDED else ENCODINGS
        shapes = ("b k",) if "padding" in name else SHAPES
        forms += [MaskForm(argument, shape, code) for code in encodings for shape in shapes]
    pytorch = ("attn_mask", "key_padding_mask")
    return tuple(sorted(forms, key=lambda f: f.argument in pytorch and f.encoding == "may"))

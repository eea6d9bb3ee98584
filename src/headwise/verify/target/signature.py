"""How somebody's attention is called: which argument is what, and how it wants its mask."""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
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
"""How the names of masks begin that concern another sequence, which self-attention has none of."""
FLAGS = ("is_causal", "causal")
"""Arguments that ask for a causal mask."""
ANGLES = ("position_embeddings",)
"""Arguments that take the cosines and sines by which q and k are turned."""

Encoding = Literal["may", "blocked", "additive", "ones", "zeros", "lengths"]
ENCODINGS: tuple[Encoding, ...] = ("may", "blocked", "additive", "ones", "zeros")
"""Booleans that are True where a query may attend, or where it may not; floats that are added;
floats that are 1 where it may attend, or where it may not. An argument of lengths takes "lengths":
how many keys of each sample are real."""

SHAPES = ("q k", "b 1 q k", "b q k", "1 1 q k", "b h q k", "b k", "b 1 1 k")


@dataclass(frozen=True)
class MaskForm:
    """How a mask is handed over.

    Attributes:
        argument: the name of the argument.
        shape: which axes it has.
        encoding: what its values mean.
    """

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
    batch, heads, queries, _ = allowed.shape
    if "h" not in shape.split():
        if not bool((allowed == allowed[:, :1]).all()):
            return None
        allowed, heads = allowed[:, :1], 1
    if "b" not in shape.split():
        if not bool((allowed == allowed[:1]).all()):
            return None
        allowed, batch = allowed[:1], 1
    if "q" not in shape.split():
        if not bool((allowed == allowed[:, :, :1]).all()):
            return None
        allowed, queries = allowed[:, :, :1], 1
    sizes = {"b": batch, "h": heads, "q": queries, "k": allowed.shape[3], "1": 1}
    return allowed.reshape([sizes[axis] for axis in shape.split()])


@dataclass(frozen=True)
class Signature:
    """How a function takes its tensors.

    Attributes:
        tensors: the arguments that are query, key and value (one, two or three of them), each with
            the role it has: "x", "q", "k", "v" or "kv".
        masks: the arguments that look like masks.
        needs_mask: whether a mask has to be given.
        extras: arguments that ask for weights of each head.
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

    @property
    def crosses(self) -> bool:
        """Whether queries may come from another sequence than keys."""
        return len(self.tensors) > 1

    def arguments(self, query: Tensor, key: Tensor, value: Tensor) -> dict[str, object]:
        """The tensors by name, and the extras."""
        roles = {"x": query, "q": query, "k": key, "v": value, "kv": key}
        return {name: roles[role] for name, role in self.tensors} | self.extras

    def zero_angles(self, query: Tensor, head_dim: int) -> dict[str, object]:
        """Cosines of 1 and sines of 0 for the arguments that want angles: nothing is turned."""
        ones = query.new_ones(*query.shape[:2], head_dim)
        return dict.fromkeys(self.angles, (ones, torch.zeros_like(ones)))


def read_signature(function: Callable[..., object], name: str) -> Signature:
    """Recognise the arguments of ``forward`` or of a function by their names.

    Raises:
        BadFile: if there is an argument that must be given and is not recognised.
    """
    parameters = [
        p
        for p in parameters_of(function, name)
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "self"
    ]
    masks = tuple(p.name for p in parameters if _mask(p.name.lower()))
    angles = tuple(p.name for p in parameters if p.name in ANGLES)
    tensors = [p for p in parameters if p.name not in (*masks, *angles) and _tensor(p)]
    crosses = any(p.name.startswith(OTHER_TEXT) for p in tensors)
    masks = tuple(name for name in masks if crosses or not name.startswith(OTHER_TEXT))
    unknown = [
        p.name
        for p in parameters
        if p.default is p.empty and p not in tensors and p.name not in (*masks, *angles)
    ]
    if unknown or not 1 <= len(tensors) <= 3:
        words = ", ".join(unknown or [p.name for p in parameters]) or "()"
        raise not_recognised(
            Text("the arguments {words} of {name} are not recognised", words=words, name=name)
        )
    flags = {"need_weights": True, "average_attn_weights": False}
    extras: dict[str, object] = {p.name: flags[p.name] for p in parameters if p.name in flags}
    required = {p.name for p in parameters if p.default is p.empty}
    used = {*masks, *extras, *angles, *(p.name for p in tensors)}
    return Signature(
        _roles([p.name for p in tensors]),
        masks,
        bool(required & set(masks)),
        extras,
        tuple(p.name for p in parameters if p.name not in used),
        tuple(p.name for p in parameters if p.name in FLAGS and p.default is False),
        angles,
    )


def _mask(name: str) -> bool:
    """Whether an argument of this name says who may attend to whom."""
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
    """The parameters by the first line of the documentation, as PyTorch writes it for C functions.

    ``name(query, key, attn_mask=None, dropout_p=0.0) -> Tensor``
    """
    name = re.escape(str(getattr(function, "__name__", "")))
    result = re.match(rf"\s*{name}\((.*?)\)\s*->", str(getattr(function, "__doc__", "")), re.DOTALL)
    if not name or result is None:
        return []
    try:
        taken = next(
            node.args
            for node in ast.walk(ast.parse(f"def f({result[1]}): ..."))
            if isinstance(node, ast.FunctionDef)
        )
        defaults = [ast.literal_eval(argument) for argument in taken.defaults]
    except (SyntaxError, ValueError):
        return []
    names = [argument.arg for argument in taken.args]
    empty = [inspect.Parameter.empty] * (len(names) - len(defaults))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [
        inspect.Parameter(name, kind, default=default)
        for name, default in zip(names, [*empty, *defaults], strict=True)
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
    is added; PyTorch's own names mean True = blocked.
    """
    forms = [
        MaskForm(argument, shape, encoding)
        for argument in signature.masks
        for encoding in _encodings(argument.lower())
        for shape in _shapes(argument.lower())
    ]
    theirs = ("attn_mask", "key_padding_mask")
    return tuple(sorted(forms, key=lambda f: (f.argument in theirs and f.encoding == "may",)))


def _encodings(argument: str) -> tuple[Encoding, ...]:
    if argument in LENGTHS:
        return ("lengths",)
    return ("additive",) if argument in ADDED else ENCODINGS


def _shapes(argument: str) -> tuple[str, ...]:
    if argument in LENGTHS:
        return ("b",)
    return ("b k",) if "padding" in argument else SHAPES


def with_argument(form: MaskForm, argument: str) -> MaskForm:
    """The same form for another argument."""
    return replace(form, argument=argument)

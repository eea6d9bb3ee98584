"""The signature of a target: the possible roles of its arguments, the likely ones first."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from torch import Tensor

from headwise.lang import Text
from headwise.verify.target import not_recognised
from headwise.verify.target.calls.mask_forms import ADDED, LENGTHS

FIRST = ("x", "query", "q", "queries", "hidden_states", "input", "inputs", "xs", "src", "qx")
OTHERS = ("key", "keys", "k", "value", "values", "v", "context", "memory", "kv", "y", "enc", "kx")
OTHER_MASKS = ("head_mask", "layer_head_mask", "cross_attn_head_mask")
"""Masks of heads, not of keys."""
OTHER_TEXT = ("encoder_", "memory_", "cross_")
"""Prefixes of masks of another sequence, which self-attention does not have."""
ANGLES = re.compile(r"(?i)(^|_)(cos|sin|freqs?|cis|rope|rotary|position_embeddings)")
"""Arguments that take cosines, sines or complex numbers by which q and k are rotated."""
WEIGHTS = re.compile(r"(?i)(return|need|output|with|get|ret)\w*(attn|attention|weight|prob|score)")
"""Flags that ask for the weights of each head."""
SKIPPED = re.compile(
    r"(?i)cache|past|^state|pos(ition)?s?(_ids?)?$|start|step|offset|layer|train|idx|index|^incremental"
)
"""Arguments of a cache or of a training loop."""


@dataclass(frozen=True)
class Signature:
    """How a function takes its tensors.

    Attributes:
        tensors: the one to three arguments that are query, key and value, with their roles: "x",
            "q", "k", "v" or "kv".
        masks: the arguments that are masks, by their name.
        needs_mask: whether a mask is required; None is tried first.
        extras: arguments that ask for the weights of each head, constants, and None for masks.
        left: arguments that are left at their default.
        flags: those among them that ask for a causal mask.
        angles: arguments that take cosines, sines or angles.
        maybe: arguments of another name that are None by default, and may be masks.
        optional: tensors among them that may be left out.
    """

    tensors: tuple[tuple[str, str], ...]
    masks: tuple[str, ...]
    needs_mask: bool
    extras: dict[str, object]
    left: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    angles: tuple[str, ...] = ()
    maybe: tuple[str, ...] = ()
    optional: frozenset[str] = field(default=frozenset())

    def arguments(self, query: Tensor, key: Tensor, value: Tensor) -> dict[str, object]:
        """The tensors by name, and the extras."""
        roles = {"x": query, "q": query, "k": key, "v": value, "kv": key}
        return {name: roles[role] for name, role in self.tensors} | self.extras


def read_signature(function: Callable[..., object], name: str) -> Signature:
    """The likeliest roles of the arguments of ``forward`` or of a function.

    Raises:
        BadFile: if there is an argument that must be given and is not recognised.
    """
    return signatures(function, name)[0]


def signatures(function: Callable[..., object], name: str) -> tuple[Signature, ...]:
    """The possible roles of the arguments of ``forward`` or of a function, the likely ones first.

    Raises:
        BadFile: if no argument can be the input.
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = parameters_of(function, name)
    parameters = [p for p in every if p.kind not in variadic and p.name != "self"]
    result = tuple(_readings(parameters))
    if not result:
        words = ", ".join(p.name for p in parameters) or "()"
        raise not_recognised(
            Text("the arguments {words} of {name} are not recognised", words=words, name=name)
        )
    return result


def _readings(parameters: list[inspect.Parameter]) -> Iterator[Signature]:
    masks = [p.name for p in parameters if _mask(p)]
    angles = [p.name for p in parameters if p.name not in masks and ANGLES.search(p.name)]
    rest = [p for p in parameters if p.name not in (*masks, *angles)]
    constants = {p.name: _constant(p) for p in rest if _skipped(p)}
    tensors = [p for p in rest if p.name not in constants and _tensor(p)]
    crosses = any(p.name.startswith(OTHER_TEXT) for p in tensors)
    masks = [n for n in masks if crosses or not n.startswith(OTHER_TEXT) or len(masks) == 1]
    known = [p for p in tensors if p.name.lower() in (*FIRST, *OTHERS)]
    for count in _counts(len(tensors), len(known)):
        inputs, others = tensors[:count], tensors[count:]
        if any(p in known for p in others):
            inputs, others = known[:count], [p for p in tensors if p not in known[:count]]
        yield _signature(parameters, inputs, masks, others, angles, constants)
    context = [
        p for p in rest if p.default is None and p not in tensors and p.name not in constants
    ]
    for parameter in context if len(tensors) == 1 else ():
        yield _signature(parameters, [*tensors, parameter], masks, [], angles, constants)


def _counts(tensors: int, known: int) -> tuple[int, ...]:
    """How many of the arguments may be query, key and value: the others are masks."""
    if known == min(tensors, 3):
        return (known,) if known else ()
    if tensors > 3:
        return (3, 2, 1) if known == 0 else tuple(dict.fromkeys((known, 3, 1)))
    if known and known < tensors:
        return (known, tensors) if known != 1 or tensors < 3 else (tensors, known)
    return {0: (), 1: (1,), 2: (2, 1), 3: (3, 2, 1)}[tensors]


def _signature(
    parameters: list[inspect.Parameter],
    inputs: list[inspect.Parameter],
    masks: list[str],
    others: list[inspect.Parameter],
    angles: list[str],
    constants: dict[str, object],
) -> Signature:
    """One reading; further arguments that must be given are masks."""
    required = [p for p in parameters if p.default is p.empty]
    given = [p.name for p in others if p in required]
    masks = [*masks, *given]
    weights = {"need_weights": True, "average_attn_weights": False}
    extras: dict[str, object] = {
        p.name: weights.get(p.name, True)
        for p in parameters
        if p.name in weights or (p.default is False and WEIGHTS.search(p.name))
    }
    extras |= constants | {p.name: None for p in required if p.name in masks}
    used = {*masks, *extras, *angles, *(p.name for p in inputs)}
    maybe = [p.name for p in parameters if p.default is None and p.name not in used]
    maybe = [name for name in maybe if not SKIPPED.search(name)]
    left = [p.name for p in parameters if p.name not in used]
    return Signature(
        tensors=_roles([p.name for p in inputs]),
        masks=tuple(masks),
        needs_mask=any(p.name in masks for p in required),
        extras=extras,
        left=tuple(left),
        flags=tuple(
            p.name for p in parameters if p.default is False and "causal" in p.name.lower()
        ),
        angles=tuple(angles),
        maybe=tuple(maybe),
        optional=frozenset(p.name for p in inputs if p not in required),
    )


def _skipped(parameter: inspect.Parameter) -> bool:
    """Whether an argument is none of tensors and masks: of a cache, a flag, a number."""
    word = str(getattr(parameter.annotation, "__name__", parameter.annotation)).lower()
    plain = word in ("int", "bool", "float", "str", "dict")
    return parameter.default is parameter.empty and (plain or bool(SKIPPED.search(parameter.name)))


def _constant(parameter: inspect.Parameter) -> object:
    """What an argument of a cache or a training loop is given where it is required."""
    word = str(getattr(parameter.annotation, "__name__", parameter.annotation)).lower()
    if "bool" in word or re.search(r"(?i)train|use_|is_|causal", parameter.name):
        return False
    numeric = "int" in word or re.search(r"(?i)pos|start|step|offset|layer|idx", parameter.name)
    return 0 if numeric else None


def _mask(parameter: inspect.Parameter) -> bool:
    name = parameter.name.lower()
    if isinstance(parameter.default, bool):
        return False
    return ("mask" in name and name not in OTHER_MASKS) or name in (*ADDED, *LENGTHS)


def without_weights(signature: Signature) -> Signature:
    """The same without asking for the weights of each head."""
    extras = {n: v for n, v in signature.extras.items() if v is not True or n == "need_weights"}
    return replace(signature, extras=extras)


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

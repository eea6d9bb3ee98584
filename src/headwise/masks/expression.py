"""A mask read from the text that masks print, such as ``causal() & window(3, 0)``.

The text is not trusted. Python's parser turns it into a tree and nothing in it is ever run: only
calls of the masks in `headwise.masks.MASKS`, with literals, and ``& | ~`` have a meaning here.
"""

import ast
import collections.abc
import inspect
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from headwise.errors import BadValue, HeadwiseError
from headwise.lang import Text, joined, same
from headwise.masks import MASKS
from headwise.masks.mask import Mask
from headwise.shapes import LARGEST

LONGEST = 4096
"""Characters of an expression."""

DEEPEST = 64
"""Operators, calls and lists inside each other."""

LARGEST_LISTED = 2**20
"""A number in a list: it is a length or a position, and memory is taken for it."""

LARGEST_SUM = 2**24
"""The numbers of one list together."""

EXAMPLE = "causal() & window(3, 0)"

_FUNCTIONS: dict[str, Callable[..., Mask]] = {function.__name__: function for function in MASKS}
_SHOWN = 40
"""Characters of the text that a message repeats."""


def parse(text: str) -> Mask:
    """The mask that an expression makes: calls of masks, ``& | ~`` and parentheses.

    Arguments are whole numbers, True and False, words in quotes, masks, and lists of them. A list
    of True and False, and a list of lists, becomes a tensor.

    Args:
        text: what `repr` of a mask without tensors gives, or the like written by a person.

    Raises:
        BadValue: if something else stands there; the message says what and where.

    Example:
        >>> parse("~padding([3, 1]) | global_tokens([0], symmetric=False)")
        ~padding([3, 1]) | global_tokens([0], symmetric=False)
        >>> print(parse("from_tensor([[True, False], [True, True]])").draw(2))
        ■ ·
        ■ ■
    """
    if len(text) > LONGEST:
        raise BadValue(
            "mask: expected an expression of at most {longest} characters, got "
            "{num_text}; make a longer one in Python",
            longest=LONGEST,
            num_text=len(text),
        )
    if not text.strip():
        raise BadValue(
            "mask: expected an expression such as {example}, got nothing; the masks are "
            "{functions}",
            example=EXAMPLE,
            functions=", ".join(_FUNCTIONS),
        )
    return _Reader(text).whole()


class _Reader:
    """Reads one expression; knows its text to say where in it something stands."""

    def __init__(self, text: str) -> None:
        flat = "".join(" " if character.isspace() else character for character in text)
        self.line = flat.strip()
        self.lead = len(flat) - len(flat.lstrip())

    def whole(self) -> Mask:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about literals that are refused below
                tree = ast.parse(self.line, mode="eval").body
        except SyntaxError as error:
            raise self.unreadable(error.offset) from None
        except (RecursionError, MemoryError):
            raise self.too_deep() from None
        return self.mask(tree, 1)

    def mask(self, node: ast.expr, depth: int) -> Mask:
        value = self.value(node, depth)
        if not isinstance(value, Mask):
            raise self.wrong(node, Text("a mask such as {example}", example=EXAMPLE))
        return value

    def value(self, node: ast.expr, depth: int) -> Any:
        """What a node stands for: a mask, a number, a word, a list or a tensor."""
        if depth > DEEPEST:
            raise self.too_deep()
        match node:
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                return self.pair(node, depth)
            case ast.UnaryOp(op=ast.Invert()):
                inner = self.mask(node.operand, depth + 1)
                return self.built(node, lambda: ~inner)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(n))):
                return -self.number(node, n)
            case ast.Constant(value=int(n)):  # True and False too
                return self.number(node, n)
            case ast.Constant(value=str(word)):
                return word
            case ast.List():
                return self.listed(node, depth)
            case ast.Call(func=ast.Name()):
                return self.call(node, depth)
        raise self.unknown(node)

    def pair(self, node: ast.BinOp, depth: int) -> Mask:
        left, right = self.mask(node.left, depth + 1), self.mask(node.right, depth + 1)
        both = isinstance(node.op, ast.BitAnd)
        return self.built(node, lambda: left & right if both else left | right)

    def number(self, node: ast.expr, value: int, most: int = LARGEST) -> int:
        if value > most:
            raise self.wrong(node, Text("a whole number up to {most}", most=most))
        return value

    def listed(self, node: ast.List, depth: int) -> Any:
        values = [self.value(element, depth + 1) for element in node.elts]
        kinds = {bool if isinstance(v, bool) else type(v) for v in values}
        if len({Mask if issubclass(kind, Mask) else kind for kind in kinds}) > 1:
            raise self.wrong(
                node, Text("a list of one kind: whole numbers, True and False, lists, or masks")
            )
        if kinds == {int}:
            for element, value in zip(node.elts, values, strict=True):
                self.number(element, value, LARGEST_LISTED)
            if sum(map(abs, values)) > LARGEST_SUM:
                most = LARGEST_SUM
                raise self.wrong(node, Text("numbers of at most {most} together", most=most))
        return self.tensor(node, values) if kinds & {bool, list, Tensor} else values

    def tensor(self, node: ast.List, values: list[Any]) -> Tensor:
        """A list of True and False, or of lists, as a tensor."""
        rows = [torch.as_tensor(value) for value in values]
        alike = len({(row.shape, row.dtype) for row in rows}) == 1
        if not alike or rows[0].dim() > 3 or rows[0].is_floating_point():  # [] is of floats
            raise self.wrong(
                node, Text("rows of one length, of whole numbers or of True and False")
            )
        return torch.stack(rows)

    def call(self, node: ast.Call, depth: int) -> Mask:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            raise self.unknown(node.func)
        function = _FUNCTIONS[name]
        if any(isinstance(a, ast.Starred) for a in node.args) or not all(
            word.arg for word in node.keywords
        ):
            raise self.wrong(node, same(_usage(function)))
        given = [self.value(argument, depth + 1) for argument in node.args]
        named = {str(word.arg): self.value(word.value, depth + 1) for word in node.keywords}
        try:
            bound = inspect.signature(function).bind(*given, **named)
        except TypeError:
            raise self.wrong(node, same(_usage(function))) from None
        hints = get_type_hints(function)
        for argument, value in bound.arguments.items():
            if not _fits(value, hints[argument]):
                kind = _words(hints[argument])
                raise self.wrong(node, Text("{argument} = {kind}", argument=argument, kind=kind))
        return self.built(node, lambda: function(*bound.args, **bound.kwargs))

    def built(self, node: ast.expr, make: Callable[[], Mask]) -> Mask:
        """What ``make`` makes; a mask's own complaint gets the place where it arose."""
        try:
            return make()
        except HeadwiseError as error:
            place = self.place(node)
            raise BadValue(
                "mask: at character {place}: {error_text}", place=place, error_text=error.text
            ) from error

    def unknown(self, node: ast.expr) -> BadValue:
        """The error for what has no meaning here, with the way out that fits it."""
        name = node.id if isinstance(node, ast.Name) else ""
        if name in _FUNCTIONS:
            usage = _usage(_FUNCTIONS[name])
            return self.wrong(node, Text("{usage} with parentheses", usage=usage))
        if name:
            close = get_close_matches(name, _FUNCTIONS, n=1)
            listed = ", ".join(close or _FUNCTIONS)
            return self.wrong(node, Text("one of the masks: {listed}", listed=listed))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            known = _FUNCTIONS.get(node.func.attr)
            if known:
                usage = _usage(known)
                return self.wrong(node, Text("{usage} by itself", usage=usage))
        if isinstance(node, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.Compare):
            return self.wrong(node, Text("masks combined with & | ~"))
        return self.wrong(
            node,
            Text(
                "calls of masks, whole numbers, True, False, words and lists, as in {example}",
                example=EXAMPLE,
            ),
        )

    def wrong(self, node: ast.expr, expected: Text) -> BadValue:
        raw = self.line.encode()
        shown = raw[node.col_offset : node.end_col_offset].decode()
        shown = repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…")
        place = self.place(node)
        return BadValue(
            "mask: expected {expected}, got {shown} at character {place}; `headwise "
            "show` lists every mask",
            expected=expected,
            shown=shown,
            place=place,
        )

    def place(self, node: ast.expr) -> int:
        """Where in the text a node begins, in characters from 1."""
        return self.lead + len(self.line.encode()[: node.col_offset].decode()) + 1

    def unreadable(self, offset: int | None) -> BadValue:
        """The error where Python's parser stops; it says 0 for the end and None for a NUL."""
        first = 1 if offset is None else min(offset or len(self.line) + 1, len(self.line) + 1)
        if "(<" in self.line:
            shape = self.lead + self.line.index("(<") + 2
            return BadValue(
                "mask: expected every argument written out, got the shape of a tensor "
                "at character {shape}; write the tensor as a list",
                shape=shape,
            )
        place, shown = self.lead + first, repr(self.line[first - 1 :][:_SHOWN])
        return BadValue(
            "mask: expected an expression such as {example}, cannot read on at "
            "character {place}, got {shown}; check parentheses, commas and quotes",
            example=EXAMPLE,
            place=place,
            shown=shown,
        )

    def too_deep(self) -> BadValue:
        return BadValue(
            "mask: expected at most {deepest} operators and calls inside each other, "
            "got more; make such a mask in Python",
            deepest=DEEPEST,
        )


def _usage(function: Callable[..., Mask]) -> str:
    """How a mask is written: dilated(left, right, step=…)."""
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        free = parameter.default is parameter.empty
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        value = "…" if free else repr(parameter.default)
        parts.append(parameter.name if free and not keyword else f"{parameter.name}={value}")
    return f"{function.__name__}({', '.join(parts)})"


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is what an annotation of a mask's arguments says."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner if isinstance(value, str) else False
    if origin is collections.abc.Sequence:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    return type(value) is int if hint is int else isinstance(value, hint)


def _words(hint: Any) -> Text:
    """An annotation in a person's words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [_words(option) for option in inner if option is not NoneType]
        return joined(Text(" or "), kinds)
    if origin is Literal:
        return same(" | ".join(map(repr, inner)))
    if origin is collections.abc.Sequence:
        several = _SEVERAL[inner[0]]
        return Text("a list of {several}", several=several)
    return _ONE[hint]


_ONE = {
    int: Text("a whole number"),
    bool: Text("True or False"),
    Mask: Text("a mask"),
    Tensor: Text("a list of lists or of True and False"),
}
_SEVERAL = {int: Text("whole numbers"), Mask: Text("masks")}

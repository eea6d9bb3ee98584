"""Reading a mask from the text that masks print, such as ``causal() & window(3, 0)``.

The text is not trusted. Python's parser turns it into a tree, which is never run. Only calls of the
masks in `headwise.masks.MASKS` with literal arguments, and ``& | ~``, have a meaning.
"""

import ast
import collections.abc
import inspect
import operator
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

LONGEST, DEEPEST = 4096, 64
"""The most characters of an expression, and the deepest nesting of operators, calls and lists."""

LARGEST_LISTED, LARGEST_SUM = 2**20, 2**24
"""The largest number in a list, and the largest sum of a list: a mask allocates that much."""

EXAMPLE = "causal() & window(3, 0)"

_FUNCTIONS: dict[str, Callable[..., Mask]] = {function.__name__: function for function in MASKS}
_SHOWN = 40  # the most characters of the expression that a message quotes


def parse(text: str) -> Mask:
    """Return the mask of an expression: calls of masks, ``& | ~`` and parentheses.

    Arguments may be integers, True and False, strings in quotes, masks, and lists of these. A list
    of True and False, or a list of lists, becomes a tensor. `repr` of a mask without tensors is a
    valid expression.

    Raises:
        BadValue: if the text is not a valid expression; the message says what is wrong, and where.

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
            "{num_text}; build longer masks in Python",
            longest=LONGEST,
            num_text=len(text),
        )
    if not text.strip():
        raise BadValue(
            "mask: expected an expression such as {example}, got an empty text; the "
            "masks are {functions}",
            example=EXAMPLE,
            functions=", ".join(_FUNCTIONS),
        )
    return _Reader(text).whole()


class _Reader:
    """A reader of one expression; its errors name the position in the text."""

    def __init__(self, text: str) -> None:
        flat = "".join(" " if character.isspace() else character for character in text)
        self.line = flat.strip()
        self.lead = len(flat) - len(flat.lstrip())

    def whole(self) -> Mask:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about literals that are refused below
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
        """Return the value of a node: a mask, an integer, a string, a list or a tensor."""
        if depth > DEEPEST:
            raise self.too_deep()
        match node:
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                left, right = self.mask(node.left, depth + 1), self.mask(node.right, depth + 1)
                combine = operator.and_ if isinstance(node.op, ast.BitAnd) else operator.or_
                return self.built(node, lambda: combine(left, right))
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

    def number(self, node: ast.expr, value: int, most: int = LARGEST) -> int:
        if value > most:
            raise self.wrong(node, Text("an integer up to {most}", most=most))
        return value

    def listed(self, node: ast.List, depth: int) -> Any:
        values = [self.value(element, depth + 1) for element in node.elts]
        kinds = {Mask if isinstance(value, Mask) else type(value) for value in values}
        if len(kinds) > 1:
            expected = Text("a list whose elements are all integers, booleans, lists or masks")
            raise self.wrong(node, expected)
        if kinds == {int}:
            for element, value in zip(node.elts, values, strict=True):
                self.number(element, value, LARGEST_LISTED)
            if sum(map(abs, values)) > LARGEST_SUM:
                most = LARGEST_SUM
                raise self.wrong(node, Text("numbers whose sum is at most {most}", most=most))
        if not kinds & {bool, list, Tensor}:
            return values
        rows = [torch.as_tensor(value) for value in values]
        alike = len({(row.shape, row.dtype) for row in rows}) == 1
        if not alike or rows[0].dim() > 3 or rows[0].is_floating_point():  # [] becomes float
            expected = Text("rows of equal length, all of integers or all of booleans")
            raise self.wrong(node, expected)
        return torch.stack(rows)

    def call(self, node: ast.Call, depth: int) -> Mask:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            raise self.unknown(node.func)
        function = _FUNCTIONS[name]
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if starred or not all(word.arg for word in node.keywords):
            raise self.wrong(node, same(_usage(function)))
        values = [self.value(argument, depth + 1) for argument in node.args]
        named = {str(word.arg): self.value(word.value, depth + 1) for word in node.keywords}
        try:
            bound = inspect.signature(function).bind(*values, **named)
        except TypeError:
            raise self.wrong(node, same(_usage(function))) from None
        hints = get_type_hints(function)
        for argument, value in bound.arguments.items():
            if not _fits(value, hints[argument]):
                kind = _words(hints[argument])
                raise self.wrong(node, Text("{argument} = {kind}", argument=argument, kind=kind))
        return self.built(node, lambda: function(*bound.args, **bound.kwargs))

    def built(self, node: ast.expr, make: Callable[[], Mask]) -> Mask:
        """Return the result of ``make``; if the mask raises, add its position in the text."""
        try:
            return make()
        except HeadwiseError as error:
            place, text = self.place(node), error.text
            raise BadValue(
                "mask: at character {place}: {error_text}", place=place, error_text=text
            ) from error

    def unknown(self, node: ast.expr) -> BadValue:
        """Return the error for a node that is not part of an expression, with a hint."""
        name = node.id if isinstance(node, ast.Name) else ""
        if name in _FUNCTIONS:
            usage = _usage(_FUNCTIONS[name])
            return self.wrong(node, Text("{usage}, with parentheses", usage=usage))
        if name:
            listed = ", ".join(get_close_matches(name, _FUNCTIONS, n=1) or _FUNCTIONS)
            return self.wrong(node, Text("one of the masks: {listed}", listed=listed))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            function = _FUNCTIONS.get(node.func.attr)
            if function:
                return self.wrong(node, Text("{usage} without prefix", usage=_usage(function)))
        if isinstance(node, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.Compare):
            return self.wrong(node, Text("masks combined with & | ~"))
        expected = Text(
            "calls of masks, integers, True, False, strings and lists, as in {example}",
            example=EXAMPLE,
        )
        return self.wrong(node, expected)

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
        """Return the position of a node in the text, in characters counted from 1."""
        return self.lead + len(self.line.encode()[: node.col_offset].decode()) + 1

    def unreadable(self, offset: int | None) -> BadValue:
        """Return the error at the offset of Python's parser: 0 for the end, None for a NUL."""
        first = 1 if offset is None else min(offset or len(self.line) + 1, len(self.line) + 1)
        if "(<" in self.line:
            shape = self.lead + self.line.index("(<") + 2
            return BadValue(
                "mask: expected every argument in full, got only the shape of a tensor "
                "at character {shape}; write the tensor as a list",
                shape=shape,
            )
        place, shown = self.lead + first, repr(self.line[first - 1 :][:_SHOWN])
        return BadValue(
            "mask: expected an expression such as {example}, got a syntax error at "
            "character {place}: {shown}; check parentheses, commas and quotes",
            example=EXAMPLE,
            place=place,
            shown=shown,
        )

    def too_deep(self) -> BadValue:
        return BadValue(
            "mask: expected at most {deepest} nested operators and calls, got more; "
            "build such a mask in Python",
            deepest=DEEPEST,
        )


def _usage(function: Callable[..., Mask]) -> str:
    """Return the signature of a mask for messages: dilated(left, right, step=…)."""
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        free = parameter.default is parameter.empty
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        value = "…" if free else repr(parameter.default)
        parts.append(parameter.name if free and not keyword else f"{parameter.name}={value}")
    return f"{function.__name__}({', '.join(parts)})"


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value has the type of an annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is collections.abc.Sequence:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    return type(value) is int if hint is int else isinstance(value, hint)


def _words(hint: Any) -> Text:
    """Return the description of an annotation for a message."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return joined(Text(" or "), [_words(kind) for kind in inner if kind is not NoneType])
    if origin is Literal:
        return same(" | ".join(map(repr, inner)))
    if origin is collections.abc.Sequence:
        return Text("a list of {several}", several=_SEVERAL[inner[0]])
    return _ONE[hint]


_ONE = {
    int: Text("an integer"),
    bool: Text("True or False"),
    Mask: Text("a mask"),
    Tensor: Text("a list of lists or of booleans"),
}
_SEVERAL = {int: Text("integers"), Mask: Text("masks")}

"""A mask read from the text that masks print, such as ``causal() & window(3, 0)``.

The text is not trusted. Python's parser turns it into a tree and nothing in it is ever run: only
calls of the masks in `headwise.masks.MASKS`, with literals, and ``& | ~`` have a meaning here.
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
"""The most characters of an expression, and the most operators, calls and lists in each other."""

LARGEST_LISTED, LARGEST_SUM = 2**20, 2**24
"""The largest number in a list, and the largest sum: a mask allocates memory for them."""

EXAMPLE = "causal() & window(3, 0)"

_FUNCTIONS: dict[str, Callable[..., Mask]] = {function.__name__: function for function in MASKS}
_SHOWN = 40  # characters of the expression in a message


def parse(text: str) -> Mask:
    """The mask of an expression: calls of masks, ``& | ~`` and parentheses.

    Arguments are whole numbers, True and False, words in quotes, masks, and lists of them. A list
    of True and False, and a list of lists, becomes a tensor. `repr` of a mask without tensors is
    such an expression.

    Raises:
        BadValue: if the text is no such expression; the message says what is wrong and where.

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
    """Reads one expression, and names the position of an error in its text."""

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
        """The value of a node: a mask, a number, a word, a list or a tensor."""
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
            raise self.wrong(node, Text("a whole number up to {most}", most=most))
        return value

    def listed(self, node: ast.List, depth: int) -> Any:
        values = [self.value(element, depth + 1) for element in node.elts]
        kinds = {Mask if isinstance(value, Mask) else type(value) for value in values}
        if len(kinds) > 1:
            expected = Text("a list of one kind: whole numbers, True and False, lists, or masks")
            raise self.wrong(node, expected)
        if kinds == {int}:
            for element, value in zip(node.elts, values, strict=True):
                self.number(element, value, LARGEST_LISTED)
            if sum(map(abs, values)) > LARGEST_SUM:
                most = LARGEST_SUM
                raise self.wrong(node, Text("numbers of at most {most} together", most=most))
        if not kinds & {bool, list, Tensor}:
            return values
        rows = [torch.as_tensor(value) for value in values]
        alike = len({(row.shape, row.dtype) for row in rows}) == 1
        if not alike or rows[0].dim() > 3 or rows[0].is_floating_point():  # [] is of floats
            expected = Text("rows of one length, of whole numbers or of True and False")
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
        """The result of ``make``; an error of the mask gets its position in the text."""
        try:
            return make()
        except HeadwiseError as error:
            place, text = self.place(node), error.text
            raise BadValue(
                "mask: at character {place}: {error_text}", place=place, error_text=text
            ) from error

    def unknown(self, node: ast.expr) -> BadValue:
        """The error for a node that is no part of an expression, with a fitting hint."""
        name = node.id if isinstance(node, ast.Name) else ""
        if name in _FUNCTIONS:
            usage = _usage(_FUNCTIONS[name])
            return self.wrong(node, Text("{usage} with parentheses", usage=usage))
        if name:
            listed = ", ".join(get_close_matches(name, _FUNCTIONS, n=1) or _FUNCTIONS)
            return self.wrong(node, Text("one of the masks: {listed}", listed=listed))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            function = _FUNCTIONS.get(node.func.attr)
            if function:
                return self.wrong(node, Text("{usage} by itself", usage=_usage(function)))
        if isinstance(node, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.Compare):
            return self.wrong(node, Text("masks combined with & | ~"))
        expected = Text(
            "calls of masks, whole numbers, True, False, words and lists, as in {example}",
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
        """The position of a node in the text, in characters from 1."""
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
    """Whether a value has the type of an annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is collections.abc.Sequence:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    return type(value) is int if hint is int else isinstance(value, hint)


def _words(hint: Any) -> Text:
    """The description of an annotation in a message."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return joined(Text(" or "), [_words(kind) for kind in inner if kind is not NoneType])
    if origin is Literal:
        return same(" | ".join(map(repr, inner)))
    if origin is collections.abc.Sequence:
        return Text("a list of {several}", several=_SEVERAL[inner[0]])
    return _ONE[hint]


_ONE = {
    int: Text("a whole number"),
    bool: Text("True or False"),
    Mask: Text("a mask"),
    Tensor: Text("a list of lists or of True and False"),
}
_SEVERAL = {int: Text("whole numbers"), Mask: Text("masks")}

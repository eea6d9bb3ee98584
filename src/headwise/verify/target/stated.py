"""What a person states about a target, which is then held and not searched for."""

import ast
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from headwise.errors import BadValue

MaskTrue = Literal["attend", "blocked"]
Axes = Literal["batch-first", "length-first"]


@dataclass(frozen=True)
class Stated:
    """The conventions that a person states.

    Attributes:
        mask_true: what True or 1 in a mask means; None where it is found by trial.
        layout: whether inputs are (B, L, E) or (L, B, E); None where it is found by trial.
        kv_heads: G, the key/value heads; None where it is found by trial.
        causal: whether the target hides the future by itself; False where it is found by trial.
        arguments: arguments of the constructor, by name.
    """

    mask_true: MaskTrue | None = None
    layout: Axes | None = None
    kv_heads: int | None = None
    causal: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)


NOTHING = Stated()


def stated_arguments(words: Iterable[str]) -> dict[str, object]:
    """Constructor arguments written as ``name=value``; a value is a Python literal, or text.

    Raises:
        BadValue: if a word is no name, "=" and a value.

    Example:
        >>> stated_arguments(["hidden=15", "causal=False", "mode=plain"])
        {'hidden': 15, 'causal': False, 'mode': 'plain'}
    """
    result: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise BadValue(
                "set: expected name=value, got {word!r}; write --set hidden=15", word=word
            )
        literal: object = value
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            literal = ast.literal_eval(value)
        plain = literal is None or isinstance(literal, bool | int | float | str)
        result[name] = literal if plain else value
    return result

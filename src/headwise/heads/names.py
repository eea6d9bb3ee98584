"""The notation for heads: L0H2 is layer 0, head 2; both are counted from 0.

In an encoder-decoder, the name starts with the part: encoder.L0H2, decoder.L0H2, cross.L0H2.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headwise.errors import BadType, BadValue

PARTS = ("", "encoder", "decoder", "cross")  # the parts of a model; "" if it has one stack
_FORM = re.compile(r"(?:(encoder|decoder|cross)\.)?L(\d{1,5})H(\d{1,5})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, order=True)
class Layer:
    """An attention layer: the part of the model and the number of the layer in that part."""

    part: str
    number: int

    def __str__(self) -> str:
        return f"{self.part}.L{self.number}" if self.part else f"L{self.number}"


@dataclass(frozen=True, order=True)
class Head:
    """A head: its layer and its number in the layer.

    Example:
        >>> str(Head.parse("l0h2"))
        'L0H2'
    """

    layer: Layer
    number: int

    @classmethod
    def parse(cls, word: str) -> "Head":
        """Parse the name of a head, such as L0H2 or cross.L0H2.

        Raises:
            BadType: if ``word`` is not a string.
            BadValue: if ``word`` is not the name of a head.
        """
        if not isinstance(word, str):
            raise _no_names(word)
        match = _FORM.fullmatch(word.strip())
        if match is None:
            raise BadValue(
                "heads: expected names such as L0H2 (layer 0, head 2, counted from 0), "
                "got {word!r}; separate names by commas: L0H2,L1H8",
                word=word,
            )
        part, layer, head = match.groups()
        return cls(Layer((part or "").lower(), int(layer)), int(head))

    def __str__(self) -> str:
        return f"{self.layer}H{self.number}"


def parse_heads(words: str) -> tuple[Head, ...]:
    """Parse a list such as ``L0H2,L1H8``, without duplicates; errors as `Head.parse`."""
    if not isinstance(words, str):
        raise _no_names(words)
    return tuple(dict.fromkeys(Head.parse(word) for word in words.split(",")))


def heads_of(heads: "Collection[Head | str] | Head | str") -> tuple[Head, ...]:
    """Return heads, given as heads or names, without duplicates; errors as `Head.parse`.

    Example:
        >>> [str(head) for head in heads_of(["l0h2", Head.parse("L1H0")])]
        ['L0H2', 'L1H0']
    """
    if isinstance(heads, str):
        return parse_heads(heads)
    if isinstance(heads, Head):
        return (heads,)
    if not isinstance(heads, Collection):
        raise _no_names(heads)
    parsed = (head if isinstance(head, Head) else Head.parse(head) for head in heads)
    return tuple(dict.fromkeys(parsed))


def none_such(head: Head, counts: Mapping[Layer, int]) -> BadValue:
    """Return the error for a head that does not exist; ``counts`` are the heads per layer.

    Example:
        >>> str(none_such(Head.parse("L2H0"), {Layer("", 0): 4, Layer("", 1): 4}))
        'heads: L2H0 does not exist; there are L0H0 … L1H3, counted from 0'
    """
    there = _range(counts)
    return BadValue(
        "heads: {head} does not exist; there are {there}, counted from 0", head=head, there=there
    )


def not_in_model(head: Head, counts: Mapping[Layer, int]) -> BadValue:
    """Return the error for a head that a model lacks; ``counts`` as in `none_such`."""
    return BadValue(
        "heads: {head} does not exist; this model has {there}, counted from 0",
        head=head,
        there=_range(counts),
    )


def _range(counts: Mapping[Layer, int]) -> str:
    """Return the first and last head of each part: "L0H0 … L5H11"."""
    ends: dict[str, tuple[Layer, Layer]] = {}
    for layer in sorted(counts):
        first, _ = ends.get(layer.part, (layer, layer))
        ends[layer.part] = (first, layer)
    pairs = (f"{Head(first, 0)} … {Head(last, counts[last] - 1)}" for first, last in ends.values())
    return ", ".join(pairs)


def _no_names(got: object) -> BadType:
    kind = type(got).__name__
    return BadType("heads: expected names such as 'L0H2,L1H8', or heads, got {kind}", kind=kind)


def by_layer(heads: Iterable[Head]) -> dict[Layer, list[Head]]:
    """Group heads by layer; layers and heads are sorted."""
    layers: dict[Layer, list[Head]] = {}
    for head in sorted(heads):
        layers.setdefault(head.layer, []).append(head)
    return layers

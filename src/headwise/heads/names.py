"""The notation for heads: L0H2 is layer 0, head 2; both are counted from 0.

In an encoder-decoder the part stands before it: encoder.L0H2, decoder.L0H2, cross.L0H2.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headwise.errors import BadValue

PARTS = ("", "encoder", "decoder", "cross")
"""A model that is one stack of layers has the single part ""."""

_FORM = re.compile(r"(?:(encoder|decoder|cross)\.)?L(\d{1,5})H(\d{1,5})", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Layer:
    """One attention of a model: the part it belongs to and its number there."""

    part: str
    number: int

    def __str__(self) -> str:
        return f"{self.part}.L{self.number}" if self.part else f"L{self.number}"


@dataclass(frozen=True, order=True)
class Head:
    """One head of one layer.

    Example:
        >>> str(Head.parse("l0h2"))
        'L0H2'
    """

    layer: Layer
    number: int

    @classmethod
    def parse(cls, word: str) -> "Head":
        """The head that a word names.

        Raises:
            BadValue: if the word is not of that form.
        """
        found = _FORM.fullmatch(word.strip())
        if found is None:
            raise BadValue(
                f"heads: expected names such as L0H2 (layer 0, head 2, counted from 0), got "
                f"{word!r}; separate several by commas: L0H2,L1H8",
                f"heads：应为 L0H2 这样的名称（第 0 层第 2 头，从 0 数起），收到 {word!r}；"
                "多个名称用逗号分隔：L0H2,L1H8",
            )
        part, layer, head = found.groups()
        return cls(Layer((part or "").lower(), int(layer)), int(head))

    def __str__(self) -> str:
        return f"{self.layer}H{self.number}"


def parse_heads(words: str) -> tuple[Head, ...]:
    """The heads that a list such as ``L0H2,L1H8`` names, each once, in that order.

    Raises:
        BadValue: if a word is not a head, or the list is empty.
    """
    return tuple(dict.fromkeys(Head.parse(word) for word in words.split(",")))


def by_layer(heads: Iterable[Head]) -> dict[Layer, list[Head]]:
    """The heads of each layer in their order, the layers in theirs."""
    found: dict[Layer, list[Head]] = {}
    for head in sorted(heads):
        found.setdefault(head.layer, []).append(head)
    return found

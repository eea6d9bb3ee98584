"""Evidence of heads with a constructed behaviour, on randomly sampled texts."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from headwise.heads.corpus.documents import CorpusDocument, Entity, Parse
from headwise.heads.metrics import KeyContext, Rows
from headwise.heads.names import Head, Layer
from headwise.heads.naming import Evidence
from headwise.heads.statistics import Statistics

LAYER = Layer("", 0)
Make = Callable[[torch.Generator, int], Tensor]
"""A head: its weights (L, L) on one text."""


def noise(make: torch.Generator, length: int) -> Tensor:
    """A head that looks anywhere, anew in each text; too sharply to be diffuse."""
    return (2 * torch.randn(length, length, generator=make, dtype=torch.float64)).softmax(-1)


def faint(make: torch.Generator, length: int) -> Tensor:
    """A head of an untrained model: nearly uniform."""
    scores = 0.01 * torch.randn(length, length, generator=make, dtype=torch.float64)
    return scores.softmax(-1)


def previous(make: torch.Generator, length: int) -> Tensor:
    """0.9 on the token before."""
    return 0.9 * torch.eye(length).double()[[0, *range(length - 1)]] + 0.1 * noise(make, length)


def sink(make: torch.Generator, length: int) -> Tensor:
    """0.6 on the first token."""
    return 0.6 * torch.eye(length).double()[[0] * length] + 0.4 * noise(make, length)


def governors(length: int) -> list[int]:
    """The head of each word: of every third three or five after, so that no offset is right; of
    the others one or two after."""
    reach = [(3 if n % 6 == 0 else 5) if n % 3 == 0 else 1 + n % 2 for n in range(length)]
    return [min(n + far, length - 1) for n, far in enumerate(reach)]


def parent(make: torch.Generator, length: int) -> Tensor:
    """0.8 on the head of every third word, and on the word itself of the others."""
    heads = [head if n % 3 == 0 else n for n, head in enumerate(governors(length))]
    return 0.8 * torch.eye(length).double()[heads] + 0.2 * noise(make, length)


def names(make: torch.Generator, length: int) -> Tensor:
    """Half of it on the words `entities` marks."""
    inside = torch.zeros(length, dtype=torch.float64)
    inside[1:3] = 0.5
    return 0.5 * inside.expand(length, length) + 0.5 * noise(make, length)


def document(length: int) -> CorpusDocument:
    """A text whose tree has `governors`, and in which the second and third word are an entity."""
    heads = [-1 if head == n else head for n, head in enumerate(governors(length))]
    relations = ["far" if n % 3 == 0 else "near" for n in range(length)]
    return CorpusDocument(
        name="drawn",
        text="x" * length,
        words=tuple((n, n + 1) for n in range(length)),
        parse=Parse(tuple(heads), tuple(relations)),
        entities=(Entity(1, 3, "person"),),
    )


@lru_cache(maxsize=64)
def evidence(heads: tuple[Make, ...], texts: int, seed: int, *, whole: bool = True) -> Evidence:
    """What so many texts show of the heads of one layer.

    Args:
        heads: each of them.
        texts: how many, of 9 to 24 tokens.
        seed: of the texts.
        whole: whether weights are given, for syntax, entities and similarity.
    """
    found, make = Evidence(), torch.Generator().manual_seed(seed)
    for _ in range(texts):
        length = int(torch.randint(9, 25, (), generator=make))
        tables = torch.stack([head(make, length) for head in heads])
        allowed = torch.ones(1, 1, length, length, dtype=torch.bool)
        statistics = Statistics()
        statistics.add(LAYER, rows_of(tables, allowed))
        keys = [Head(LAYER, number) for number in range(len(heads))]
        found.add(
            statistics,
            dict(zip(keys, tables, strict=True)) if whole else None,
            dict.fromkeys(keys, allowed[0, 0]) if whole else None,
            words=[[n] for n in range(length)],
            document=document(length),
        )
    return found


def rows_of(tables: Tensor, allowed: Tensor) -> Rows:
    length = tables.shape[-1]
    context = KeyContext(
        allowed=allowed,
        counts=torch.ones(1, length, dtype=torch.bool),
        position=torch.arange(length),
        first=torch.tensor([0]),
    )
    return Rows(weights=tables[None], context=context)

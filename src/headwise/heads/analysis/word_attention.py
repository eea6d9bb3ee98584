"""Attention between words, computed from attention between their tokens."""

from collections.abc import Sequence

from torch import Tensor

from headwise.errors import BadValue

FROM = ("mean", "first")
"""What a split word attends to: the mean over its pieces, or that of its first piece."""


def merged(weights: Tensor, words: Sequence[Sequence[int]], *, source: str = "mean") -> Tensor:
    """The attention from word to word.

    To a split word goes the sum over its pieces; from a split word comes their mean, so that rows
    still sum to 1.

    Args:
        weights: (..., L, L) between pieces.
        words: the pieces of each word, numbers below L; each piece in one word.
        source: "mean", as the paper has it; or "first", the default of its code.

    Returns:
        (..., W, W).

    Raises:
        BadValue: if the words are not made of the pieces, each once, or source is another word.

    Source: Clark et al. 2019, section 4.1.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> merged(weights, [[0], [1, 2]])
        tensor([[0.5000, 0.5000],
                [0.2500, 0.7500]])
    """
    length = weights.shape[-1]
    if source not in FROM:
        raise BadValue(
            "source: unknown '{source}'; expected one of {from_}",
            source=source,
            from_=", ".join(FROM),
        )
    if sorted(piece for word in words for piece in word) != list(range(length)) or not all(words):
        raise BadValue(
            "words: expected each of the {length} pieces in one word, got {words!r}",
            length=length,
            words=list(words),
        )
    to = weights.new_zeros(length, len(words))
    for number, word in enumerate(words):
        to[list(word), number] = 1.0
    if source == "first":
        return weights[..., [word[0] for word in words], :] @ to
    return (to / to.sum(0)).mT @ weights @ to


def between(
    weights: Tensor, queries: Sequence[Sequence[int]], keys: Sequence[Sequence[int]]
) -> Tensor:
    """The attention from some words to others: of it what lies on these words.

    Pieces that are in no word, such as [CLS] and [SEP], are left out, so that a row may sum to
    less than 1. To a word goes the sum over its pieces, from a word comes their mean; a word
    without a piece gives and gets nothing.

    Args:
        weights: (..., Lq, Lk) between pieces.
        queries: the pieces of each query word, numbers below Lq.
        keys: the pieces of each key word, numbers below Lk.

    Returns:
        (..., query words, key words).

    Raises:
        BadValue: if a piece is none of the weights'.

    Source: Clark et al. 2019, section 4.1; special tokens are dropped in section 4.2.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> between(weights, [[1, 2]], [[0], [1]])
        tensor([[0.2500, 0.7500]])
    """
    mean = _belongs(weights, queries, weights.shape[-2], "queries")
    mean = mean / mean.sum(0).clamp(min=1)
    return mean.mT @ weights @ _belongs(weights, keys, weights.shape[-1], "keys")


def _belongs(weights: Tensor, words: Sequence[Sequence[int]], length: int, name: str) -> Tensor:
    """(length, words), 1 where a piece is one of a word."""
    made = weights.new_zeros(length, len(words))
    for number, word in enumerate(words):
        if not all(0 <= piece < length for piece in word):
            raise BadValue(
                "{name}: expected pieces below {length}, got {word} for word {number}; "
                "count the tokens of the weights from 0",
                name=name,
                length=length,
                word=list(word)[:8],
                number=number,
            )
        made[list(word), number] = 1.0
    return made


def pieces(words: Sequence[tuple[int, int]], tokens: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Which tokens each word is made of: those that begin in it.

    A token that holds several words, or begins with the blank before one, belongs to the word that
    its first letter is of. A word may be left without one: it ends before the text was cut, or its
    letters are in the token of the word before.

    Args:
        words: (start, stop) in characters of each word, in order.
        tokens: (start, stop) of each token, as a fast tokenizer's ``offset_mapping`` has it; a
            special token is (0, 0).

    Example:
        >>> pieces([(0, 3), (4, 8)], [(0, 0), (0, 3), (3, 6), (6, 8), (0, 0)])
        [[1], [2, 3]]
    """
    found: list[list[int]] = [[] for _ in words]
    for number, (start, stop) in enumerate(tokens):
        inside = [n for n, (begin, end) in enumerate(words) if begin < stop and start < end]
        if inside:
            found[inside[0]].append(number)
    return found

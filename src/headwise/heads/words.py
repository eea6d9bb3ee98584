"""Attention between pieces of words as attention between words."""

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
            f"source: unknown '{source}'; expected one of {', '.join(FROM)}",
            f"source：未知的 '{source}'；应为 {', '.join(FROM)} 之一",
        )
    if sorted(piece for word in words for piece in word) != list(range(length)) or not all(words):
        raise BadValue(
            f"words: expected each of the {length} pieces in one word, got {list(words)!r}",
            f"words：{length} 个词片应各属于一个词，收到 {list(words)!r}",
        )
    to = weights.new_zeros(length, len(words))
    for number, word in enumerate(words):
        to[list(word), number] = 1.0
    if source == "first":
        return weights[..., [word[0] for word in words], :] @ to
    return (to / to.sum(0)).mT @ weights @ to

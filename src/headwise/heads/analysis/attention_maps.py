"""Maps of attention: through all layers below, and between words."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import BadValue, MissingExtra


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Attention through the layers as a product of matrices, (..., L, L).

    Each layer counts half for the tokens it attends to and half for the residual beside it.

    Args:
        layers: from the lowest, each (..., L, L): the weights, averaged over the heads.

    Raises:
        BadValue: if there is no layer, or they differ in shape.

    Source: Abnar & Zuidema 2020, section 3, equation 1.

    Example:
        >>> rollout([torch.tensor([[1.0, 0.0], [0.5, 0.5]])])
        tensor([[1.0000, 0.0000],
                [0.2500, 0.7500]])
    """
    with_residual = _with_residual(layers)
    found = with_residual[0]
    for layer in with_residual[1:]:
        found = layer @ found
    return found


def flow(layers: Sequence[Tensor], *, normalised: bool = False) -> Tensor:
    """The largest flow from each token of the last layer to each input token, (L, L).

    Weights are capacities of pipes between tokens of neighbouring layers; a token passes on
    whatever it gets.

    Args:
        layers: from the lowest, each (L, L): the weights, averaged over the heads.
        normalised: whether each row is divided by its sum, as the authors' code does.

    Raises:
        BadValue: if there is no layer, or they differ in shape or are no matrices.
        MissingExtra: if networkx, which torch brings along, is not there.

    Source: Abnar & Zuidema 2020, section 3: one maximum flow for each pair, O(L² · edges²) at
    worst: for sentences, not for documents.

    Example:
        >>> flow([torch.tensor([[1.0, 0.0], [0.5, 0.5]])])
        tensor([[1.0000, 0.0000],
                [0.2500, 0.7500]])
    """
    try:
        import networkx
    except ImportError as error:
        raise MissingExtra.of("networkx", "inspect") from error
    with_residual = _with_residual(layers)
    if with_residual[0].dim() != 2:
        raise BadValue(
            "layers: expected matrices (L, L), got {shape}; average over the heads, one "
            "sample at a time",
            shape=tuple(with_residual[0].shape),
        )
    graph = networkx.DiGraph()
    for number, layer in enumerate(with_residual, 1):
        for i, row in enumerate(layer.tolist()):
            pipes = (((number, i), (number - 1, j), size) for j, size in enumerate(row) if size)
            graph.add_weighted_edges_from(pipes, weight="capacity")
    length, top = with_residual[0].shape[0], len(with_residual)
    graph.add_nodes_from((0, j) for j in range(length))
    found = [
        [networkx.maximum_flow_value(graph, (top, i), (0, j)) for j in range(length)]
        for i in range(length)
    ]
    flows = with_residual[0].new_tensor(found)
    return flows / flows.sum(-1, keepdim=True) if normalised else flows


def _with_residual(layers: Sequence[Tensor]) -> list[Tensor]:
    shapes = [tuple(layer.shape) for layer in layers]
    if not shapes or len(set(shapes)) > 1 or len(shapes[0]) < 2 or shapes[0][-1] != shapes[0][-2]:
        raise BadValue(
            "layers: expected one or more of one shape (..., L, L), got {shapes}", shapes=shapes
        )
    own = torch.eye(shapes[0][-1], dtype=layers[0].dtype, device=layers[0].device)
    return [0.5 * layer + 0.5 * own for layer in layers]


LAST = 64
"""How many of the last queries columns and diagonals are chosen by. Source: Jiang et al. 2024."""


def vertical_slash(
    weights: Float[Tensor, "h l l"], *, verticals: int, slashes: int, last: int = LAST
) -> Float[Tensor, " h"]:
    """The share of attention that the best columns and diagonals of each head hold, (H,).

    The columns (one key for all queries) and diagonals (one distance for all queries) are chosen
    by the sums of the last queries, and hold what they hold of the whole map; where a column and a
    diagonal cross, the weight counts once.

    Args:
        weights: of a text's heads, (H, L, L).
        verticals: how many columns.
        slashes: how many diagonals.
        last: how many of the last queries they are chosen by.

    Raises:
        BadValue: if the maps are not square, or a number is not positive.

    Source: Jiang et al. 2024 (MInference), algorithm 2 and section 3.2; recall of the pattern.

    Example:
        >>> vertical_slash(torch.eye(4)[None], verticals=1, slashes=1)
        tensor([1.])
    """
    if weights.dim() != 3 or weights.shape[-1] != weights.shape[-2]:
        raise BadValue(
            "weights: expected (H, L, L), got {weights_shape}; give one text's heads",
            weights_shape=tuple(weights.shape),
        )
    for name, number in (("verticals", verticals), ("slashes", slashes), ("last", last)):
        if number < 1:
            raise BadValue(
                "{name}: expected a number from 1 on, got {number}; use {name}=1 for the least",
                name=name,
                number=number,
            )
    heads, length, _ = weights.shape
    place = torch.arange(length, device=weights.device)
    diagonal = place[:, None] - place + length - 1  # (L, L), from 0 to 2 L - 2
    end = weights[:, -last:]
    columns = end.sum(1)  # (H, L)
    sums = weights.new_zeros(heads, 2 * length - 1)
    sums.index_add_(1, diagonal[-last:].flatten(), end.flatten(1))
    chosen = _marked(columns, verticals)[:, None] | _marked(sums, slashes)[:, diagonal]
    return (weights * chosen).sum((1, 2)) / weights.sum((1, 2))


def _marked(sums: Tensor, most: int) -> Tensor:
    """True at the largest of each row."""
    best = sums.topk(min(most, sums.shape[1]), -1).indices
    return torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, True)


FIRST = 10
"""How many tokens of each text are looked at. Source: Vig & Belinkov 2019, section 4.4."""


def variability(weights: Float[Tensor, "x h l l"], *, first: int = FIRST) -> Float[Tensor, " h"]:
    """How far each head's maps lie from their mean over texts, 0 (position alone) to 1, (H,).

        Σ_x Σ_i Σ_j |A_x[i,j] - mean_x A[i,j]| / (2 Σ_x Σ_i Σ_j A_x[i,j])

    Args:
        weights: the heads on several texts, (X, H, L, L), cut to one length.
        first: how many tokens of each count.

    Raises:
        BadValue: if there are fewer than two texts, or they are shorter than ``first``.

    Source: Vig & Belinkov 2019, section 4.4, equation 3.
    """
    if weights.dim() != 4 or len(weights) < 2 or min(weights.shape[-2:]) < first:
        raise BadValue(
            "weights: expected (texts, H, L, L) of two texts or more and L from {first} "
            "on, got {weights_shape}; leave out shorter texts, or lower first",
            first=first,
            weights_shape=tuple(weights.shape),
        )
    shown = weights[..., :first, :first]
    apart = (shown - shown.mean(0)).abs().sum((0, 2, 3))
    return apart / (2 * shown.sum((0, 2, 3)))


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

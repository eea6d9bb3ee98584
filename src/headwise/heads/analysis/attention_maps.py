"""Attention through all layers, patterns of attention maps, and attention between words."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import BadValue, MissingExtra


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Attention rollout: the product of the layers (..., L, L), each half attention, half residual.

    Args:
        layers: the weights averaged over the heads, (..., L, L) each, from the lowest layer.

    Raises:
        BadValue: if there is no layer, or they differ in shape.

    Source: Abnar & Zuidema 2020, section 3, equation 1.

    Example:
        >>> rollout([torch.tensor([[1.0, 0.0], [0.5, 0.5]])])
        tensor([[1.0000, 0.0000],
                [0.2500, 0.7500]])
    """
    with_residual = _with_residual(layers)
    product = with_residual[0]
    for layer in with_residual[1:]:
        product = layer @ product
    return product


def flow(layers: Sequence[Tensor], *, normalised: bool = False) -> Tensor:
    """Attention flow: the maximum flow from each token of the last layer to each input, (L, L).

    Weights are the capacities of edges between tokens of neighbouring layers. There is one maximum
    flow for each pair of tokens, O(L² · edges²) at worst: for sentences, not for documents.

    Args:
        layers: the weights averaged over the heads, (L, L) each, from the lowest layer.
        normalised: whether each row is divided by its sum, as in the authors' code.

    Raises:
        BadValue: if there is no layer, or they differ in shape or are no matrices.
        MissingExtra: if networkx, which torch installs, is missing.

    Source: Abnar & Zuidema 2020, section 3.

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
            edges = (((number, i), (number - 1, j), size) for j, size in enumerate(row) if size)
            graph.add_weighted_edges_from(edges, weight="capacity")
    length, top = with_residual[0].shape[0], len(with_residual)
    graph.add_nodes_from((0, j) for j in range(length))
    places = [((top, i), (0, j)) for i in range(length) for j in range(length)]
    values = [networkx.maximum_flow_value(graph, source, sink) for source, sink in places]
    flows = with_residual[0].new_tensor(values).view(length, length)
    return flows / flows.sum(-1, keepdim=True) if normalised else flows


def _with_residual(layers: Sequence[Tensor]) -> list[Tensor]:
    shapes = [tuple(layer.shape) for layer in layers]
    if not shapes or len(set(shapes)) > 1 or len(shapes[0]) < 2 or shapes[0][-1] != shapes[0][-2]:
        raise BadValue(
            "layers: expected one or more of one shape (..., L, L), got {shapes}", shapes=shapes
        )
    own = torch.eye(shapes[0][-1], dtype=layers[0].dtype, device=layers[0].device)
    return [0.5 * layer + 0.5 * own for layer in layers]


LAST = 64  # the number of last queries that choose columns and diagonals. Source: Jiang et al. 2024


def vertical_slash(
    weights: Float[Tensor, "h l l"], *, verticals: int, slashes: int, last: int = LAST
) -> Float[Tensor, " h"]:
    """The share of attention in the best columns and diagonals of each head, (H,).

    Columns (one key for all queries) and diagonals (one distance for all queries) are chosen by
    their sums over the last queries; the share is over all queries.

    Args:
        weights: of the heads on one text, (H, L, L).
        verticals: the number of columns.
        slashes: the number of diagonals.
        last: the number of last queries that choose them.

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
                "{name}: expected a number >= 1, got {number}; the smallest is {name}=1",
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
    best = sums.topk(min(most, sums.shape[1]), -1).indices
    return torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, True)


FIRST = 10  # the number of tokens of each text that are compared: Vig & Belinkov 2019, section 4.4


def variability(weights: Float[Tensor, "x h l l"], *, first: int = FIRST) -> Float[Tensor, " h"]:
    """The distance of each head's maps from their mean over texts, 0 (position only) to 1, (H,).

        Σ_x Σ_i Σ_j |A_x[i,j] - mean_x A[i,j]| / (2 Σ_x Σ_i Σ_j A_x[i,j])

    Args:
        weights: the heads on several texts, (X, H, L, L), cut to one length.
        first: the number of tokens of each text that are compared.

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


FROM = ("mean", "first")  # the attention of a split word: the mean over its pieces, or the first's


def merged(weights: Tensor, words: Sequence[Sequence[int]], *, source: str = "mean") -> Tensor:
    """The attention from word to word, (..., W, W).

    The attention to a split word is the sum over its pieces, the attention from it their mean, so
    that rows still sum to 1.

    Args:
        weights: (..., L, L) between pieces.
        words: the pieces of each word, numbers below L; each piece in one word.
        source: "mean" as in the paper, or "first", the default of its code.

    Raises:
        BadValue: if the words are not made of the pieces, each once, or ``source`` is unknown.

    Source: Clark et al. 2019, section 4.1.

    Example:
        >>> weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> merged(weights, [[0], [1, 2]])
        tensor([[0.5000, 0.5000],
                [0.2500, 0.7500]])
    """
    length = weights.shape[-1]
    if source not in FROM:
        from_ = ", ".join(FROM)
        raise BadValue(
            "source: unknown '{source}'; expected one of {from_}", source=source, from_=from_
        )
    if sorted(piece for word in words for piece in word) != list(range(length)) or not all(words):
        raise BadValue(
            "words: expected each of the {length} pieces in one word, got {words!r}",
            length=length,
            words=list(words),
        )
    to = _membership(weights, words, length, "words")
    if source == "first":
        return weights[..., [word[0] for word in words], :] @ to
    return (to / to.sum(0)).mT @ weights @ to


def between(
    weights: Tensor, queries: Sequence[Sequence[int]], keys: Sequence[Sequence[int]]
) -> Tensor:
    """The attention from some words to others, (..., query words, key words).

    As `merged`, but pieces in no word, such as [CLS] and [SEP], are left out, so that a row may sum
    to less than 1. The attention from and to a word without pieces is 0.

    Args:
        weights: (..., Lq, Lk) between pieces.
        queries: the pieces of each query word, numbers below Lq.
        keys: the pieces of each key word, numbers below Lk.

    Raises:
        BadValue: if a piece is outside the weights.

    Source: Clark et al. 2019, section 4.1; special tokens are dropped in section 4.2.

    Example:
        >>> weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> between(weights, [[1, 2]], [[0], [1]])
        tensor([[0.2500, 0.7500]])
    """
    members = _membership(weights, queries, weights.shape[-2], "queries")
    mean = members / members.sum(0).clamp(min=1)
    return mean.mT @ weights @ _membership(weights, keys, weights.shape[-1], "keys")


def _membership(weights: Tensor, words: Sequence[Sequence[int]], length: int, name: str) -> Tensor:
    """(length, words), 1 where a piece belongs to a word."""
    members = weights.new_zeros(length, len(words))
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
        members[list(word), number] = 1.0
    return members


def pieces(words: Sequence[tuple[int, int]], tokens: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The tokens of each word.

    A token that overlaps several words belongs to the first of them. A word has no token if the
    text was cut before it, or if its characters are in the token of the word before.

    Args:
        words: (start, stop) in characters of each word, in order.
        tokens: (start, stop) of each token, as in the ``offset_mapping`` of a fast tokenizer; a
            special token is (0, 0).

    Example:
        >>> pieces([(0, 3), (4, 8)], [(0, 0), (0, 3), (3, 6), (6, 8), (0, 0)])
        [[1], [2, 3]]
    """
    tokens_of_words: list[list[int]] = [[] for _ in words]
    for number, (start, stop) in enumerate(tokens):
        inside = [n for n, (begin, end) in enumerate(words) if begin < stop and start < end]
        if inside:
            tokens_of_words[inside[0]].append(number)
    return tokens_of_words

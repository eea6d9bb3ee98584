"""Attention through all layers, patterns in attention maps, and attention between words."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import BadValue, MissingExtra


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Return the attention rollout (..., L, L), the product over layers of (attention + I) / 2.

    Args:
        layers: the attention weights of each layer from the lowest, averaged over heads,
            (..., L, L) each.

    Raises:
        BadValue: if there is no layer, or the layers differ in shape.

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
    """Return the attention flow (L, L), the maximum flow from tokens of the last layer to inputs.

    Weights are the capacities of edges between tokens of neighbouring layers. Each pair of tokens
    needs one maximum flow, O(L² · edges²) in the worst case, so use it for sentences only.

    Args:
        layers: the weights of each layer from the lowest, averaged over heads, (L, L) each.
        normalised: whether each row is divided by its sum, as in the code of the authors.

    Raises:
        BadValue: if there is no layer, or the layers differ in shape or are not matrices.
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
            "layers: expected matrices (L, L), got {shape}; average over the heads, and pass "
            "one sample",
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
            "layers: expected tensors of one shape (..., L, L), got {shapes}", shapes=shapes
        )
    own = torch.eye(shapes[0][-1], dtype=layers[0].dtype, device=layers[0].device)
    return [0.5 * layer + 0.5 * own for layer in layers]


LAST = 64  # the number of last queries that select columns and diagonals; Jiang et al. 2024


def vertical_slash(
    weights: Float[Tensor, "h l l"], *, verticals: int, slashes: int, last: int = LAST
) -> Float[Tensor, " h"]:
    """Return the share (H,) of the attention of each head in its best columns and diagonals.

    Columns (one key for all queries) and diagonals (one distance for all queries) are selected by
    their sums over the last queries; the share is over all queries.

    Args:
        weights: the attention weights of the heads on one text, (H, L, L).
        verticals: the number of columns.
        slashes: the number of diagonals.
        last: the number of last queries that select columns and diagonals.

    Raises:
        BadValue: if ``weights`` are not square, or a number is not positive.

    Source: Jiang et al. 2024 (MInference), algorithm 2 and section 3.2; recall of the pattern.

    Example:
        >>> vertical_slash(torch.eye(4)[None], verticals=1, slashes=1)
        tensor([1.])
    """
    if weights.dim() != 3 or weights.shape[-1] != weights.shape[-2]:
        raise BadValue(
            "weights: expected (H, L, L), got {weights_shape}; pass the heads of one text",
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


FIRST = 10  # the number of compared tokens of each text; Vig & Belinkov 2019, section 4.4


def variability(weights: Float[Tensor, "x h l l"], *, first: int = FIRST) -> Float[Tensor, " h"]:
    """Return the distance (H,) of the maps of each head from their mean over texts, from 0 to 1.

        Σ_x Σ_i Σ_j |A_x[i,j] - mean_x A[i,j]| / (2 Σ_x Σ_i Σ_j A_x[i,j])

    Args:
        weights: the attention weights on several texts of one length, (X, H, L, L).
        first: the number of compared tokens of each text.

    Raises:
        BadValue: if there are fewer than two texts, or the texts are shorter than ``first``.

    Source: Vig & Belinkov 2019, section 4.4, equation 3.
    """
    if weights.dim() != 4 or len(weights) < 2 or min(weights.shape[-2:]) < first:
        raise BadValue(
            "weights: expected (texts, H, L, L) with at least 2 texts and L >= {first}, "
            "got {weights_shape}; leave out shorter texts, or reduce first",
            first=first,
            weights_shape=tuple(weights.shape),
        )
    shown = weights[..., :first, :first]
    apart = (shown - shown.mean(0)).abs().sum((0, 2, 3))
    return apart / (2 * shown.sum((0, 2, 3)))


FROM = ("mean", "first")  # the attention from a word: the mean over its tokens, or the first token


def merged(weights: Tensor, words: Sequence[Sequence[int]], *, source: str = "mean") -> Tensor:
    """Return the attention between words, (..., W, W).

    The attention to a word is the sum over its tokens, the attention from a word their mean, so
    rows still sum to 1.

    Args:
        weights: the attention weights between tokens, (..., L, L).
        words: the token indices of each word, below L; each token is in exactly one word.
        source: "mean" over the tokens of a word as in the paper, or "first" as in its code.

    Raises:
        BadValue: if a token is not in exactly one word, or ``source`` is unknown.

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
            "words: expected each of the {length} tokens in exactly one word, got {words!r}",
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
    """Return the attention from query words to key words, (..., query words, key words).

    The same as `merged`, but without tokens that are in no word, such as [CLS] and [SEP], so a row
    may sum to less than 1. The attention from and to a word without tokens is 0.

    Args:
        weights: the attention weights between tokens, (..., Lq, Lk).
        queries: the token indices of each query word, below Lq.
        keys: the token indices of each key word, below Lk.

    Raises:
        BadValue: if a token is outside the weights.

    Source: Clark et al. 2019, section 4.1; section 4.2 also removes special tokens.

    Example:
        >>> weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> between(weights, [[1, 2]], [[0], [1]])
        tensor([[0.2500, 0.7500]])
    """
    members = _membership(weights, queries, weights.shape[-2], "queries")
    mean = members / members.sum(0).clamp(min=1)
    return mean.mT @ weights @ _membership(weights, keys, weights.shape[-1], "keys")


def _membership(weights: Tensor, words: Sequence[Sequence[int]], length: int, name: str) -> Tensor:
    """Return (length, words), 1 where a token belongs to a word."""
    members = weights.new_zeros(length, len(words))
    for number, word in enumerate(words):
        if not all(0 <= piece < length for piece in word):
            raise BadValue(
                "{name}: expected token indices below {length}, got {word} for word {number}; "
                "count tokens from 0",
                name=name,
                length=length,
                word=list(word)[:8],
                number=number,
            )
        members[list(word), number] = 1.0
    return members


def pieces(words: Sequence[tuple[int, int]], tokens: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the token indices of each word.

    A token that overlaps several words belongs to the first of these words. A word has no tokens if
    the text was truncated before it, or if its characters are in a token of the previous word.

    Args:
        words: (start, stop) of each word in characters, in order.
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

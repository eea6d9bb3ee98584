"""An oracle that computes attention pair by pair, without any code of headwise."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Rule = Callable[[int, int, int, int], bool]  # sample, head, query position, key
Added = Callable[[int, int, int, int], Tensor | float]  # what is added to the scaled score


@dataclass(frozen=True)
class Pattern:
    """A mask as functions of one pair."""

    rule: Rule
    added: Added | None = None


@dataclass(frozen=True)
class Place:
    """A position encoding as functions of one vector or one pair, as their paper states them.

    Attributes:
        turn: of a query or a key and its position.
        score: what is added to the scaled score, from the query, the head and both positions.
    """

    turn: Callable[[Tensor, int], Tensor] | None = None
    score: Callable[[Tensor, int, int, int, float], Tensor | float] | None = None


@dataclass(frozen=True)
class Expected:
    """The results, in float64: the output (B, H, Lq, Dv), and the statistics of the weights."""

    output: Tensor
    weights: Tensor
    logsumexp: Tensor
    entropy: Tensor
    received: Tensor
    distance: Tensor
    largest: Tensor


def attention(
    qkv: tuple[Tensor, Tensor, Tensor],
    pattern: Pattern,
    place: Place,
    scale: float,
    offset: int,
    sinks: Tensor | None,
) -> Expected:
    """The results of one call, differentiable with respect to q, k, v and the sinks."""
    q, k, v = qkv
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    group = heads // k.shape[1] if k.shape[1] else 1
    rows, sums = [], []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                scores = _scores(
                    q[b, h, i], k[b, h // group], (b, h, i + offset), pattern, place, scale
                )
                row, total = _softmax(scores, keys, q, None if sinks is None else sinks[h])
                rows.append(row)
                sums.append(total)
    weights = torch.stack(rows).view(batch, heads, queries, keys)
    logsumexp = torch.stack(sums).view(batch, heads, queries)
    output = torch.stack(
        [weights[b, h] @ v[b, h // group] for b in range(batch) for h in range(heads)]
    ).view(batch, heads, queries, v.shape[3])
    safe = torch.where(weights > 0, weights, 1.0)
    away = torch.tensor(
        [[float(abs(j - i - offset)) for j in range(keys)] for i in range(queries)]
    ).view(queries, keys)
    return Expected(
        output,
        weights,
        logsumexp,
        -(weights * safe.log()).sum(-1),
        weights.sum(2),
        (weights * away).sum(-1),
        weights.amax(-1),
    )


def _scores(
    query: Tensor,
    keys: Tensor,
    where: tuple[int, int, int],
    pattern: Pattern,
    place: Place,
    scale: float,
) -> dict[int, Tensor]:
    """The score of each key that the query may attend to."""
    b, h, i = where
    scores = {}
    for j in range(len(keys)):
        if not pattern.rule(b, h, i, j):
            continue
        one, other = query, keys[j]
        if place.turn is not None:
            one, other = place.turn(one, i), place.turn(other, j)
        score = (one * other).sum() * scale
        if place.score is not None:
            score = (score + place.score(query, h, i, j, scale)).to(query.dtype)
        if pattern.added is not None:
            score = score + pattern.added(b, h, i, j)
        scores[j] = score
    return scores


def _softmax(
    scores: dict[int, Tensor], keys: int, like: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The weights (Lk,) and the logsumexp of one query."""
    terms = list(scores.values()) + ([] if sink is None else [sink])
    if not terms:
        return like.new_zeros(keys), like.new_tensor(-math.inf)
    largest = max(term.item() for term in terms)
    if largest == -math.inf:
        return like.new_zeros(keys), like.new_tensor(-math.inf)
    powers = [(term - largest).exp() for term in terms]
    total = torch.stack(powers).sum()
    weights = dict(zip(scores, powers, strict=False))
    zero = like.new_zeros(())
    row = torch.stack([weights[j] / total if j in weights else zero for j in range(keys)])
    return row, largest + total.log()


def turned(vector: Tensor, position: int, neighbours: bool, base: float = 10000.0) -> Tensor:
    """Su et al. 2021, equation 15, number by number."""
    size = len(vector)
    half = size // 2
    numbers = list(vector)
    for p in range(half):
        first, second = (2 * p, 2 * p + 1) if neighbours else (p, p + half)
        angle = position * base ** (-2 * p / size)
        one, other = vector[first], vector[second]
        numbers[first] = one * math.cos(angle) - other * math.sin(angle)
        numbers[second] = one * math.sin(angle) + other * math.cos(angle)
    return torch.stack(numbers)


def alibi(heads: int, h: int, i: int, j: int) -> float:
    """Press et al. 2022, section 3, with their code's rule for heads that are no power of two."""
    power = 1 << (heads.bit_length() - 1)
    exponent = -8 * (h + 1) / power if h < power else -8 * (2 * (h - power) + 1) / (2 * power)
    return -(2**exponent) * abs(i - j)

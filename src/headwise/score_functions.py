"""Functions applied to the scaled scores before any bias: a soft cap and the user's function."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.shapes import AttentionShape, Index, describe, format_value

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""``score_mod(score, b, h, q_idx, kv_idx)``, as in `torch.nn.attention.flex_attention`."""


ScoreFunction = Callable[[Tensor, Index, Index, Index, Index], Tensor]
"""A function (scores, sample, head, query position, key) -> scores of the same shape."""


@dataclass(frozen=True)
class SoftCap:
    """The function c · tanh(scores / c), whose values lie between -c and c.

    Source: Bello et al. 2016 (Neural Combinatorial Optimization), appendix A.1, where c is C;
        Gemma 2 (Riviere et al. 2024), section 2, logit soft-capping.
    """

    cap: float

    def __call__(self, scores: Tensor, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.tanh(scores / self.cap) * self.cap


@dataclass(frozen=True)
class Modified:
    """The user's ``score_mod``, which receives query indices counted from 0."""

    score_mod: ScoreMod
    offset: int

    def __call__(self, scores: Tensor, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        new = self.score_mod(scores, b, h, q - self.offset, k)
        if not isinstance(new, Tensor) or not new.is_floating_point():
            raise BadType(
                "score_mod: expected the function to return a floating point tensor, got {got}; "
                "use for example lambda score, b, h, q_idx, kv_idx: 2 * score",
                got=describe(new),
            )
        if new.shape != scores.shape:
            raise BadValue(
                "score_mod: expected the function to return scores of shape {expected}, got {got}; "
                "combine the scores only with values that broadcast to this shape",
                expected=tuple(scores.shape),
                got=tuple(new.shape),
            )
        return new.to(scores.dtype)


@dataclass(frozen=True)
class Composed:
    """Two functions in sequence: ``second`` is applied to the result of ``first``."""

    first: ScoreFunction
    second: ScoreFunction

    def __call__(self, scores: Tensor, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return self.second(self.first(scores, b, h, q, k), b, h, q, k)


def score_function(
    softcap: float | None, score_mod: ScoreMod | None, offset: int
) -> ScoreFunction | None:
    """Return the soft cap, the user's function, or both in this order; None if there is none."""
    capped = None if softcap is None else SoftCap(softcap)
    modified = None if score_mod is None else Modified(score_mod, offset)
    if capped is not None and modified is not None:
        return Composed(capped, modified)
    return modified if capped is None else capped


def checked_softcap(softcap: object) -> float | None:
    """Validate the soft cap and return it as a float, or None."""
    if softcap is None:
        return None
    number = isinstance(softcap, int | float) and not isinstance(softcap, bool)
    if not number or not 0 < softcap <= sys.float_info.max:  # type: ignore[operator]
        raise BadValue(
            "softcap: expected a positive finite number, or None for no soft cap, got {softcap}; "
            "Gemma 2 uses 50.0",
            softcap=format_value(softcap),
        )
    return float(softcap)  # type: ignore[arg-type]


def checked_score_mod(score_mod: object) -> ScoreMod | None:
    """Validate the user's function and return it, or None."""
    if score_mod is None or callable(score_mod):
        return score_mod
    raise BadType(
        "score_mod: expected a function (score, b, h, q_idx, kv_idx) -> score or None, got {got}",
        got=describe(score_mod),
    )


def reads_learned(function: ScoreFunction, shape: AttentionShape) -> bool:
    """Return whether a function reads a tensor that requires a gradient."""
    if isinstance(function, SoftCap) or not torch.is_grad_enabled():
        return False
    if any(tensor.requires_grad for tensor in _captured(function)):
        return True
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=shape.device)
    return function(zero.float(), zero, zero, zero + shape.offset, zero).requires_grad


def _captured(function: object) -> Iterator[Tensor]:
    """Yield the tensors in the closure, the bound object and the bound arguments of a function."""
    if isinstance(function, Tensor):
        yield function
    elif isinstance(function, nn.Module):
        yield from function.parameters()
    elif isinstance(function, Composed):
        yield from _captured(function.second)
    elif isinstance(function, Modified):
        yield from _captured(function.score_mod)
    elif isinstance(function, partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _captured(part)
    else:
        yield from _captured_by_function(function)


def _captured_by_function(function: object) -> Iterator[Tensor]:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        yield from owner.parameters()
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(content, Tensor | nn.Module):
            yield from _captured(content)

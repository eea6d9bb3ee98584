"""Mistakes in the position encoding: rotary positions and biases of distance."""

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.positions import Position, Rotary, Stage
from headwise.shapes import AttentionShape
from headwise.verify.mistakes.mistake import Mistake, mistake
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import StepContext

Rotate = Callable[[Position, Tensor, Tensor, AttentionShape], tuple[Tensor, Tensor]]


def _rotated(rotate: Rotate) -> dict[str, Callable[..., Tensor]]:
    """Scores of queries and keys that a rotary position turns in another way."""

    def score(context: StepContext, q: Tensor, k: Tensor) -> Tensor:
        position = context.position
        if position is None or Stage.CONTENT not in position.stages:
            return steps.score(context, q, k)
        q, k = rotate(position, q, k, context.shape)
        return q @ k.transpose(-2, -1)

    return {"score": score}


def _at(position: Position, x: Tensor, shape: AttentionShape, first: int = 0) -> Tensor:
    """Tokens (B, H, L, D) turned from a first position on."""
    more = x.new_zeros(*x.shape[:2], first, x.shape[3])
    length = first + x.shape[2]
    own = AttentionShape(shape.batch, shape.heads, length, length, 0, shape.device)
    longer = torch.cat((more, x), 2)
    return position.content(longer, longer, own)[0][:, :, first:]


def _over_heads(position: Position, x: Tensor, shape: AttentionShape) -> Tensor:
    return _at(position, x.transpose(1, 2), shape).transpose(1, 2)


def _other_pairs(position: Position, x: Tensor) -> Tensor:
    """Angles for one way of pairing features, on features paired in the other."""
    dim, length = x.shape[-1], x.shape[2]
    angles = torch.arange(length, dtype=x.dtype)[:, None] * 10000.0 ** -(
        torch.arange(0, dim, 2, dtype=x.dtype) / dim
    )
    halves = isinstance(position, Rotary) and position.pairs == "halves"
    if halves:
        wide, first, second = angles.repeat_interleave(2, -1), *x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    else:
        wide = torch.cat((angles, angles), -1)
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * wide.cos() + turned * wide.sin()


def _without_bias(context: StepContext, scaled: Tensor) -> Tensor:
    biased = scaled if context.bias is None else scaled + context.bias.to(scaled.dtype)
    return biased.masked_fill(~context.allowed, -torch.inf)


def _with_other_bias(change: Callable[[Tensor], Tensor]) -> dict[str, Callable[..., Tensor]]:
    def mask(context: StepContext, scaled: Tensor) -> Tensor:
        bias = context.position_bias(scaled)
        biased = scaled if bias is None else scaled + change(bias).to(scaled.dtype)
        return biased.masked_fill(~context.allowed, -torch.inf)

    return {"mask": mask}


POSITIONS: tuple[Mistake, ...] = (
    mistake(
        ("rotary_over_heads", "score", "positions"),
        Text("Rotary positions run over the heads instead of the tokens: the axes are exchanged."),
        ("positions = torch.arange(x.shape[1])  # heads", "positions = torch.arange(x.shape[2])"),
        _rotated(lambda p, q, k, s: (_over_heads(p, q, s), _over_heads(p, k, s))),
    ),
    mistake(
        ("rotary_off_by_one", "score", "positions"),
        Text("Queries and keys are rotated from different positions on, one apart."),
        ("q, k = rotate(q, start=0), rotate(k, start=1)", "q, k = rotate(q), rotate(k)"),
        _rotated(lambda p, q, k, s: (_at(p, q, s), _at(p, k, s, 1))),
        (_rotated(lambda p, q, k, s: (_at(p, q, s, 1), _at(p, k, s))),),
    ),
    mistake(
        ("rotary_of_queries_only", "score", "positions"),
        Text("Only the queries, or only the keys, are rotated."),
        ("q = rotate(q)", "q, k = rotate(q), rotate(k)"),
        _rotated(lambda p, q, k, s: (_at(p, q, s), k)),
        (_rotated(lambda p, q, k, s: (q, _at(p, k, s))),),
    ),
    mistake(
        ("rotary_pairs_mixed", "score", "positions"),
        Text("The angles belong to other pairs of features than those that are rotated."),
        (
            "torch.cat((angles, angles), -1)  # with x[..., 0::2], x[..., 1::2]",
            "angles.repeat_interleave(2, -1)",
        ),
        _rotated(lambda p, q, k, _shape: (_other_pairs(p, q), _other_pairs(p, k))),
    ),
    mistake(
        ("position_bias_ignored", "mask", "positions"),
        Text("The position bias exists and is not added to the scores."),
        ("scores.softmax(dim=-1)", "(scores + bias).softmax(dim=-1)"),
        {"mask": _without_bias},
    ),
    mistake(
        ("position_bias_reversed", "mask", "positions"),
        Text("The position bias has the wrong sign: far tokens get more weight."),
        ("scores + slope * distance", "scores - slope * distance"),
        _with_other_bias(torch.neg),
    ),
)

"""Mistakes between the split and the merge of heads: score, scale, softmax, dropout, group."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import softmax_dtype
from headwise.lang import Text
from headwise.verify.mistakes.mistake import Fitted, Mistake, Step, mistake, skipped
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import StepContext


def _softmax_over(axis: int) -> dict[str, Step]:
    """Replace the softmax by one over another axis; fully masked slices give 0, not NaN."""

    def softmax(_context: StepContext, scores: Tensor) -> Tensor:
        blind = scores.isneginf().all(axis, keepdim=True)
        return scores.masked_fill(blind, 0.0).softmax(axis).masked_fill(blind, 0.0)

    return {"softmax": softmax}


def _scaled_by(factor: Callable[[StepContext, int], float]) -> dict[str, Step]:
    """Replace the scale; `factor` takes the context and D, derived from the correct scale."""

    def scale(context: StepContext, dots: Tensor) -> Tensor:
        return dots.to(softmax_dtype(dots.dtype)) * factor(context, round(context.scale**-2))

    return {"scale": scale}


def _naive(context: StepContext, scores: Tensor) -> Tensor:
    blind = ~context.allowed.any(-1, keepdim=True)
    powers = scores.masked_fill(blind, 0.0).exp()
    return (powers / powers.sum(-1, keepdim=True)).masked_fill(blind, 0.0)


def _no_group(context: StepContext, shared: Tensor) -> Tensor:
    """Repeat key/value heads in the order 0 1 2 0 1 2 instead of 0 0 1 1 2 2."""
    rows = shared.repeat(1, context.shape.heads // max(context.groups, 1), 1, 1)
    return torch.where(context.allowed.any(-2)[..., None], rows, 0.0)


def _over_all(axes: int) -> dict[str, Step]:
    """A softmax over the first or the last two axes together."""

    def softmax(_context: StepContext, scores: Tensor) -> Tensor:
        joined = scores.flatten(0, 1) if axes > 0 else scores.flatten(-2)
        blind = joined.isneginf().all(0 if axes > 0 else -1, keepdim=True)
        powers = joined.masked_fill(blind, 0.0).softmax(0 if axes > 0 else -1)
        return powers.masked_fill(blind, 0.0).view_as(scores)

    return {"softmax": softmax}


def _elementwise(function: Callable[[Tensor], Tensor]) -> dict[str, Step]:
    """A function of the scores where a softmax should be; hidden keys are as `function` makes them.

    The values of hidden keys are as they are, since a weight of 0 is not sure.
    """
    return {"group": steps.repeated, "softmax": lambda _context, scores: function(scores)}


def _unnormalised(context: StepContext, scores: Tensor) -> Tensor:
    blind = ~context.allowed.any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).exp().masked_fill(~context.allowed, 0.0)


NICE = (
    *(n**-0.5 for n in range(1, 4097)),
    *(1.0 / n for n in range(2, 1025)),
    *(n / 1000 for n in range(1, 2001)),
    *(float(n) for n in range(2, 65)),
)
"""Constants that people write as a scale: 1/sqrt(n), 1/n, up to three decimals, integers."""

GRID = tuple(2.0 ** (n / 4) for n in range(-28, 17))  # scales from 1/128 to 16


def _fitted_scale(observations: Sequence[Any]) -> Fitted | None:
    """The constant that reproduces an observation as the scale, if one does."""
    seen = next((o for o in observations if not o.right), None)
    if seen is None or seen.rows is None:
        return None

    def error(scale: float) -> float:
        return float(seen.distance({"scale": _constant(scale)["scale"]}))

    best = min(GRID, key=error)
    low, high = best / 2**0.25, best * 2**0.25
    for _ in range(48):  # golden section
        first, second = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, second) if error(first) < error(second) else (first, high)
    found = (low + high) / 2
    nice = min(NICE, key=lambda value: abs(value - found))
    found = nice if abs(nice - found) < 1e-5 * nice else found
    right = seen.job.context.scale
    if abs(found - right) < 1e-4 * right:
        return None
    says = Text(
        "The scores are multiplied by {found:.4g} instead of 1/sqrt(head_dim) = {right:.4g}.",
        found=found,
        right=right,
    )
    return Fitted(_constant(found), says)


GOLDEN = 0.6180339887498949


def _constant(factor: float) -> dict[str, Step]:
    return _scaled_by(lambda _context, _dim: factor)


def _dropped_scores(context: StepContext, scores: Tensor) -> Tensor:
    active = context.training and context.dropout
    return steps.softmax(context, F.dropout(scores, context.dropout) if active else scores)


INSIDE: tuple[Mistake, ...] = (
    mistake(
        ("softmax_over_queries", "softmax", "rows_sum_to_one"),
        Text("The softmax runs over the queries, so the weights of one query do not sum to 1."),
        ("scores.softmax(dim=-2)", "scores.softmax(dim=-1)"),
        _softmax_over(-2),
    ),
    mistake(
        ("softmax_over_heads", "softmax", "heads_independent"),
        Text("The softmax runs over the heads, so the heads compete with each other."),
        ("scores.softmax(dim=1)", "scores.softmax(dim=-1)"),
        _softmax_over(1),
    ),
    mistake(
        ("softmax_over_batch", "softmax", "samples_independent"),
        Text("The softmax runs over the batch: F.softmax without dim takes axis 0 of three axes."),
        ("F.softmax(scores)  # dim=0", "F.softmax(scores, dim=-1)"),
        _softmax_over(0),
    ),
    mistake(
        ("no_scale", "scale", "scale_closed_form"),
        Text("The scores are not divided by sqrt(head_dim)."),
        (
            "scores = q @ k.transpose(-2, -1)",
            "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)",
        ),
        _scaled_by(lambda _context, _dim: 1.0),
    ),
    mistake(
        ("scale_by_dim", "scale", "scale_closed_form"),
        Text("The scores are divided by head_dim instead of its square root."),
        ("scores / head_dim", "scores / math.sqrt(head_dim)"),
        _scaled_by(lambda _context, dim: 1.0 / dim),
    ),
    mistake(
        ("scale_by_sqrt_embed", "scale", "scale_closed_form"),
        Text("The scores are divided by sqrt(embed_dim) instead of sqrt(head_dim)."),
        ("scores / math.sqrt(embed_dim)", "scores / math.sqrt(head_dim)"),
        _scaled_by(lambda context, _dim: context.embed_dim**-0.5),
    ),
    mistake(
        ("scale_multiplied", "scale", "scale_closed_form"),
        Text("The scores are multiplied by sqrt(head_dim) instead of divided."),
        ("scores * math.sqrt(head_dim)", "scores / math.sqrt(head_dim)"),
        _scaled_by(lambda _context, dim: dim**0.5),
    ),
    mistake(
        ("scale_by_embed", "scale", "scale_closed_form"),
        Text("The scores are divided by embed_dim instead of sqrt(head_dim)."),
        ("scores / embed_dim", "scores / math.sqrt(head_dim)"),
        _scaled_by(lambda context, _dim: 1.0 / context.embed_dim),
    ),
    mistake(
        ("scale_by_sqrt_heads", "scale", "scale_closed_form"),
        Text("The scores are divided by the square root of the number of heads."),
        ("scores / math.sqrt(num_heads)", "scores / math.sqrt(head_dim)"),
        _scaled_by(lambda context, _dim: context.shape.heads**-0.5),
    ),
    mistake(
        ("scale_by_sqrt_length", "scale", "scale_closed_form"),
        Text("The scores are divided by the square root of the number of keys."),
        ("scores / math.sqrt(scores.size(-1))", "scores / math.sqrt(head_dim)"),
        _scaled_by(lambda context, _dim: max(context.shape.keys, 1) ** -0.5),
        (_scaled_by(lambda context, _dim: max(context.shape.queries, 1) ** -0.5),),
    ),
    mistake(
        ("scale_after_softmax", "softmax", "rows_sum_to_one"),
        Text("The scale multiplies the weights after the softmax instead of the scores before it."),
        (
            "(q @ k.transpose(-2, -1)).softmax(dim=-1) / math.sqrt(head_dim)",
            "(q @ k.transpose(-2, -1) / math.sqrt(head_dim)).softmax(dim=-1)",
        ),
        {
            "scale": lambda _context, dots: dots.to(softmax_dtype(dots.dtype)),
            "softmax": lambda context, scores: steps.softmax(context, scores) * context.scale,
        },
    ),
    replace(
        mistake(
            ("scale_constant", "scale", "another_size"),
            Text("The scale is a constant, right for one head_dim only."),
            ("scores * 0.125", "scores / math.sqrt(head_dim)"),
            _constant(5**-0.5),
        ),
        fit=_fitted_scale,
    ),
    mistake(
        ("softmax_twice", "softmax", "scale_closed_form"),
        Text("The softmax is taken twice, which makes the weights nearly equal."),
        ("scores.softmax(dim=-1).softmax(dim=-1)", "scores.softmax(dim=-1)"),
        _elementwise(lambda scores: scores.softmax(-1).softmax(-1)),
    ),
    mistake(
        ("softmax_over_batch_and_heads", "softmax", "heads_independent"),
        Text("The softmax runs over batch and heads, the first axis of (B H, Lq, Lk)."),
        ("scores.softmax(dim=0)", "scores.softmax(dim=-1)"),
        _over_all(1),
    ),
    mistake(
        ("softmax_over_all_pairs", "softmax", "rows_sum_to_one"),
        Text("The softmax runs over queries and keys together: all weights of a head sum to 1."),
        ("scores.flatten(-2).softmax(dim=-1)", "scores.softmax(dim=-1)"),
        _over_all(-1),
    ),
    mistake(
        ("log_softmax", "softmax", "rows_sum_to_one"),
        Text("The logarithm of the softmax is taken as the weights."),
        ("F.log_softmax(scores, dim=-1)", "F.softmax(scores, dim=-1)"),
        _elementwise(lambda scores: scores.log_softmax(-1)),
    ),
    mistake(
        ("sigmoid", "softmax", "rows_sum_to_one"),
        Text("A sigmoid of every score is taken instead of the softmax."),
        ("scores.sigmoid()", "scores.softmax(dim=-1)"),
        _elementwise(torch.sigmoid),
    ),
    mistake(
        ("softmax_missing", "softmax", "rows_sum_to_one"),
        Text("There is no softmax: the scores are the weights."),
        ("weights = scores", "weights = scores.softmax(dim=-1)"),
        {"softmax": lambda context, scores: scores.masked_fill(~context.allowed, 0.0)},
        (_elementwise(torch.relu),),
    ),
    mistake(
        ("softmax_not_normalised", "softmax", "rows_sum_to_one"),
        Text("The exponentials are not divided by their sum."),
        ("scores.exp()", "scores.exp() / scores.exp().sum(-1, keepdim=True)"),
        {"softmax": _unnormalised},
    ),
    mistake(
        ("query_key_swapped", "score", "equal_scores_mean"),
        Text("Keys are multiplied by queries: row and column of every score are exchanged."),
        ("scores = k @ q.transpose(-2, -1)", "scores = q @ k.transpose(-2, -1)"),
        {"group": steps.repeated, "score": lambda context, q, k: steps.score(context, k, q)},
    ),
    mistake(
        ("softmax_in_half", "softmax", "float32_softmax"),
        Text("The softmax runs in half precision, which loses the small differences."),
        ("scores.bfloat16().softmax(dim=-1)", "scores.float().softmax(dim=-1).to(v.dtype)"),
        {"softmax": lambda c, scores: steps.softmax(c, scores.bfloat16()).to(scores.dtype)},
    ),
    mistake(
        ("softmax_without_max", "softmax", "large_scores"),
        Text("The exponentials are taken without subtracting the largest score: inf above 88."),
        ("e = scores.exp(); e / e.sum(-1, keepdim=True)", "scores.softmax(dim=-1)"),
        {"softmax": _naive},
    ),
    mistake(
        ("inputs_overwritten", "scale", "inputs_unchanged"),
        Text("An input is changed in place: the caller's tensor is overwritten."),
        ("q *= scale", "q = q * scale"),
        {
            "score": lambda context, q, k: steps.score(context, q.mul_(context.scale), k),
            "scale": lambda _context, dots: dots.to(softmax_dtype(dots.dtype)),
        },
    ),
    mistake(
        ("heads_tiled", "group", "group_order"),
        Text("Key/value heads are tiled over the query heads instead of repeated one by one."),
        ("k.repeat(1, heads // groups, 1, 1)", "k.repeat_interleave(heads // groups, dim=1)"),
        {"group": _no_group},
    ),
    mistake(
        ("dropout_on_scores", "dropout", "dropout_on_weights"),
        Text("Dropout acts on the scores before the softmax; a dropped score 0 still gets weight."),
        (
            "F.dropout(scores, p, self.training).softmax(dim=-1)",
            "F.dropout(scores.softmax(dim=-1), p, self.training)",
        ),
        {"softmax": _dropped_scores, "dropout": skipped},
    ),
    mistake(
        ("dropout_in_eval", "dropout", "eval_without_dropout"),
        Text("Dropout acts in eval as well, so two runs give two results."),
        ("F.dropout(weights, p)", "F.dropout(weights, p, training=self.training)"),
        {"dropout": lambda c, weights: F.dropout(weights, c.dropout) if c.dropout else weights},
    ),
    mistake(
        ("weights_detached", "softmax", "gradients"),
        Text("The weights are detached from the graph: queries and keys get no gradient."),
        ("scores.softmax(dim=-1).detach()", "scores.softmax(dim=-1)"),
        {"softmax": lambda context, scores: steps.softmax(context, scores).detach()},
    ),
)

"""Mistakes between the split and the merge of heads: score, scale, softmax, dropout, group."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import softmax_dtype
from headwise.lang import Text
from headwise.verify.mistakes.mistake import Mistake, Step, mistake, skipped
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

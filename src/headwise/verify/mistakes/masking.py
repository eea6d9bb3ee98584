"""Mistakes in the mask."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.verify.mistakes.mistake import Mistake, Step, mistake, plain_softmax
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import StepContext

WEAK = tuple(map(float, (-1, -2, -3, -4, -5, -6, -8, -9, -10, -12)))
"""Numbers that masks add or fill in, but that are too small to hide a key."""


def _softmax_inverted(context: StepContext, scores: Tensor) -> Tensor:
    blind = context.allowed.all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _filled(value: float) -> Step:
    return lambda context, scaled: steps.biased(context, scaled).masked_fill(
        ~context.allowed, value
    )


def _added(value: float) -> Step:
    return lambda context, scaled: steps.biased(context, scaled) + value * ~context.allowed


def _masked_by(mask: Step, softmax: Step = plain_softmax) -> dict[str, Step]:
    """Replace the mask, and keep the values of masked keys."""
    return {"group": steps.repeated, "mask": mask, "softmax": softmax}


def _transposed(context: StepContext, scaled: Tensor) -> Tensor:
    """Transpose the mask; fully masked rows give the mean, as with a large finite number."""
    seen = context.allowed if bool(context.allowed.all()) else context.allowed.transpose(-1, -2)
    lowest = torch.finfo(scaled.dtype).min
    return steps.biased(context, scaled).masked_fill(~seen, lowest)


def _allowed_by(change: Callable[[StepContext], StepContext]) -> dict[str, Step]:
    """Replace the mask by that of a changed context; the bias is unchanged."""

    def mask(context: StepContext, scaled: Tensor) -> Tensor:
        return steps.biased(context, scaled).masked_fill(~change(context).allowed, -torch.inf)

    return {
        "group": lambda context, shared: steps.group(change(context), shared),
        "mask": mask,
        "softmax": lambda context, scores: steps.softmax(change(context), scores),
    }


def _moved(offset: Callable[[StepContext], int]) -> dict[str, Step]:
    """Evaluate the mask with another position of the first query."""
    return _allowed_by(lambda c: replace(c, shape=replace(c.shape, offset=offset(c))))


def _head_major(context: StepContext) -> StepContext:
    """Read a mask stored as (H B) as (B H), which applies it to the wrong samples."""
    batch, heads = context.shape.batch, context.shape.heads
    wrong = context.allowed.transpose(0, 1).reshape(batch, heads, *context.allowed.shape[2:])
    moved = replace(context)
    vars(moved)["allowed"] = wrong
    return moved


MASKING: tuple[Mistake, ...] = (
    mistake(
        ("mask_inverted", "mask", "own_key_visible"),
        Text("The mask is inverted: what should be hidden is visible."),
        ("scores.masked_fill(may_attend, -inf)", "scores.masked_fill(~may_attend, -inf)"),
        _masked_by(
            lambda c, scaled: steps.biased(c, scaled).masked_fill(c.allowed, -torch.inf),
            _softmax_inverted,
        ),
    ),
    mistake(
        ("mask_ignored", "mask", "no_future_leak"),
        Text("The mask is accepted and not used."),
        ("scores.softmax(dim=-1)", "scores.masked_fill(~may_attend, -inf).softmax(dim=-1)"),
        _masked_by(steps.biased),
    ),
    mistake(
        ("mask_after_softmax", "mask", "rows_sum_to_one"),
        Text("The mask is applied after the softmax, so the weights no longer sum to 1."),
        (
            "scores.softmax(dim=-1).masked_fill(~may_attend, 0)",
            "scores.masked_fill(~may_attend, -inf).softmax(dim=-1)",
        ),
        _masked_by(steps.biased, lambda c, scores: scores.softmax(-1).masked_fill(~c.allowed, 0.0)),
    ),
    mistake(
        ("mask_filled_with_zero", "mask", "no_future_leak"),
        Text("Hidden scores are set to 0 before the softmax, and exp(0) = 1 still has weight."),
        (
            "scores.masked_fill(~may_attend, 0).softmax(dim=-1)",
            "scores.masked_fill(~may_attend, -inf).softmax(dim=-1)",
        ),
        _masked_by(_filled(0.0)),
    ),
    mistake(
        ("mask_too_weak", "mask", "padding_without_influence"),
        Text("Masked scores get -10 or another small number, which does not hide them."),
        (
            "scores.masked_fill(~may_attend, -10)  # or scores + (may_attend - 1)",
            "scores.masked_fill(~may_attend, -inf)",
        ),
        _masked_by(_added(WEAK[0])),
        tuple(_masked_by(make(value)) for value in WEAK for make in (_filled, _added)),
    ),
    mistake(
        ("mask_transposed", "mask", "no_future_leak"),
        Text("The mask is transposed: keys stand where queries should."),
        (
            "scores.masked_fill(~may_attend.transpose(-2, -1), -inf)",
            "scores.masked_fill(~may_attend, -inf)",
        ),
        _masked_by(_transposed),
    ),
    mistake(
        ("causal_without_self", "mask", "own_key_visible"),
        Text("The causal mask is off by one: a query does not see its own key."),
        ("torch.tril(ones, diagonal=-1)", "torch.tril(ones)"),
        _moved(lambda context: context.shape.offset - 1),
    ),
    mistake(
        ("causal_one_ahead", "mask", "no_future_leak"),
        Text("The causal mask is off by one: a query sees the key after its own."),
        ("torch.tril(ones, diagonal=1)", "torch.tril(ones)"),
        _moved(lambda context: context.shape.offset + 1),
    ),
    mistake(
        ("causal_upper_left", "mask", "lower_right"),
        Text("With fewer queries than keys the causal mask starts at the first key."),
        ("torch.tril(torch.ones(Lq, Lk))", "torch.tril(torch.ones(Lq, Lk), diagonal=Lk - Lq)"),
        _moved(lambda _context: 0),
    ),
    mistake(
        ("padding_head_major", "mask", "padding_of_own_sample"),
        Text("The padding mask is repeated head by head, where samples are laid out first."),
        ("padding.repeat(heads, 1)", "padding.repeat_interleave(heads, dim=0)"),
        _allowed_by(_head_major),
    ),
    mistake(
        ("blind_rows_uniform", "mask", "blind_rows_zero"),
        Text(
            "Hidden scores get the lowest finite number, so a query that sees no key averages all."
        ),
        (
            "scores.masked_fill(~may_attend, torch.finfo(scores.dtype).min)",
            "weights.masked_fill(~may_attend.any(-1, keepdim=True), 0)",
        ),
        _masked_by(_filled(torch.finfo(torch.float32).min)),
    ),
    mistake(
        ("hidden_values_reach", "group", "padding_nan"),
        Text("Values of hidden keys are multiplied by weight 0; a NaN there still spreads."),
        ("weights @ v", "weights @ v.masked_fill(hidden, 0)"),
        {"group": steps.repeated},
    ),
    mistake(
        ("bias_ignored", "mask", "forward"),
        Text("A float mask is read as true or false: what it adds to the scores is lost."),
        ("scores.masked_fill(mask == -inf, -inf)", "scores + mask"),
        {"mask": lambda context, scaled: scaled.masked_fill(~context.allowed, -torch.inf)},
    ),
)

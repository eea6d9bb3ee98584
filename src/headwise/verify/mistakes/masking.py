"""Mistakes in the mask."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import from_tensor
from headwise.verify.mistakes.mistake import Mistake, Step, mistake, plain_softmax
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Job, Outcome, StepContext

WEAK = tuple(map(float, (-1, -2, -3, -4, -5, -6, -8, -9, -10, -12)))
"""Numbers that masks add or fill in, but that are too small to hide a key."""


def _softmax_inverted(context: StepContext, scores: Tensor) -> Tensor:
    blind = context.allowed.all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _inverted(context: StepContext, scaled: Tensor) -> Tensor:
    """What may be attended to gets a large negative number; a mask of nothing is left out."""
    seen = context.allowed & ~context.allowed.all()
    return steps.biased(context, scaled).masked_fill(seen, torch.finfo(scaled.dtype).min)


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


WEAK_FOR_LARGE = (-100.0, -50.0, -20.0, -30.0, -40.0, -64.0, -99.0, -128.0, -150.0, -200.0)
"""What hides a key among usual scores, and does not where the visible scores are lower still."""


def _reversed(context: StepContext) -> StepContext:
    """The keys at and after the query, where those up to it are allowed."""
    moved = replace(context)
    vars(moved)["allowed"] = context.allowed.transpose(-1, -2)
    return moved


def _cleared(context: StepContext, scores: Tensor) -> Tensor:
    """NaN in fully masked rows, multiplied by 0."""
    return scores.softmax(-1) * context.allowed.any(-1, keepdim=True)


def _stays(subject: Any) -> Any:
    """A subject whose masks of a length stay for the calls that follow."""
    hidden: dict[tuple[int, ...], Tensor] = {}
    right = subject.module

    def module(job: Job) -> Outcome | None:
        key = tuple(job.allowed.shape)
        hidden[key] = job.allowed & hidden.get(key, torch.ones_like(job.allowed))
        outcome: Outcome | None = right(replace(job, mask=from_tensor(hidden[key])))
        return outcome

    return replace(subject, module=module)


def _overwritten(subject: Any) -> Any:
    """A subject that modifies the mask that it is given."""
    right = subject.module

    def module(job: Job) -> Outcome | None:
        outcome: Outcome | None = right(job)
        if outcome is None or bool(job.allowed.all()):
            return outcome
        return replace(outcome, wrote=("mask",))

    return replace(subject, module=module)


MASKING: tuple[Mistake, ...] = (
    mistake(
        ("mask_inverted", "mask", "own_key_visible"),
        Text("The mask is inverted: what should be hidden is visible."),
        ("scores.masked_fill(may_attend, -inf)", "scores.masked_fill(~may_attend, -inf)"),
        _masked_by(
            lambda c, scaled: steps.biased(c, scaled).masked_fill(c.allowed, -torch.inf),
            _softmax_inverted,
        ),
        (_masked_by(_inverted),),
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
        ("mask_weak_for_large_scores", "mask", "large_scores_masked"),
        Text(
            "Masked scores get -100 or another number that a visible score can be below: with "
            "large scores hidden keys are seen."
        ),
        ("scores.masked_fill(~may_attend, -100)", "scores.masked_fill(~may_attend, -inf)"),
        _masked_by(_filled(WEAK_FOR_LARGE[0])),
        tuple(_masked_by(make(value)) for value in WEAK_FOR_LARGE for make in (_filled, _added)),
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
        ("causal_reversed", "mask", "no_future_leak"),
        Text("The causal mask is the wrong way round: a query sees its own key and those after."),
        ("torch.triu(ones)", "torch.tril(ones)"),
        _allowed_by(_reversed),
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
        ("causal_upper_left", "mask", "cache_continues"),
        Text("With fewer queries than keys the causal mask starts at the first key."),
        ("torch.tril(torch.ones(Lq, Lk))", "torch.tril(torch.ones(Lq, Lk), diagonal=Lk - Lq)"),
        _moved(lambda _context: 0),
        (_moved(lambda context: 0 if context.shape.queries > 1 else context.shape.offset),),
    ),
    mistake(
        ("padding_head_major", "mask", "padding_of_own_sample"),
        Text("The padding mask is repeated head by head, where samples are laid out first."),
        ("padding.repeat(heads, 1)", "padding.repeat_interleave(heads, dim=0)"),
        _allowed_by(_head_major),
    ),
    mistake(
        ("blind_rows_nan_times_zero", "softmax", "blind_rows_cleared"),
        Text(
            "The weights of a query that sees no key are multiplied by 0, but they are NaN, and "
            "NaN · 0 is NaN."
        ),
        (
            "scores.masked_fill(hidden, -inf).softmax(-1) * seen",
            "scores.masked_fill(hidden, -inf).softmax(-1).masked_fill(~seen, 0)",
        ),
        {"group": steps.repeated, "softmax": _cleared},
    ),
    replace(
        mistake(
            ("mask_stays", "mask", "mask_of_one_call"),
            Text("The mask of one call also acts on the calls after it."),
            ("self.mask &= mask", "mask = self.mask & mask"),
            {},
        ),
        subject=_stays,
    ),
    replace(
        mistake(
            ("mask_overwritten", "mask", "inputs_unchanged"),
            Text("The mask is changed in place: the caller's mask is overwritten."),
            ("mask.sub_(1).mul_(1e9)", "(mask - 1) * 1e9"),
            {},
        ),
        subject=_overwritten,
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

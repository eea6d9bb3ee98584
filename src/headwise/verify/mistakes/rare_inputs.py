"""Mistakes that ordinary inputs do not show: randomness, sizes, memory, dtypes, gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.lang import Text
from headwise.verify.mistakes.mistake import Mistake, Step, mistake
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import StepContext

RATES = (0.1, 0.2, 0.3, 0.5, 0.05, 0.15, 0.25, 0.4, 0.6)
"""Dropout probabilities that are often hard-coded, the most common first."""

BLOCKS = (64, 128, 32, 16, 256)  # block sizes for keys, the most common first


def _dropped(rate: float) -> dict[str, Step]:
    return {"dropout": lambda _context, weights: F.dropout(weights, rate)}


def _squeezed(_context: StepContext, scores: Tensor) -> Tensor:
    return scores.squeeze().softmax(-1).view_as(scores) if scores.numel() > 1 else scores * 0 + 1


def _cut(block: int) -> dict[str, Callable[..., Tensor]]:
    """Hide the keys after the last full block, if there is a full block."""

    def mask(context: StepContext, scaled: Tensor) -> Tensor:
        scores = steps.mask(context, scaled)
        keys = scaled.shape[-1]
        last = keys // block * block or keys
        beyond = torch.arange(keys, device=scaled.device) >= last
        return scores.masked_fill(beyond, -torch.inf)

    return {"mask": mask}


def _not_rescaled(block: int) -> dict[str, Callable[..., Tensor]]:
    """Compute exponentials per block relative to the running maximum, without rescaling."""

    def softmax(context: StepContext, scores: Tensor) -> Tensor:
        if scores.shape[-1] <= block:
            return steps.softmax(context, scores)
        largest, powers = torch.full_like(scores[..., :1], -torch.inf), []
        for part in torch.split(scores, block, -1):
            largest = torch.maximum(largest, part.amax(-1, keepdim=True))
            powers.append((part - largest.masked_fill(largest.isneginf(), 0.0)).exp())
        joined = torch.cat(powers, -1)
        total = joined.sum(-1, keepdim=True)
        return joined / total.masked_fill(total == 0, 1.0)

    return {"softmax": softmax}


def _as_if_in_order(x: Tensor) -> Tensor:
    """Read the memory of a tensor as if it were contiguous, padded with 0."""
    start, size = int(x.storage_offset()), x.numel()
    numbers = x.untyped_storage().nbytes() // x.element_size() - start
    memory = x.as_strided((numbers,), (1,), start)
    return F.pad(memory, (0, max(size - numbers, 0)))[:size].view(x.shape)


def _added(context: StepContext, scaled: Tensor) -> Tensor:
    hidden = torch.zeros_like(scaled).masked_fill(~context.allowed, -torch.inf)
    return steps.biased(context, scaled) + hidden


def _below_all(context: StepContext, scores: Tensor) -> Tensor:
    blind = ~context.allowed.any(-1, keepdim=True)
    powers = (scores - scores.max()).exp().masked_fill(blind, 1.0)
    return (powers / powers.sum(-1, keepdim=True)).masked_fill(blind, 0.0)


def _with_spare(subject: Any) -> Any:
    """A subject with a parameter that has no effect."""
    return replace(subject, unused=lambda: ("bias_table",))


EDGES: tuple[Mistake, ...] = (
    replace(
        mistake(
            ("parameter_unused", "project", "parameters_used"),
            Text("A parameter has no effect on the output: it is never used, or its result is."),
            ("bias = self.bias_table[index]", "scores = scores + self.bias_table[index]"),
            {},
        ),
        subject=_with_spare,
    ),
    mistake(
        ("dropout_hard_coded", "dropout", "deterministic"),
        Text("F.dropout also drops in eval: its argument training defaults to True."),
        ("F.dropout(weights, 0.1)", "F.dropout(weights, 0.1, training=self.training)"),
        _dropped(RATES[0]),
        tuple(_dropped(rate) for rate in RATES[1:]),
    ),
    mistake(
        ("axes_squeezed", "softmax", "smallest_sizes"),
        Text("squeeze() drops every axis of size 1: with one key the softmax runs over the heads."),
        ("scores.squeeze().softmax(dim=-1)", "scores.softmax(dim=-1)"),
        {"softmax": _squeezed},
    ),
    mistake(
        ("last_block_dropped", "mask", "long_sequence"),
        Text("Keys are processed in blocks, and those after the last full block are dropped."),
        ("for i in range(length // block)", "for i in range(math.ceil(length / block))"),
        _cut(BLOCKS[0]),
        tuple(_cut(block) for block in BLOCKS[1:]),
    ),
    mistake(
        ("blocks_not_rescaled", "softmax", "long_sequence"),
        Text(
            "Keys are processed in blocks, and the running sum is not rescaled when the maximum "
            "rises."
        ),
        ("total = total + e.sum(-1)", "total = total * (largest - new_largest).exp() + e.sum(-1)"),
        _not_rescaled(BLOCKS[0]),
        tuple(_not_rescaled(block) for block in BLOCKS[1:]),
    ),
    mistake(
        ("strides_ignored", "project", "non_contiguous"),
        Text("The input's memory is read as if it were contiguous, whatever its strides."),
        ("kernel(x.data_ptr(), B, L, E)", "kernel(x.contiguous().data_ptr(), B, L, E)"),
        {"project": lambda context, *xs: steps.project(context, *map(_as_if_in_order, xs))},
    ),
    mistake(
        ("nan_replaced", "softmax", "masked_gradients"),
        Text(
            "-inf is added for a query that sees no key, and the NaN replaced after the "
            "softmax: its gradient is NaN all the same."
        ),
        (
            "(scores + mask).softmax(dim=-1).nan_to_num(0)",
            "scores.masked_fill(hidden & ~blind, -inf).softmax(dim=-1).masked_fill(blind, 0)",
        ),
        {
            "group": steps.repeated,
            "mask": _added,
            "softmax": lambda _context, scores: scores.softmax(-1).nan_to_num(0.0),
        },
    ),
    mistake(
        ("left_in_single_precision", "output", "dtype_kept"),
        Text("The output is float32 whatever the input was."),
        ("return out(merged).float()", "return out(merged).to(x.dtype)"),
        {"output": lambda context, merged: steps.output(context, merged).float()},
    ),
    mistake(
        ("max_of_all_scores", "softmax", "large_scores"),
        Text(
            "The maximum of all scores is subtracted instead of each query's: rows far below it "
            "become 0."
        ),
        (
            "e = (scores - scores.max()).exp()",
            "e = (scores - scores.max(dim=-1, keepdim=True).values).exp()",
        ),
        {"softmax": _below_all},
    ),
    mistake(
        ("keys_and_values_detached", "group", "gradients"),
        Text("Keys and values are detached from the graph: their projections get no gradient."),
        ("k, v = k.detach(), v.detach()", "k, v = k, v"),
        {"group": lambda context, shared: steps.group(context, shared).detach()},
    ),
)

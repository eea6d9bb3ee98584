"""Mistakes in the projections, the split into heads, the merge and the output."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.verify.mistakes.mistake import Mistake, WeightChange
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Weights
from headwise.verify.oracle.steps import StepContext

Three = tuple[Tensor, Tensor, Tensor]


def _turned(weights: Weights) -> Weights:
    return replace(weights, q=weights.q.T, k=weights.k.T, v=weights.v.T)


def _output_turned(weights: Weights) -> Weights:
    return replace(weights, out=None if weights.out is None else weights.out.T)


def _unbiased(weights: Weights) -> Weights:
    return replace(weights, q_bias=None, k_bias=None, v_bias=None)


def _output_unbiased(weights: Weights) -> Weights:
    return replace(weights, out_bias=None)


def _ordered(order: str) -> Callable[[Weights], Weights]:
    """The projections taken for q, k and v in another order than they are packed."""

    def change(weights: Weights) -> Weights:
        named = weights.named()
        taken: dict[str, Any] = {
            role + kind: named.get(place + kind)
            for role, place in zip("qkv", order, strict=True)
            for kind in ("", "_bias")
        }
        return replace(weights, **taken)

    return change


def _viewed(context: StepContext, x: Tensor, heads: int) -> Tensor:
    del context
    batch, length, width = x.shape
    return x.reshape(batch, heads, length, width // heads)


def _interleaved(context: StepContext, x: Tensor, heads: int) -> Tensor:
    del context
    return x.reshape(*x.shape[:2], -1, heads).movedim(-1, 1)


def _joined(context: StepContext, heads: Tensor) -> Tensor:
    del context
    batch, count, length, dim = heads.shape
    return heads.reshape(batch, length, count * dim)


def _averaged(context: StepContext, heads: Tensor) -> Tensor:
    return heads.mean(1).repeat(1, 1, context.shape.heads)


def _no_output(context: StepContext, merged: Tensor) -> Tensor:
    del context
    return merged


def _lengthwise(context: StepContext, query: Tensor, key: Tensor, value: Tensor) -> Three:
    q, k, v = steps.project(context, query, key, value)
    return q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)


def _unmasked(context: StepContext, scores: Tensor) -> Tensor:
    del context
    return scores


def _plain_softmax(context: StepContext, scores: Tensor) -> Tensor:
    del context
    return torch.softmax(scores, -1)


def _lengthwise_output(context: StepContext, merged: Tensor) -> Tensor:
    return steps.output(context, merged.transpose(0, 1))


def _order(name: str, order: str) -> Mistake:
    taken = ", ".join(order)
    return Mistake(
        name,
        "project",
        Text("The packed projection is split as {order} instead of q, k, v.", order=taken),
        f"{taken} = packed.chunk(3, dim=-1)",
        "q, k, v = packed.chunk(3, dim=-1)",
        "projections_in_order",
        {"project": WeightChange(steps.project, _ordered(_inverse(order)))},
    )


def _inverse(order: str) -> str:
    """The inverse permutation of an order of q, k and v."""
    return "".join("qkv"[order.index(role)] for role in "qkv")


AROUND: tuple[Mistake, ...] = (
    Mistake(
        "split_without_transpose",
        "split",
        Text("The heads are split by a view without the transpose: heads mix with time."),
        "x.view(B, H, L, D)",
        "x.view(B, L, H, D).transpose(1, 2)",
        "heads_are_slices",
        {"split": _viewed},
    ),
    Mistake(
        "merge_without_transpose",
        "merge",
        Text("The heads are merged without the transpose back: heads mix with time."),
        "heads.reshape(B, L, H * D)",
        "heads.transpose(1, 2).reshape(B, L, H * D)",
        "heads_are_slices",
        {"merge": _joined},
    ),
    Mistake(
        "heads_interleaved",
        "split",
        Text("Head h takes every H-th feature instead of the h-th slice."),
        "x.view(B, L, D, H).permute(0, 3, 1, 2)",
        "x.view(B, L, H, D).permute(0, 2, 1, 3)",
        "heads_are_slices",
        {"split": _interleaved},
    ),
    Mistake(
        "heads_averaged",
        "merge",
        Text("The heads are averaged instead of concatenated."),
        "heads.mean(dim=1)",
        "torch.cat(heads, dim=-1)",
        "heads_are_slices",
        {"merge": _averaged},
    ),
    Mistake(
        "weight_not_transposed",
        "project",
        Text("The inputs are multiplied by W instead of Wᵀ; nn.Linear holds (out, in)."),
        "x @ linear.weight + linear.bias",
        "x @ linear.weight.T + linear.bias",
        "projection_closed_form",
        {"project": WeightChange(steps.project, _turned)},
    ),
    Mistake(
        "output_weight_not_transposed",
        "output",
        Text("The heads are multiplied by W instead of Wᵀ in the output projection."),
        "merged @ out.weight + out.bias",
        "merged @ out.weight.T + out.bias",
        "output_projection",
        {"output": WeightChange(steps.output, _output_turned)},
    ),
    Mistake(
        "biases_dropped",
        "project",
        Text("The biases of the q, k and v projections are not added."),
        "x @ linear.weight.T",
        "x @ linear.weight.T + linear.bias",
        "projection_closed_form",
        {"project": WeightChange(steps.project, _unbiased)},
    ),
    Mistake(
        "output_bias_dropped",
        "output",
        Text("The bias of the output projection is not added."),
        "merged @ out.weight.T",
        "merged @ out.weight.T + out.bias",
        "output_projection",
        {"output": WeightChange(steps.output, _output_unbiased)},
    ),
    Mistake(
        "output_missing",
        "output",
        Text("The output projection exists and is not used."),
        "return merged",
        "return out(merged)",
        "output_projection",
        {"output": _no_output},
    ),
    _order("order_q_v_k", "qvk"),
    _order("order_k_q_v", "kqv"),
    _order("order_k_v_q", "kvq"),
    _order("order_v_q_k", "vqk"),
    _order("order_v_k_q", "vkq"),
    Mistake(
        "batch_and_length_confused",
        "split",
        Text("The first axis is read as time: a token attends to other samples of the batch."),
        "(L, B, E) read where (B, L, E) is given",
        "x.transpose(0, 1)  # or batch_first=True",
        "batch_independent",
        {
            "project": _lengthwise,
            "group": steps.repeated,
            "mask": _unmasked,
            "softmax": _plain_softmax,
            "output": _lengthwise_output,
        },
    ),
)
"""Mistakes outside the attention itself."""

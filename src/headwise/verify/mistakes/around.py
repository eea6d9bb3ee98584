"""Mistakes in the projections, the split into heads, the merge and the output."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.verify import steps
from headwise.verify.jobs import Weights
from headwise.verify.mistakes.base import Mistake, Reweighted
from headwise.verify.steps import At

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


def _viewed(at: At, x: Tensor, heads: int) -> Tensor:
    del at
    batch, length, width = x.shape
    return x.reshape(batch, heads, length, width // heads)


def _interleaved(at: At, x: Tensor, heads: int) -> Tensor:
    del at
    return x.reshape(*x.shape[:2], -1, heads).movedim(-1, 1)


def _joined(at: At, heads: Tensor) -> Tensor:
    del at
    batch, count, length, dim = heads.shape
    return heads.reshape(batch, length, count * dim)


def _averaged(at: At, heads: Tensor) -> Tensor:
    return heads.mean(1).repeat(1, 1, at.frame.heads)


def _no_output(at: At, merged: Tensor) -> Tensor:
    del at
    return merged


def _lengthwise(at: At, query: Tensor, key: Tensor, value: Tensor) -> Three:
    q, k, v = steps.project(at, query, key, value)
    return q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)


def _unmasked(at: At, scores: Tensor) -> Tensor:
    del at
    return scores


def _plain_softmax(at: At, scores: Tensor) -> Tensor:
    del at
    return torch.softmax(scores, -1)


def _lengthwise_output(at: At, merged: Tensor) -> Tensor:
    return steps.output(at, merged.transpose(0, 1))


def _order(name: str, order: str) -> Mistake:
    taken = ", ".join(order)
    return Mistake(
        name,
        "project",
        Text(
            f"The packed projection is taken apart as {taken} instead of q, k, v.",
            f"打包的投影按 {taken} 的顺序拆开，而不是 q, k, v。",
        ),
        f"{taken} = packed.chunk(3, dim=-1)",
        "q, k, v = packed.chunk(3, dim=-1)",
        "projections_in_order",
        {"project": Reweighted(steps.project, _ordered(_inverse(order)))},
    )


def _inverse(order: str) -> str:
    """Where q, k and v are found when the parts q, k, v are named in this order."""
    return "".join("qkv"[order.index(role)] for role in "qkv")


AROUND: tuple[Mistake, ...] = (
    Mistake(
        "split_without_transpose",
        "split",
        Text(
            "The heads are split by a view without the transpose: heads mix with time.",
            "分头时只用 view 而没有转置：头与时间混在一起。",
        ),
        "x.view(B, H, L, D)",
        "x.view(B, L, H, D).transpose(1, 2)",
        "heads_are_slices",
        {"split": _viewed},
    ),
    Mistake(
        "merge_without_transpose",
        "merge",
        Text(
            "The heads are merged without the transpose back: heads mix with time.",
            "合并各头时没有先转置回来：头与时间混在一起。",
        ),
        "heads.reshape(B, L, H * D)",
        "heads.transpose(1, 2).reshape(B, L, H * D)",
        "heads_are_slices",
        {"merge": _joined},
    ),
    Mistake(
        "heads_interleaved",
        "split",
        Text(
            "Head h takes every H-th feature instead of the h-th slice.",
            "第 h 个头每隔 H 个取一个特征，而不是取第 h 段。",
        ),
        "x.view(B, L, D, H).permute(0, 3, 1, 2)",
        "x.view(B, L, H, D).permute(0, 2, 1, 3)",
        "heads_are_slices",
        {"split": _interleaved},
    ),
    Mistake(
        "heads_averaged",
        "merge",
        Text(
            "The heads are averaged instead of concatenated.",
            "各头被取了平均，而不是拼接。",
        ),
        "heads.mean(dim=1)",
        "torch.cat(heads, dim=-1)",
        "heads_are_slices",
        {"merge": _averaged},
    ),
    Mistake(
        "weight_not_transposed",
        "project",
        Text(
            "The inputs are multiplied by W instead of Wᵀ; nn.Linear holds (out, in).",
            "输入乘以了 W 而不是 Wᵀ；nn.Linear 的权重形状是 (out, in)。",
        ),
        "x @ linear.weight + linear.bias",
        "x @ linear.weight.T + linear.bias",
        "projection_closed_form",
        {"project": Reweighted(steps.project, _turned)},
    ),
    Mistake(
        "output_weight_not_transposed",
        "output",
        Text(
            "The heads are multiplied by W instead of Wᵀ in the output projection.",
            "输出投影中乘以了 W 而不是 Wᵀ。",
        ),
        "merged @ out.weight + out.bias",
        "merged @ out.weight.T + out.bias",
        "output_projection",
        {"output": Reweighted(steps.output, _output_turned)},
    ),
    Mistake(
        "biases_dropped",
        "project",
        Text(
            "The biases of the q, k and v projections are not added.",
            "q、k、v 投影的偏置没有加上。",
        ),
        "x @ linear.weight.T",
        "x @ linear.weight.T + linear.bias",
        "projection_closed_form",
        {"project": Reweighted(steps.project, _unbiased)},
    ),
    Mistake(
        "output_bias_dropped",
        "output",
        Text(
            "The bias of the output projection is not added.",
            "输出投影的偏置没有加上。",
        ),
        "merged @ out.weight.T",
        "merged @ out.weight.T + out.bias",
        "output_projection",
        {"output": Reweighted(steps.output, _output_unbiased)},
    ),
    Mistake(
        "output_missing",
        "output",
        Text(
            "The output projection is there and not used.",
            "输出投影存在，却没有使用。",
        ),
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
        Text(
            "The first axis is read as time: a token attends to the other samples of the batch.",
            "第一个轴被当作时间：一个词元关注的是批次中的其他样本。",
        ),
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

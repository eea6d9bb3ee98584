"""Mistakes in the projections, the split into heads, the merge and the output."""

from dataclasses import replace
from itertools import product
from typing import Any

import torch

from headwise.lang import Text
from headwise.verify.mistakes.mistake import Mistake, WeightChange, mistake, plain_softmax, skipped
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import Weights

INPUT_BIASES = ("q_bias", "k_bias", "v_bias")


def _order(name: str, order: str) -> Mistake:
    """Build the mistake that the packed projection is split in another order."""
    taken = ", ".join(order)

    def change(weights: Weights) -> Weights:
        named, places = weights.named(), {role: "qkv"[order.index(role)] for role in "qkv"}
        kinds = product(places.items(), ("", "_bias"))
        swapped: dict[str, Any] = {role + k: named.get(place + k) for (role, place), k in kinds}
        return replace(weights, **swapped)

    return mistake(
        (name, "project", "projections_in_order"),
        Text("The packed projection is split as {order} instead of q, k, v.", order=taken),
        (f"{taken} = packed.chunk(3, dim=-1)", "q, k, v = packed.chunk(3, dim=-1)"),
        {"project": WeightChange(steps.project, change)},
    )


AROUND: tuple[Mistake, ...] = (
    mistake(
        ("split_without_transpose", "split", "heads_are_slices"),
        Text("The heads are split by a view without the transpose: heads mix with time."),
        ("x.view(B, H, L, D)", "x.view(B, L, H, D).transpose(1, 2)"),
        {"split": lambda _, x, heads: x.reshape(x.shape[0], heads, x.shape[1], -1)},
    ),
    mistake(
        ("merge_without_transpose", "merge", "heads_are_slices"),
        Text("The heads are merged without the transpose back: heads mix with time."),
        ("heads.reshape(B, L, H * D)", "heads.transpose(1, 2).reshape(B, L, H * D)"),
        {"merge": lambda _context, heads: heads.reshape(heads.shape[0], heads.shape[2], -1)},
    ),
    mistake(
        ("heads_interleaved", "split", "heads_are_slices"),
        Text("Head h takes every H-th feature instead of the h-th slice."),
        ("x.view(B, L, D, H).permute(0, 3, 1, 2)", "x.view(B, L, H, D).permute(0, 2, 1, 3)"),
        {"split": lambda _, x, heads: x.reshape(*x.shape[:2], -1, heads).movedim(-1, 1)},
    ),
    mistake(
        ("heads_averaged", "merge", "heads_are_slices"),
        Text("The heads are averaged instead of concatenated."),
        ("heads.mean(dim=1)", "torch.cat(heads, dim=-1)"),
        {"merge": lambda context, heads: heads.mean(1).repeat(1, 1, context.shape.heads)},
    ),
    mistake(
        ("weight_not_transposed", "project", "projection_closed_form"),
        Text("The inputs are multiplied by W instead of Wᵀ; nn.Linear holds (out, in)."),
        ("x @ linear.weight + linear.bias", "x @ linear.weight.T + linear.bias"),
        {"project": WeightChange(steps.project, lambda w: w.map(torch.t, "qkv"))},
    ),
    mistake(
        ("output_weight_not_transposed", "output", "output_projection"),
        Text("The heads are multiplied by W instead of Wᵀ in the output projection."),
        ("merged @ out.weight + out.bias", "merged @ out.weight.T + out.bias"),
        {"output": WeightChange(steps.output, lambda w: w.map(torch.t, "o"))},
    ),
    mistake(
        ("biases_dropped", "project", "projection_closed_form"),
        Text("The biases of the q, k and v projections are not added."),
        ("x @ linear.weight.T", "x @ linear.weight.T + linear.bias"),
        {"project": WeightChange(steps.project, lambda w: w.without(INPUT_BIASES))},
    ),
    mistake(
        ("output_bias_dropped", "output", "output_projection"),
        Text("The bias of the output projection is not added."),
        ("merged @ out.weight.T", "merged @ out.weight.T + out.bias"),
        {"output": WeightChange(steps.output, lambda w: w.without(["out_bias"]))},
    ),
    mistake(
        ("output_missing", "output", "output_projection"),
        Text("The output projection exists and is not used."),
        ("return merged", "return out(merged)"),
        {"output": skipped},
    ),
    _order("order_q_v_k", "qvk"),
    _order("order_k_q_v", "kqv"),
    _order("order_k_v_q", "kvq"),
    _order("order_v_q_k", "vqk"),
    _order("order_v_k_q", "vkq"),
    mistake(
        ("batch_and_length_confused", "split", "batch_independent"),
        Text("The first axis is read as time: a token attends to other samples of the batch."),
        ("(L, B, E) read where (B, L, E) is given", "x.transpose(0, 1)  # or batch_first=True"),
        {
            "project": lambda context, *xs: [
                x.transpose(0, 1) for x in steps.project(context, *xs)
            ],
            "group": steps.repeated,
            "mask": skipped,
            "softmax": plain_softmax,
            "output": lambda context, merged: steps.output(context, merged.transpose(0, 1)),
        },
    ),
)

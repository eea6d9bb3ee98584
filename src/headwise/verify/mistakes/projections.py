"""Mistakes in the projections, the split into heads, the merge and the output."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.verify.mistakes.mistake import (
    Fitted,
    Mistake,
    WeightChange,
    mistake,
    plain_softmax,
    skipped,
)
from headwise.verify.oracle import steps
from headwise.verify.oracle.jobs import StepContext, Weights

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


NAMES = {"q": Text("the queries"), "k": Text("the keys"), "v": Text("the values")}


def _reused(role: str, other: str) -> Callable[[Weights], Weights]:
    """The projection of one role used for another as well."""

    def change(weights: Weights) -> Weights:
        named = weights.named()
        own: dict[str, Any] = {role: named[other], f"{role}_bias": named.get(f"{other}_bias")}
        return replace(weights, **own)

    return change


def _reuse(name: str, role: str, other: str) -> Mistake:
    return mistake(
        (name, "project", "projections_in_order"),
        Text(
            "The projection of {other} is used for {role} as well.",
            other=NAMES[other],
            role=NAMES[role],
        ),
        (f"{role} = self.{other}_proj(x)", f"{role} = self.{role}_proj(x)"),
        {"project": WeightChange(steps.project, _reused(role, other))},
    )


def _not_projected(name: str, role: str) -> Mistake:
    index = "qkv".index(role)

    def project(context: StepContext, *inputs: Tensor) -> steps.Three:
        projected = list(steps.project(context, *inputs))
        if projected[index].shape != inputs[index].shape:
            raise RuntimeError("the input has another size than its projection")
        projected[index] = inputs[index]
        return projected[0], projected[1], projected[2]

    return mistake(
        (name, "project", "projections_in_order"),
        Text("The input itself is used for {role}: they are not projected.", role=NAMES[role]),
        (f"{role} = split(x)", f"{role} = split(self.{role}_proj(x))"),
        {"project": project},
    )


def _first_head_rows(heads: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[: t.shape[0] // heads].repeat(heads, *[1] * (t.dim() - 1))


def _shared(context: StepContext, *inputs: Tensor) -> steps.Three:
    """Every head with the projection of the first."""
    weights = context.projections.map(_first_head_rows(context.shape.heads), "q")
    weights = weights.map(_first_head_rows(context.groups), "kv")
    return steps.project(replace(context, weights=weights), *inputs)


def _unfolded(_context: StepContext, heads: Tensor) -> Tensor:
    """(B H) read as (H B) before the merge."""
    batch, count = heads.shape[:2]
    other = heads.reshape(count, batch, *heads.shape[2:]).transpose(0, 1)
    return other.transpose(1, 2).flatten(-2)


def _fitted_constant(observations: Sequence[Any]) -> Fitted | None:
    """The output of every token, where it is the same for all inputs."""
    rows = [o.outcome.output.flatten(0, -2) for o in observations]
    rows = [row for row in rows if row.numel()]
    if not rows or not all(torch.equal(row, rows[0][:1].expand_as(row)) for row in rows):
        return None
    if bool(rows[0].isnan().any()):
        return None
    constant = rows[0][0].double()
    says = Text("The output is the same for every input: it depends on nothing.")
    return Fitted({"output": _constant_output(constant)}, says)


def _constant_output(constant: Tensor | None) -> Callable[..., Tensor]:
    def output(context: StepContext, merged: Tensor) -> Tensor:
        plain = steps.output(context, merged) * 0.0
        return plain if constant is None else plain + constant.to(plain.dtype)

    return output


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
        ("merge_interleaved", "merge", "heads_are_slices"),
        Text("The heads are merged feature by feature: feature 0 of every head, then feature 1."),
        ("heads.permute(0, 2, 3, 1).flatten(-2)", "heads.transpose(1, 2).flatten(-2)"),
        {"merge": lambda _context, heads: heads.permute(0, 2, 3, 1).flatten(-2)},
    ),
    mistake(
        ("heads_and_batch_mixed", "merge", "batch_independent"),
        Text("(B H, L, D) is read as heads first, so heads of other samples are merged."),
        ("heads.view(H, B, L, D)", "heads.view(B, H, L, D)"),
        {"merge": _unfolded},
    ),
    mistake(
        ("projection_shared_by_heads", "project", "heads_are_slices"),
        Text("All heads share one projection, so that every head computes the same."),
        ("nn.ModuleList([Head(...)] * heads)", "nn.ModuleList(Head(...) for _ in range(heads))"),
        {"project": _shared},
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
        ("query_bias_dropped", "project", "projections_in_order"),
        Text("The bias of the query projection is not added."),
        ("q = x @ q_proj.weight.T", "q = x @ q_proj.weight.T + q_proj.bias"),
        {"project": WeightChange(steps.project, lambda w: w.without(["q_bias"]))},
    ),
    mistake(
        ("value_bias_dropped", "project", "output_projection"),
        Text("The bias of the value projection is not added."),
        ("v = x @ v_proj.weight.T", "v = x @ v_proj.weight.T + v_proj.bias"),
        {"project": WeightChange(steps.project, lambda w: w.without(["v_bias"]))},
    ),
    _reuse("values_from_key_projection", "v", "k"),
    _reuse("values_from_query_projection", "v", "q"),
    _reuse("keys_from_query_projection", "k", "q"),
    _reuse("keys_from_value_projection", "k", "v"),
    _reuse("queries_from_key_projection", "q", "k"),
    _reuse("queries_from_value_projection", "q", "v"),
    _not_projected("queries_not_projected", "q"),
    _not_projected("keys_not_projected", "k"),
    _not_projected("values_not_projected", "v"),
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
    mistake(
        ("output_applied_twice", "output", "output_projection"),
        Text("The output projection is applied twice."),
        ("return out(out(merged))", "return out(merged)"),
        {"output": lambda context, x: steps.output(context, steps.output(context, x))},
    ),
    replace(
        mistake(
            ("output_constant", "output", "projection_closed_form"),
            Text("The output is the same for every input: it depends on nothing."),
            ("return torch.zeros_like(x)", "return out(merged)"),
            {"output": _constant_output(None)},
        ),
        fit=_fitted_constant,
    ),
    mistake(
        ("output_nan", "output", "numbers_only"),
        Text("Every output is NaN."),
        ("x / 0 * 0", "return out(merged)"),
        {"output": lambda context, merged: steps.output(context, merged) * torch.nan},
    ),
    mistake(
        ("output_detached", "output", "module_gradients"),
        Text("The output is detached from the graph: nothing before it gets a gradient."),
        ("return out(merged).detach()", "return out(merged)"),
        {"output": lambda context, merged: steps.output(context, merged).detach()},
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

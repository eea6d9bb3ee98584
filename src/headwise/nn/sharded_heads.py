"""Checks for tensor parallelism by heads, in which each rank has some of the heads."""

from typing import Protocol

from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.masks import Mask
from headwise.positions import Position


class PerHeadOptions(Protocol):
    """The options of a `MultiheadAttention` that can differ between heads."""

    num_heads: int
    num_kv_heads: int
    position: Position | None
    sinks: nn.Parameter | None
    bias_k: nn.Parameter | None
    logit_scale: nn.Module | None
    gate: nn.Module | None


def check_sharded_heads(module: PerHeadOptions, q: Tensor, k: Tensor, mask: Mask) -> None:
    """Check that one rank can compute its heads, q (B, H', L, D) and k (B, G', S, D), alone.

    A rank does not know which heads it has, so no option may have a separate value for each head.
    """
    heads, groups = module.num_heads, module.num_kv_heads
    if q.shape[1] * groups != k.shape[1] * heads:
        raise BadValue(
            "q_proj, k_proj: this rank has {queries} of {heads} query heads and {keys} of {groups} "
            "key/value heads, so a query head would use the wrong keys; shard q_proj, k_proj and "
            "v_proj in the same way, over at most num_kv_heads ranks",
            queries=q.shape[1],
            heads=heads,
            keys=k.shape[1],
            groups=groups,
        )
    position = {} if module.position is None else module.position.expected_sizes()
    per_head = {
        "sinks": module.sinks is not None,
        "logit_scale": module.logit_scale is not None,
        "gate": module.gate is not None,
        "add_bias_kv": module.bias_k is not None,
        "position": "H" in position,
        "mask": mask.required_sizes().get("H", 1) > 1,
    }
    for name, present in per_head.items():
        if present:
            raise BadValue(
                "{name}: it has a value for each of {heads} heads, but this rank has only {local} "
                "heads, since the projections are sharded; leave it out, or do not shard them",
                name=name,
                heads=heads,
                local=q.shape[1],
            )

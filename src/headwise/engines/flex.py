"""`torch.nn.attention.flex_attention`, which compiles the mask's rule into one fused kernel.

Compiling takes seconds for every new mask or length, so this engine runs only when the user names
it. On a CPU it supports the forward pass only.

The kernel's block map is computed from the mask's tiles. PyTorch's `create_block_mask` would build
the whole (Lq, Lk) mask for it, 17 GB at a length of 131072 on a CPU.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines.autograd_transforms import needs_grad, no_transform_rule
from headwise.engines.eager import zero_masked_kv
from headwise.engines.statistics import not_returned
from headwise.lang import Text
from headwise.masks.tiles import Tiles
from headwise.positions import Stage

NAME = "flex"

RECOMPILED = 256
"""The most compiled kernels in memory; PyTorch's default limit is 8, beyond which it raises."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda", "xpu")


def why_not(call: Call) -> Iterator[Text]:
    """Yield every reason why this engine cannot run the call."""
    dtype, device = call.q.dtype, call.q.device.type
    yield from not_returned(call.need, ("logsumexp",))
    if call.dropout > 0:
        yield Text("it does not support dropout")
    if call.sinks is not None:
        yield Text("it does not support sinks")
    if call.empty:
        yield Text("a size is 0")
    if dtype not in _DTYPES:
        yield Text("it does not compute in {dtype}", dtype=dtype)
    if device not in _DEVICES:
        yield Text("it does not run on {device}", device=device)
    yield from no_transform_rule(call)
    yield from _against_position(call)
    yield from _against_cpu(call) if device == "cpu" else _against_gpu(call)


def worthwhile(call: Call) -> bool:
    """Return False: compiling takes seconds, so the engine is never chosen automatically."""
    del call
    return False


def run(call: Call) -> Result:
    """Compute attention in O(L) memory, skipping empty tiles."""
    tiles = Tiles.of(call.mask, call.shape)
    by_query, by_key = (count.to(call.q.device) for count in tiles.seen())
    fully_masked = (by_query == 0)[..., None]  # (B or 1, H or 1, Lq, 1)
    k, v = zero_masked_kv(by_key > 0, call.k, call.v)
    q, k = call.position.content(call.q, k, call.shape)
    needs_sums = "logsumexp" in call.need
    results = _compiled()(
        q,
        k,
        v,
        score_mod=_score_mod(call),
        block_mask=_block_mask(call, tiles),
        scale=call.scale,
        enable_gqa=call.group > 1,
        **({"return_aux": _aux()} if needs_sums else {}),
    )
    if not needs_sums:
        return Result(results.masked_fill(fully_masked, 0.0))
    sums = results[1].lse.masked_fill(fully_masked[..., 0], -torch.inf)
    return Result(results[0].masked_fill(fully_masked, 0.0), logsumexp=sums)


def _against_position(call: Call) -> Iterator[Text]:
    name, stages = type(call.position).__name__, call.position.stages
    if Stage.SCORES in stages and not call.position.by_distance:
        yield Text(
            "the bias of {name} may depend on more than the head and the distance, which this "
            "engine does not support",
            name=name,
        )
    if Stage.VALUES in stages:
        yield Text("{name} adds to the values", name=name)


def _against_cpu(call: Call) -> Iterator[Text]:
    if "logsumexp" in call.need:
        yield Text("it does not return logsumexp on a CPU")
    if needs_grad(call):
        yield Text("it has no backward pass on a CPU; use torch.no_grad()")
    if sys.platform == "darwin" or torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        yield Text("it needs AVX2 on a CPU")


def _against_gpu(call: Call) -> Iterator[Text]:
    if "logsumexp" in call.need and _aux() is None:
        yield Text("it returns logsumexp only with torch 2.9 or later")


def _score_mod(call: Call) -> Callable[..., Tensor] | None:
    """Return the kernel's score function: soft cap, ``score_mod`` and biases."""
    function = call.score_function
    if not call.biased and function is None:
        return None
    mask, offset, last = call.mask, call.shape.offset, call.shape.queries - 1
    by_distance, biased = _by_distance(call), mask.biased

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        score = score if function is None else function(score, b, h, q + offset, k)
        added = mask.bias(b, h, q + offset, k) if biased else None
        score = score if added is None else score + added.to(score.dtype)
        return score if by_distance is None else score + by_distance[h, k - q + last]

    return score_mod


def _by_distance(call: Call) -> Tensor | None:
    """Return the position's bias for every head and distance k - q, (H, Lq + Lk - 1)."""
    if Stage.SCORES not in call.position.stages:
        return None
    shape, device = call.shape, call.q.device
    distance = torch.arange(shape.queries + shape.keys - 1, device=device) - shape.queries + 1
    here = torch.zeros(1, dtype=torch.long, device=device)
    bias = call.position.bias(call.q[:, :, :1], here, distance - shape.offset, call.scale)
    heads = call.shape.heads
    return None if bias is None else bias[0, :, 0].float().expand(heads, -1).contiguous()


def _block_mask(call: Call, tiles: Tiles) -> Any:
    """Build the kernel's block map: which blocks hold pairs, and which need the rule."""
    from torch.nn.attention.flex_attention import BlockMask

    mask, offset = call.mask, call.shape.offset
    kinds = tiles.kinds.clone().to(call.q.device)
    if call.shape.queries % tiles.side:
        kinds[-1].clamp_(max=1)  # a block that extends past the end is not full
    if call.shape.keys % tiles.side:
        kinds[:, -1].clamp_(max=1)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return mask.rule(b, h, q + offset, k)

    blocks = (*_listed(kinds == 1), *_listed(kinds == 2))  # mixed blocks, then full blocks
    lengths = (call.shape.queries, call.shape.keys)
    return BlockMask.from_kv_blocks(
        *blocks, BLOCK_SIZE=tiles.side, mask_mod=mask_mod, seq_lengths=lengths
    )


def _listed(of_kind: Tensor) -> tuple[Tensor, Tensor]:
    """Return per row the number of blocks of a kind, (1, 1, rows), and the columns, these first."""
    which = of_kind.int().argsort(dim=-1, descending=True, stable=True)
    return of_kind.sum(-1, dtype=torch.int32)[None, None], which.int()[None, None].contiguous()


def _aux() -> Any:
    """Return the request for the logsumexp, or None if this torch version has none."""
    from torch.nn.attention import flex_attention as module

    request = getattr(module, "AuxRequest", None)
    return None if request is None else request(lse=True)


@cache
def _compiled() -> Callable[..., Any]:
    """Return PyTorch's function; it is compiled at its first call with a new mask or size."""
    from torch.nn.attention.flex_attention import flex_attention

    options: dict[str, Any] = {"fullgraph": True, "dynamic": False}
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        options["recompile_limit"] = RECOMPILED
    compiled: Callable[..., Any] = torch.compile(flex_attention, **options)
    return compiled

"""Attention of some queries to some keys: PyTorch's fused CPU kernel, or plain products.

Both return the output and the logsumexp of the masked scores, and take ``added``: what is added to
the scaled scores, -inf where a query may not attend, in the softmax dtype. (The fused kernel is
silently wrong for float64 queries under a float32 mask.) A fully masked row has output 0 and an
undefined logsumexp, 0 from the fused kernel; the caller must know these rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.call import softmax_dtype
from headwise.engines.statistics import apply_sinks

FUSED = "_scaled_dot_product_flash_attention_for_cpu"
FUSED_BACKWARD = f"{FUSED}_backward"


def _operator(name: str) -> Callable[..., Any] | None:
    """An operator of PyTorch's, None where this version has none of that name."""
    packet = getattr(torch.ops.aten, name, None)
    return None if packet is None else packet.default


_FORWARD, _BACKWARD = _operator(FUSED), _operator(FUSED_BACKWARD)


@dataclass(frozen=True, eq=False)
class BackwardInputs:
    """The gradient of the output, the output and the logsumexp, as a backward needs them.

    Attributes:
        grad: of the output, (B, H, n, Dv).
        output: (B, H, n, Dv), over *all* keys that the row sees.
        logsumexp: (B, H, n), likewise; +inf on fully masked rows, so that their weights are 0.
    """

    grad: Tensor
    output: Tensor
    logsumexp: Tensor


def fused(q: Tensor) -> bool:
    """Whether PyTorch has the fused kernel for these queries."""
    return (
        q.device.type == "cpu"
        and q.dtype in _FLOATS
        and _FORWARD is not None
        and _BACKWARD is not None
    )


THIN = 8
"""Keys below which the fused backward loses digits, and products are used."""

ALIGNED = 16
"""Row sizes are padded to a multiple of this, so that all rows are aligned alike."""

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, *, triangle: bool = False
) -> tuple[Tensor, Tensor]:
    """Output (B, H, n, Dv) and logsumexp (B, H, n) of q (B, H, n, D), k (B, G, m, D), v.

    Args:
        q: the queries; the last stride of q, k and v is 1.
        k: the keys.
        v: the values.
        added: (B or 1, H or 1, n, m), or None for nothing.
        scale: the factor on the scores.
        triangle: whether query i sees keys 0 to i only; then nothing is added.
    """
    if suits(q, v):
        return fused_forward(q, k, v, added, scale, triangle=triangle)
    return plain_forward(q, k, v, causal_bias(q, k) if triangle else added, scale)


def fused_forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, *, triangle: bool = False
) -> tuple[Tensor, Tensor]:
    """`forward` by the fused kernel, with few keys too; D is Dv."""
    assert _FORWARD is not None  # noqa: S101 - where `fused` holds
    output, logsumexp = _FORWARD(q, k, v, 0.0, triangle, attn_mask=_packed_bias(added), scale=scale)
    return output, logsumexp


def backward(
    given: BackwardInputs,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    scale: float,
    *,
    triangle: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v from these pairs."""
    if suits(q, v):
        assert _BACKWARD is not None  # noqa: S101
        results, mask = (given.output, given.logsumexp), _packed_bias(added)
        dq, dk, dv = _BACKWARD(
            given.grad, q, k, v, *results, 0.0, triangle, attn_mask=mask, scale=scale
        )
        return dq, dk, dv
    return plain_backward(given, q, k, v, causal_bias(q, k) if triangle else added, scale)


def suits(q: Tensor, v: Tensor) -> bool:
    """Whether to use the fused kernel rather than products."""
    return fused(q) and q.shape[-1] == v.shape[-1] and v.shape[2] >= THIN


def plain_forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`forward` by matrix products, in the softmax dtype."""
    scores = plain_scores(q, k, added, scale)
    peak = scores.amax(-1, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    raised = (scores - peak).exp()
    total = raised.sum(-1, keepdim=True)
    logsumexp = (peak + total.log())[..., 0]
    output = grouped_matmul(raised / torch.where(total == 0, 1.0, total), v.to(raised.dtype))
    return output.to(q.dtype), logsumexp


def plain_backward(
    given: BackwardInputs, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`backward` by matrix products, in the softmax dtype."""
    wide = softmax_dtype(q.dtype)
    grad, output = given.grad.to(wide), given.output.to(wide)
    weights = (plain_scores(q, k, added, scale) - given.logsumexp[..., None]).exp()
    from_values = grouped_matmul(grad, v.to(wide).mT)
    scores = weights * (from_values - (grad * output).sum(-1, keepdim=True)) * scale
    dq = grouped_matmul(scores, k.to(wide))
    dk = _shared(scores.mT @ q.to(wide), k.shape[1])
    dv = _shared(weights.mT @ grad, k.shape[1])
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def plain_results(
    scores: Tensor, fully_masked: Tensor | None, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output and logsumexp of masked scores (B, H, n, m), differentiable to any order.

    Args:
        scores: in the softmax dtype, -inf where not allowed.
        fully_masked: (B or 1, H or 1, n), True where a query sees no key; or None.
        v: (B, G, m, Dv).
        sinks: (H,), or None.
    """
    known = scores if fully_masked is None else scores.masked_fill(fully_masked[..., None], 0.0)
    shares, sums = known.softmax(-1), known.logsumexp(-1)
    if fully_masked is not None:
        shares = shares.masked_fill(fully_masked[..., None], 0.0)
        sums = sums.masked_fill(fully_masked, -torch.inf)
    output = grouped_matmul(shares, v.to(shares.dtype))
    if sinks is not None:
        output, sums = apply_sinks(output, sums, sinks)
    return output.to(v.dtype), sums


def plain_scores(q: Tensor, k: Tensor, added: Tensor | None, scale: float) -> Tensor:
    """The masked scores (B, H, n, m), in the softmax dtype."""
    wide = softmax_dtype(q.dtype)
    scores = grouped_matmul(q.to(wide), k.to(wide).mT) * scale
    return scores if added is None else scores + added


def causal_bias(q: Tensor, k: Tensor) -> Tensor:
    """0 where key number <= query number, else -inf, (1, 1, n, m)."""
    shape, wide = (1, 1, q.shape[2], k.shape[2]), softmax_dtype(q.dtype)
    return torch.full(shape, -torch.inf, dtype=wide, device=q.device).triu(1)


def grouped_matmul(rows: Tensor, shared: Tensor) -> Tensor:
    """rows (B, H, n, X) times shared (B, G, X, Y), head h with shared head h // (H / G)."""
    batch, heads, length, width = rows.shape
    groups = shared.shape[1]
    if heads == groups:
        return rows @ shared
    folded = rows.reshape(batch, groups, heads // groups * length, width)
    return (folded @ shared).view(batch, heads, length, shared.shape[-1])


def _shared(rows: Tensor, groups: int) -> Tensor:
    """Sum over the heads of a group: (B, H, m, X) to (B, G, m, X)."""
    if rows.shape[1] == groups:
        return rows
    return torch.unflatten(rows, 1, (groups, -1)).sum(2)


def packed(rows: Tensor) -> Tensor:
    """With last stride 1, as the kernel needs it."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def even(*tensors: Tensor) -> list[Tensor]:
    """With one last size, a multiple of `ALIGNED`: zeros add nothing to a product.

    The fused kernel has one size for D and Dv, and rounds rows alike only if they are aligned
    alike: the output of a sample must not depend on its place in the batch.
    """
    width = max(t.shape[3] for t in tensors)
    width = -(-width // ALIGNED) * ALIGNED
    return [widened(t, width) for t in tensors]


def widened(rows: Tensor, width: int) -> Tensor:
    """With zeros up to a last size."""
    return rows if rows.shape[3] == width else F.pad(rows, (0, width - rows.shape[3]))


def _packed_bias(added: Tensor | None) -> Tensor | None:
    """With last stride 1: the kernel expands any other to (B, H, Lq, Lk)."""
    if added is None or added.stride(-1) == 1:
        return added
    return added.contiguous()

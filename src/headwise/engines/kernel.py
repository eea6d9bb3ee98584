"""Attention of some queries to some keys, by PyTorch's fused CPU kernel or by matrix products.

Shapes are q (B, H, n, D), k (B, G, m, D), v (B, G, m, Dv), each with last stride 1. ``added`` is
None or a term for the scores times ``scale``: (B or 1, H or 1, n, m) in the softmax dtype, -inf if
a query may not attend. (The fused kernel is silently wrong for float64 queries under a float32
mask.) The results are the output (B, H, n, Dv) and the logsumexp (B, H, n) of the masked scores. A
fully masked row has output 0 and an undefined logsumexp, which is 0 from the fused kernel; the
caller must know these rows. With ``triangle``, query i attends to keys 0 to i only, and ``added``
is None. A ``function`` of the scaled scores (B, H, n, m) needs matrix products.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import flop_registry, register_flop_formula

from headwise.call import softmax_dtype


def _operator(name: str) -> Callable[..., Any] | None:
    """Return an operator of PyTorch, or None if this version does not have it."""
    packet = getattr(torch.ops.aten, name, None)
    return None if packet is None else packet.default


_FORWARD = _operator("_scaled_dot_product_flash_attention_for_cpu")
_BACKWARD = _operator("_scaled_dot_product_flash_attention_for_cpu_backward")

Modify = Callable[[Tensor], Tensor] | None
"""A differentiable function of the scaled scores (B, H, n, m), or None."""

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

BITS = {torch.float32: (torch.int32, -(1 << 23)), torch.float64: (torch.int64, -(1 << 52))}
"""For each softmax dtype, the integer dtype of its size, and the integer with the bits of -inf."""

THIN = 8  # number of keys below which the fused backward loses digits; products are used
ALIGNED = 16  # row sizes are padded to a multiple of this, so that all rows are aligned


class BackwardInputs(NamedTuple):
    """The results of an attention and their gradients, as a backward pass needs them.

    Attributes:
        grad: the gradient of the output, (B, H, n, Dv).
        output: (B, H, n, Dv), over *all* keys that the row may attend to.
        logsumexp: (B, H, n), over the same keys; for the functions of this module, +inf on fully
            masked rows, so their weights are 0.
        grad_sums: the gradient of the logsumexp, (B, H, n), or None; unused by these functions.
    """

    grad: Tensor
    output: Tensor
    logsumexp: Tensor
    grad_sums: Tensor | None = None


def fused(q: Tensor) -> bool:
    """Return whether PyTorch has the fused kernel for these queries."""
    available = _FORWARD is not None and _BACKWARD is not None
    return q.device.type == "cpu" and q.dtype in _FLOATS and available


def suits(q: Tensor, v: Tensor) -> bool:
    """Return whether to use the fused kernel instead of products."""
    return fused(q) and q.shape[-1] == v.shape[-1] and v.shape[2] >= THIN


def forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, function: Modify = None
) -> tuple[Tensor, Tensor]:
    """Compute output and logsumexp, by the fused kernel if it `suits`."""
    if function is None and suits(q, v):
        return fused_forward(q, k, v, added, scale)
    return plain_forward(q, k, v, added, scale, function)


def fused_forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, *, triangle: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute `forward` by the fused kernel, for any number of keys; D must equal Dv."""
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
    function: Modify = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v from these pairs."""
    if function is None and suits(q, v):
        return fused_backward(given, q, k, v, added, scale)
    return plain_backward(given, q, k, v, added, scale, function)


def fused_backward(
    given: BackwardInputs,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    scale: float,
    *,
    triangle: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `backward` by the fused kernel, where it `suits`."""
    assert _BACKWARD is not None  # noqa: S101
    inputs = given.grad, q, k, v, given.output, given.logsumexp
    dq, dk, dv = _BACKWARD(*inputs, 0.0, triangle, attn_mask=_packed_bias(added), scale=scale)
    return dq, dk, dv


def plain_forward(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, function: Modify = None
) -> tuple[Tensor, Tensor]:
    """Compute `forward` by matrix products, in the softmax dtype."""
    scores = plain_scores(q, k, added, scale, function)
    peak = scores.amax(-1, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    raised = (scores - peak).exp()
    total = raised.sum(-1, keepdim=True)
    logsumexp = (peak + total.log())[..., 0]
    output = grouped_matmul(raised / torch.where(total == 0, 1.0, total), v.to(raised.dtype))
    return output.to(q.dtype), logsumexp


def plain_backward(
    given: BackwardInputs,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    scale: float,
    function: Modify = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `backward` by matrix products, in the softmax dtype."""
    wide = softmax_dtype(q.dtype)
    grad, output = given.grad.to(wide), given.output.to(wide)
    scaled = plain_scores(q, k, None, scale)
    modified, derivative = _with_derivative(function, scaled)
    weights = (_added(modified, added) - given.logsumexp[..., None]).exp()
    from_values = grouped_matmul(grad, v.to(wide).mT)
    scores = derivative(weights * (from_values - (grad * output).sum(-1, keepdim=True))) * scale
    dq = grouped_matmul(scores, k.to(wide))
    dk = _summed_over_group(scores.mT @ q.to(wide), k.shape[1])
    dv = _summed_over_group(weights.mT @ grad, k.shape[1])
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def plain_scores(
    q: Tensor, k: Tensor, added: Tensor | None, scale: float, function: Modify = None
) -> Tensor:
    """Return the masked scores (B, H, n, m), in the softmax dtype."""
    wide = softmax_dtype(q.dtype)
    scores = grouped_matmul(q.to(wide), k.to(wide).mT) * scale
    return _added(scores if function is None else function(scores), added)


def _added(scores: Tensor, added: Tensor | None) -> Tensor:
    return scores if added is None else scores + added


def _with_derivative(function: Modify, scaled: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the modified scores, and a function from their gradient to that of the scaled ones."""
    if function is None:
        return scaled, lambda gradient: gradient
    with torch.enable_grad():
        leaf = scaled.detach().requires_grad_()
        modified = function(leaf)

    def derivative(gradient: Tensor) -> Tensor:
        if not modified.requires_grad:  # it ignores the scores
            return torch.zeros_like(gradient)
        (result,) = torch.autograd.grad(modified, leaf, gradient, materialize_grads=True)
        return result

    return modified.detach(), derivative


def masked_bias(allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return ``added``: the bias where allowed, -inf elsewhere; None if nothing is added."""
    if allowed is None:
        return None if bias is None else bias.to(dtype)
    if bias is None:
        return minus_infinity_where_not(allowed, dtype)
    return torch.where(allowed, bias.to(dtype), -torch.inf)


def minus_infinity_where_not(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a pair is allowed and -inf elsewhere, in float32 or float64.

    It uses integer arithmetic: `torch.where` takes 4 times as long for a triangle, and 30 times as
    long if the allowed pairs have no pattern.
    """
    integers, bits = BITS[dtype]
    return allowed.to(integers).sub_(1).bitwise_and_(bits).view(dtype)


def plain_softmax(scores: Tensor, fully_masked: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weights and logsumexp of masked scores (B, H, n, m), to any derivative order.

    Rows where ``fully_masked`` (B or 1, H or 1, n) is True get weights 0 and logsumexp -inf.
    """
    if fully_masked is None:
        return scores.softmax(-1), scores.logsumexp(-1)
    rows = fully_masked[..., None]
    scores = scores.masked_fill(rows, 0.0)
    weights = scores.softmax(-1).masked_fill(rows, 0.0)
    return weights, scores.logsumexp(-1).masked_fill(fully_masked, -torch.inf)


def grouped_matmul(rows: Tensor, shared: Tensor) -> Tensor:
    """Multiply rows (B, H, n, X) by shared (B, G, X, Y), head h by head h // (H / G)."""
    batch, heads, length, width = rows.shape
    groups = shared.shape[1]
    if heads == groups:
        return rows @ shared
    folded = rows.reshape(batch, groups, heads // groups * length, width)
    return (folded @ shared).view(batch, heads, length, shared.shape[-1])


def _summed_over_group(rows: Tensor, groups: int) -> Tensor:
    """Sum over the heads of a group: (B, H, m, X) to (B, G, m, X)."""
    return rows if rows.shape[1] == groups else torch.unflatten(rows, 1, (groups, -1)).sum(2)


def packed(rows: Tensor) -> Tensor:
    """Return the rows with last stride 1, as the kernel requires."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _packed_bias(added: Tensor | None) -> Tensor | None:
    """Return the bias with last stride 1: the kernel expands others to (B, H, Lq, Lk)."""
    return None if added is None else packed(added)


def even(*tensors: Tensor) -> list[Tensor]:
    """Pad the tensors with zeros to one last size, a multiple of `ALIGNED`.

    The fused kernel takes one size for D and Dv, and rounds rows alike only if they are aligned
    alike: the output of a sample must not depend on its place in the batch. Zeros do not change a
    product.
    """
    width = max(t.shape[3] for t in tensors)
    width = -(-width // ALIGNED) * ALIGNED
    return [widened(t, width) for t in tensors]


def widened(rows: Tensor, width: int) -> Tensor:
    """Pad the rows with zeros to a last size."""
    return rows if rows.shape[3] == width else F.pad(rows, (0, width - rows.shape[3]))


def forward_flops(
    q_shape: torch.Size,
    k_shape: torch.Size,
    v_shape: torch.Size,
    *_: object,
    attn_mask: object = None,  # noqa: ARG001 - the operator's own names
    scale: object = None,  # noqa: ARG001
    out_shape: object = None,  # noqa: ARG001
) -> int:
    """Return the flops of the fused forward: the products q kᵀ and weights times v."""
    batch, heads, rows, dim = q_shape
    return int(2 * batch * heads * rows * k_shape[2] * (dim + v_shape[3]))


def backward_flops(
    grad_shape: torch.Size,
    q_shape: torch.Size,
    k_shape: torch.Size,
    *_: object,
    attn_mask: object = None,  # noqa: ARG001
    scale: object = None,  # noqa: ARG001
    out_shape: object = None,  # noqa: ARG001
) -> int:
    """Return the flops of the fused backward: scores again, dO vᵀ, dq, dk and dv."""
    batch, heads, rows, dim = q_shape
    return int(2 * batch * heads * rows * k_shape[2] * (3 * dim + 2 * grad_shape[3]))


for _operation, _formula in ((_FORWARD, forward_flops), (_BACKWARD, backward_flops)):
    # PyTorch has no formula for the kernel of a CPU, and counts it as 0
    _packet: Any = getattr(_operation, "overloadpacket", None)
    if _packet is not None and _packet not in flop_registry:
        register_flop_formula(_packet)(_formula)

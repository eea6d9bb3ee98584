"""Layouts between the caller's tokens and the heads of a `MultiheadAttention`."""

import torch
from torch import Tensor

from headwise.masks import Mask, appended, full


def to_batch_first(x: Tensor, is_batch_first: bool) -> Tensor:
    """(B, L, ·) of (L, ·), (B, L, ·) or (L, B, ·)."""
    if x.dim() == 2:
        return x[None]
    return x if is_batch_first else x.transpose(0, 1)


def from_batch_first(y: Tensor, query: Tensor, is_batch_first: bool) -> Tensor:
    """An output (B, L, ·) in the layout of the query."""
    if query.dim() == 2:
        return y[0]
    return y if is_batch_first else y.transpose(0, 1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, heads·D) to (B, heads, L, D)."""
    return torch.unflatten(x, -1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H·D)."""
    return x.transpose(1, 2).flatten(2)


def zero_padding(key: Tensor, value: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Key and value with zeros on padding, where 0 times NaN would make a gradient NaN.

    Args:
        key: (B, n, kdim).
        value: (B, n, vdim).
        real: (B or 1, S), False on padding; its last n columns are those of key and value.
    """
    if real is None:
        return key, value
    column = real[:, real.shape[1] - key.shape[1] :, None]  # (B or 1, n, 1)
    return torch.where(column, key, 0.0), torch.where(column, value, 0.0)


def append_keys(
    keys: tuple[Tensor, Tensor],
    learned: tuple[Tensor | None, Tensor | None],
    zeros: bool,
    mask: Mask,
) -> tuple[Tensor, Tensor, Mask]:
    """Append the keys of ``add_bias_kv`` and ``add_zero_attn``, which every query may attend to.

    Args:
        keys: k and v, (B, G, S, D).
        learned: bias_k and bias_v, (1, 1, G·D), or None.
        zeros: whether a zero key and a zero value follow.
        mask: of the S keys.
    """
    k, v = keys
    bias_k, bias_v = learned
    extra = (bias_k is not None) + zeros
    if bias_k is not None and bias_v is not None:
        k, v = torch.cat((k, _row(bias_k, k)), 2), torch.cat((v, _row(bias_v, v)), 2)
    if zeros:
        k, v = (torch.cat((t, t.new_zeros(*t.shape[:2], 1, t.shape[3])), 2) for t in (k, v))
    return k, v, appended(mask, extra) if extra and mask != full() else mask


def returned_weights(weights: Tensor | None, average: bool, batched: bool) -> Tensor | None:
    """(B, H, L, S), or the mean over heads (B, L, S); without B for unbatched inputs."""
    if weights is None:
        return None
    weights = weights.mean(1) if average else weights
    return weights if batched else weights[0]


def _row(vector: Tensor, like: Tensor) -> Tensor:
    """(1, 1, G·D) as one more key of every sample, (B, G, 1, D)."""
    batch, groups, _, dim = like.shape
    return vector.view(1, groups, 1, dim).expand(batch, -1, -1, -1).to(like.dtype)

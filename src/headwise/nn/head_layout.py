"""From tokens to heads and back: the shapes inside a `MultiheadAttention`."""

import torch
from torch import Tensor

from headwise.masks import Mask, appended, full


def batch_first(x: Tensor, is_first: bool) -> Tensor:
    """x as (B, L, ·), from (L, ·), (B, L, ·) or (L, B, ·)."""
    if x.dim() == 2:
        return x[None]
    return x if is_first else x.transpose(0, 1)


def as_given(y: Tensor, given: Tensor, is_first: bool) -> Tensor:
    """y (B, L, ·) in the layout of the tensor that was given."""
    if given.dim() == 2:
        return y[0]
    return y if is_first else y.transpose(0, 1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, heads·D) to (B, heads, L, D)."""
    return torch.unflatten(x, -1, (heads, -1)).transpose(1, 2)


def merge_heads(heads: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H·D)."""
    return heads.transpose(1, 2).flatten(2)


def without_padding(key: Tensor, value: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """0 in the rows of padding: the gradient of a projection would make NaN of 0 times NaN.

    Args:
        key: (B, n, kdim).
        value: (B, n, vdim).
        real: (B or 1, S), False on padding, whose last n columns are those of the rows given.
    """
    if real is None:
        return key, value
    column = real[:, real.shape[1] - key.shape[1] :, None]  # (B or 1, n, 1)
    return torch.where(column, key, 0.0), torch.where(column, value, 0.0)


def with_appended(
    pair: tuple[Tensor, Tensor],
    learned: tuple[Tensor | None, Tensor | None],
    zeros: bool,
    mask: Mask,
) -> tuple[Tensor, Tensor, Mask]:
    """Keys, values and mask with those that `add_bias_kv` and `add_zero_attn` append.

    Args:
        pair: k and v, (B, G, S, D).
        learned: a key and a value, (1, 1, G·D), or None.
        zeros: whether a key and a value of zeros follow.
        mask: who sees whom of the S keys; everybody sees those appended.
    """
    k, v = pair
    key, value = learned
    extra = (key is not None) + zeros
    if key is not None and value is not None:
        k = torch.cat((k, _everywhere(key, k)), dim=2)
        v = torch.cat((v, _everywhere(value, v)), dim=2)
    if zeros:
        k, v = (torch.cat((t, t.new_zeros(*t.shape[:2], 1, t.shape[3])), dim=2) for t in (k, v))
    return k, v, appended(mask, extra) if extra and mask != full() else mask


def returned_weights(weights: Tensor | None, average: bool, batched: bool) -> Tensor | None:
    """(B, H, L, S), averaged to (B, L, S) if asked; unbatched without B."""
    if weights is None:
        return None
    whole = weights.mean(1) if average else weights
    return whole if batched else whole[0]


def _everywhere(vector: Tensor, like: Tensor) -> Tensor:
    """(1, 1, G·D) as one more row of every sample, (B, G, 1, D)."""
    batch, groups, _, dim = like.shape
    return vector.view(1, groups, 1, dim).expand(batch, -1, -1, -1).to(like.dtype)

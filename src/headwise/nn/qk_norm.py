"""QK-norm: queries and keys are normalised, each head for itself, before they meet."""

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue


class UnitNorm(nn.Module):
    """Divides every vector by its length, so that a score is a cosine; for `LogitScale` beside it.

        x / max(|x|, eps)

    Computed in float32 at least. A vector of zeros stays one, with a finite gradient.

    Args:
        eps: the least length to divide by.

    Raises:
        BadValue: if eps is not above 0.

    Source: Henry et al. 2020 (Query-Key Normalization for Transformers), where it is the hat on q
        and k; Liu et al. 2022 (Swin Transformer V2), the cosine of scaled cosine attention.

    Example:
        >>> UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        if not eps > 0:
            raise BadValue("UnitNorm: eps must be above 0, got {eps}; 1e-6 is usual", eps=eps)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """X (..., D), every vector of length 1."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        # not linalg.norm, whose gradient at zeros is NaN in second order
        square = wide.square().sum(-1, keepdim=True)
        return (wide * square.clamp(min=self.eps**2).rsqrt()).to(x.dtype)

    def extra_repr(self) -> str:
        """The least length."""
        return f"eps={self.eps}"


def checked_norm(name: str, norm: nn.Module | None, head_dim: int) -> nn.Module | None:
    """The norm, if it is a module that fits a head.

    Args:
        name: the argument it came by.
        norm: what should take (B, heads, L, D) to the same shape.
        head_dim: D.

    Raises:
        BadType: if it is no module.
        BadValue: if it says itself that it normalises another size.
    """
    if norm is None:
        return None
    if not isinstance(norm, nn.Module):
        raise BadType(
            "{name}: expected a built module or None, got {norm!r}; for example "
            "nn.RMSNorm({head_dim}) or headwise.nn.UnitNorm()",
            name=name,
            norm=norm,
            head_dim=head_dim,
        )
    size = getattr(norm, "normalized_shape", None)
    if size is not None and tuple(size) != (head_dim,):
        raise BadValue(
            "{name}: it is applied to each head, (B, heads, L, D) with D = {head_dim}, "
            "got one for {size}; use nn.{norm_type}({head_dim}), and for a norm over all "
            "heads together replace the projection by nn.Sequential(layer.q_proj, norm)",
            name=name,
            head_dim=head_dim,
            size=tuple(size),
            norm_type=type(norm).__name__,
        )
    return norm


def normed(name: str, norm: nn.Module | None, rows: Tensor) -> Tensor:
    """Queries or keys (B, heads, L, D) by their norm.

    Raises:
        BadValue: if the norm gives another shape.
    """
    if norm is None:
        return rows
    found: Tensor = norm(rows)
    if found.shape != rows.shape:
        raise BadValue(
            "{name}: expected a module that keeps the shape {rows_shape}, got "
            "{found_shape}; it is given (B, heads, L, D)",
            name=name,
            rows_shape=tuple(rows.shape),
            found_shape=tuple(found.shape),
        )
    return found.to(rows.dtype)

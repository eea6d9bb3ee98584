"""QK-norm: queries and keys are normalised, each head for itself, before they meet."""

import math

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.nn.validation import check_positive


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


class LogitScale(nn.Module):
    """The factor s_h on the scores of head h, learned, in place of 1/sqrt(D).

        scores = s_h q kᵀ        s_h = exp(min(t_h, log most)),   t_h learned

    With `UnitNorm` on queries and keys the scores are s_h times a cosine: scaled cosine attention.

    Args:
        num_heads: H.
        start: s_h at the start.
        most: what s_h never exceeds; None sets no limit. Beyond it the gradient is 0.
        device: where the parameter is made.
        dtype: its type.

    Raises:
        BadType, BadValue: if num_heads is no positive integer, or a factor is no positive number,
            or start is above most.

    Source: Henry et al. 2020 (Query-Key Normalization for Transformers), where s is g; Liu et al.
        2022 (Swin Transformer V2), scaled cosine attention, where it is 1/tau of each head, tau
        being above 0.01; in their code it starts at 10.

    Example:
        >>> [round(each, 4) for each in LogitScale(2)().tolist()]
        [10.0, 10.0]
    """

    def __init__(
        self,
        num_heads: int,
        *,
        start: float = 10.0,
        most: float | None = 100.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive({"num_heads": num_heads})
        for name, value in (("start", start), ("most", start if most is None else most)):
            if not (math.isfinite(value) and value > 0):
                raise BadValue(
                    "LogitScale: {name} must be a positive number, got {value}; 10 and "
                    "100 are those of Swin V2, and head_dim**-0.5 starts as plain "
                    "attention",
                    name=name,
                    value=value,
                )
        if most is not None and start > most:
            raise BadValue(
                "LogitScale: start={start} is above most={most}, where nothing is "
                "learned; use most=None for no limit",
                start=start,
                most=most,
            )
        self.start, self.most = start, most
        self.log = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again."""
        nn.init.constant_(self.log, math.log(self.start))

    def forward(self) -> Tensor:
        """The factor of each head, (H,)."""
        kept = self.log if self.most is None else self.log.clamp(max=math.log(self.most))
        return kept.exp()

    def extra_repr(self) -> str:
        """The heads, where they start, and the limit."""
        return f"{self.log.shape[0]}, start={self.start}, most={self.most}"


def checked_scale(scale: nn.Module | None) -> nn.Module | None:
    """The part, if it is a module.

    Raises:
        BadType: if it is not, such as a number.
    """
    if scale is None or isinstance(scale, nn.Module):
        return scale
    raise BadType(
        "logit_scale: expected a built module or None, got {scale!r}; for example "
        "headwise.nn.LogitScale(num_heads); a factor that is not learned is part of "
        "q_proj",
        scale=scale,
    )


def scaled(scale: nn.Module | None, q: Tensor) -> Tensor:
    """Queries (B, H, L, D) such that `attend`, which divides by sqrt(D), gives s_h q kᵀ.

    Raises:
        BadValue: if the part does not give one factor, or one for each head.
    """
    if scale is None:
        return q
    factor: Tensor = scale()
    heads, dim = q.shape[1], q.shape[3]
    if factor.shape not in ((), (1,), (heads,)):
        raise BadValue(
            "logit_scale: expected one factor for each head, ({heads},), got "
            "{factor_shape}; make it for num_heads={heads}",
            heads=heads,
            factor_shape=tuple(factor.shape),
        )
    wide = torch.promote_types(q.dtype, torch.float32)
    return (q.to(wide) * (factor.to(wide) * math.sqrt(dim)).view(-1, 1, 1)).to(q.dtype)


class OutputGate(nn.Module):
    """The sigmoid gate on the heads' outputs, before they are projected.

        O'_h = O_h * sigmoid(x W_h + b_h)        x the token that asked, (E,)

    A head may thus give nothing, for which otherwise it attends to a sink.

    Args:
        embed_dim: E.
        num_heads: H.
        head_dim: how many gates a head has: 1, or D for one of each number it gives.
        bias: whether there is a b, which the paper's has not; it starts at 0.
        device: where the parameters are made.
        dtype: their type.

    Raises:
        BadType, BadValue: if a size is no positive integer.

    Source: Qiu et al. 2025 (Gated Attention for Large Language Models), Y' = Y * sigmoid(X W_theta)
        at position G1, after scaled dot-product attention, head-specific: elementwise with
        head_dim=D, headwise with head_dim=1. X, Y, W_theta there are x, O, W here.

    Example:
        >>> OutputGate(8, 2)(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 2])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int = 1,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "head_dim": head_dim}
        check_positive(sizes)
        self.proj = nn.Linear(
            embed_dim, num_heads * head_dim, bias=bias, device=device, dtype=dtype
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier weights and no bias, as the projections of attention start."""
        nn.init.xavier_uniform_(self.proj.weight)
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The gates of tokens (B, L, E), between 0 and 1: (B, L, H · head_dim)."""
        return torch.sigmoid(self.proj(x))


def checked_gate(gate: nn.Module | None) -> nn.Module | None:
    """The gate, if it is a module.

    Raises:
        BadType: if it is not, such as a flag.
    """
    if gate is None or isinstance(gate, nn.Module):
        return gate
    raise BadType(
        "gate: expected a built module or None, got {gate!r}; for example "
        "headwise.nn.OutputGate(embed_dim, num_heads)",
        gate=gate,
    )


def gated(gate: nn.Module | None, output: Tensor, x: Tensor) -> Tensor:
    """The heads' outputs (B, H, L, D) by the gates of the tokens x (B, L, E) that asked.

    Raises:
        BadValue: if the gate does not give (B, L, H) or (B, L, H·D).
    """
    if gate is None:
        return output
    found: Tensor = gate(x)
    batch, heads, length, dim = output.shape
    if (
        found.dim() != 3
        or found.shape[:2] != x.shape[:2]
        or found.shape[2] not in (heads, heads * dim)
    ):
        raise BadValue(
            "gate: expected (B, L, H) = {value}, or (B, L, H·D) with H·D = {heads}, got "
            "{found_shape}; make it with num_heads={heads_2} and head_dim=1 or {dim}",
            value=(batch, length, heads),
            heads=heads * dim,
            found_shape=tuple(found.shape),
            heads_2=heads,
            dim=dim,
        )
    opened = torch.unflatten(found, -1, (heads, -1)).transpose(1, 2)  # (B, H, L, 1 or D)
    return (output * opened).to(output.dtype)

"""A learned factor on the scores, one for each head."""

import math

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.nn.sizes import check_positive


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

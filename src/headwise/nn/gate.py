"""An output gate: how much of what a head found is let through, told by the token that asked."""

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.nn.sizes import check_positive


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

"""Parameters that are made empty, to be drawn once and not twice."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import skip_init


@dataclass(frozen=True)
class Place:
    """Where the parameters of a module are made, and of which type.

    Attributes:
        device: where.
        dtype: their type; None means PyTorch's default.
    """

    device: torch.device | str
    dtype: torch.dtype | None

    @classmethod
    def of(cls, device: torch.device | str | None, dtype: torch.dtype | None) -> "Place":
        """The place asked for; None means the default device."""
        return cls(torch.get_default_device() if device is None else device, dtype)

    def linear(self, size: int, out: int, bias: bool) -> nn.Linear:
        """A projection of vectors of one size to another, its numbers not drawn yet."""
        options = {"bias": bias, "device": self.device, "dtype": self.dtype}
        made: nn.Linear = skip_init(nn.Linear, size, out, **options)  # type: ignore[no-untyped-call]
        return made

    def vector(self, *shape: int) -> nn.Parameter:
        """A parameter, its numbers not drawn yet."""
        return nn.Parameter(torch.empty(*shape, device=self.device, dtype=self.dtype))

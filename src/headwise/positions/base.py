"""What a position encoding is: it tells attention where a token stands."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from headwise.errors import BadValue

Inputs = Float[Tensor, "*b l e"]


class Position(nn.Module, ABC):
    """A position encoding that is added to the input, before the projections.

    `MultiheadAttention(..., position=p)` gives what it gives without a position when the caller
    adds ``p`` to query, key and value first. Query number i stands at position i + (Lk - Lq), the
    same position that masks see.
    """

    @abstractmethod
    def embed(self, x: Inputs, offset: int = 0) -> Inputs:
        """x with its positions ``offset, offset + 1, ...`` added; x itself is left alone."""

    def forward(self, x: Inputs, offset: int = 0) -> Inputs:
        """The same as `embed`."""
        return self.embed(x, offset)


def check_width(name: str, embed_dim: int, x: Tensor) -> None:
    """Refuse an input whose last axis is not the one the position was made for.

    Raises:
        BadValue: if the last axis of x is not embed_dim.
    """
    if x.shape[-1] != embed_dim:
        raise BadValue(
            f"{name}: made for embed_dim {embed_dim}, got an input of size {x.shape[-1]}; "
            "query, key and value must have the same size to share one position",
            f"{name}：按 embed_dim {embed_dim} 构造，收到大小为 {x.shape[-1]} 的输入；"
            "query、key、value 大小相同才能共用一个位置编码",
        )

"""The weights of the four projections of one multi-head attention."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadValue

WIDEST = 4096  # the maximum number of columns of X for which projections (E, E) are built


@dataclass(frozen=True, eq=False)
class Projections:
    """The weights of the four projections in the layout of `torch.nn.Linear`: y = x Wᵀ + b.

    q: (H D, E). k: (H D, E_kv). v: (H Dv, E_kv). out: (E, H Dv). E_kv is E in self-attention. A
    bias has one number for each row of its matrix; None means 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    out_bias: Tensor | None = None

    @classmethod
    def identity(cls, embed_dim: int) -> "Projections":
        """Return identity projections, Q = K = V = X; E must be at most `WIDEST`."""
        check_width(embed_dim)
        eye = torch.eye(embed_dim, dtype=torch.float64)
        return cls(eye, eye, eye, eye)

    def project(self, x: Tensor, name: str) -> Tensor:
        """Project x in float64 with the projection "q", "k", "v" or "out"."""
        weight, bias = getattr(self, name), getattr(self, f"{name}_bias")
        wide = None if bias is None else bias.detach().to(torch.float64)
        return torch.nn.functional.linear(x, weight.detach().to(torch.float64), wide)

    def check(self, embed_dim: int, kv_dim: int, heads: int) -> None:
        """Raise `BadValue` if a weight does not fit inputs with E and E_kv columns and H heads."""
        sizes = {"q": self.q.shape[0], "k": self.k.shape[0], "v": self.v.shape[0]}
        for name, size in sizes.items():
            if heads < 1 or size % heads:
                raise BadValue(
                    "heads: the {size} columns of {matrix} cannot be divided into {heads} equal "
                    "heads; use a divisor of {size}, or weights with heads * head_dim columns",
                    heads=heads,
                    size=size,
                    matrix=name.upper(),
                )
        shapes = {"q": (sizes["k"], embed_dim), "k": (sizes["k"], kv_dim)}
        shapes |= {"v": (sizes["v"], kv_dim), "out": (self.out.shape[0], sizes["v"])}
        for name, shape in shapes.items():
            for label, expected in ((name, shape), (f"{name}_bias", shape[:1])):
                tensor = getattr(self, label)
                if tensor is not None and tuple(tensor.shape) != expected:
                    raise BadValue(
                        "weights: {name} must have shape {shape} for an input with {embed_dim} "
                        "columns, got {got}; rows are outputs, as in torch.nn.Linear",
                        name=label,
                        shape=expected,
                        embed_dim=kv_dim if name in ("k", "v") else embed_dim,
                        got=tuple(tensor.shape),
                    )


def check_width(embed_dim: int) -> None:
    """Raise `BadValue` if X has more than `WIDEST` columns."""
    if embed_dim > WIDEST:
        raise BadValue(
            "x: expected at most {widest} columns, got {embed_dim}; use fewer columns",
            widest=WIDEST,
            embed_dim=embed_dim,
        )

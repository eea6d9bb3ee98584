"""Longformer's separate projections for the rows of global tokens.

The global tokens are those of every symmetric `headwise.global_tokens` in the mask, found through
& | ~. Their rows are q_g k_gᵀ over all keys that the mask allows; every other row uses the ordinary
projections, for the columns of the global tokens too.

Source: Beltagy et al. 2020 (Longformer), section 3.1; their Q_g, K_g, V_g are q_proj, k_proj,
v_proj here, and Q_s, K_s, V_s those of the attention itself.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headwise.call import Result
from headwise.errors import BadValue
from headwise.masks import Mask, from_tensor
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.nn.init import ParameterFactory
from headwise.nn.projections import QKV
from headwise.shapes import AttentionShape

PER_QUERY = ("weights", "logsumexp", "entropy", "largest")
"""The results besides the output that belong to one query and do not depend on its position."""


class GlobalProjections(nn.Module):
    """The projections of global tokens, which start as copies of the ordinary ones.

    Args:
        like: q_proj, k_proj and v_proj of the attention.
    """

    def __init__(self, like: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (_empty_like(linear) for linear in like)

    @torch.no_grad()
    def copy(self, like: Sequence[nn.Linear]) -> None:
        """Copy the values of the ordinary projections, the paper's initialisation."""
        for name, source in zip(QKV, like, strict=True):
            for kind, parameter in self.get_submodule(name).named_parameters():
                parameter.copy_(source.get_parameter(kind))


@dataclass(frozen=True, eq=False)
class GlobalRows:
    """The queries that are global tokens, padded to the sample that has the most.

    Attributes:
        index: (B, n), positions of queries.
        real: (B, n), False on padding.
    """

    index: Tensor
    real: Tensor

    @classmethod
    def of(cls, mask: Mask, shape: AttentionShape) -> "GlobalRows | None":
        """Those of a resolved mask; None if it has no global token."""
        b, h, query, _ = shape.indices()
        is_global: Tensor | None = None
        for part in _symmetric(mask):
            own = replace(part, symmetric=False).rule(b, h, query, query)
            is_global = own if is_global is None else is_global | own
        if is_global is None:
            return None
        is_global = is_global.expand(shape.batch, 1, -1, 1)[:, 0, :, 0]  # (B, Lq)
        most = int(is_global.sum(-1).max()) if is_global.numel() else 0
        if not most:
            return None
        index = is_global.int().argsort(dim=-1, descending=True, stable=True)[:, :most]
        return cls(index, is_global.gather(1, index))

    def take(self, x: Tensor) -> Tensor:
        """The rows (B, n, E) of x (B, Lq, E)."""
        return x.gather(1, self.index[..., None].expand(-1, -1, x.shape[2]))

    def put(self, x: Tensor, rows: Tensor) -> Tensor:
        """A copy of x (B, H, Lq, ...) with ``rows`` (B, H, n, ...) in place of its own."""
        sample, number = self.real.nonzero(as_tuple=True)
        new = rows.transpose(1, 2)[sample, number].to(x.dtype)
        place = (sample, self.index[sample, number])
        return x.transpose(1, 2).index_put(place, new).transpose(1, 2)

    def mask(self, mask: Mask, shape: AttentionShape) -> Mask:
        """The mask of these rows: (B, 1 or H, n, Lk)."""
        b, h, _, key = shape.indices()
        indices = (b, h, self.index[:, None, :, None] + shape.offset, key)
        sizes = (shape.batch, -1, self.index.shape[1], shape.keys)
        allowed = mask.rule(*indices) & self.real[:, None, :, None]
        rows = from_tensor(allowed.expand(sizes), "b h q k")
        bias = mask.bias(*indices)
        if bias is None:
            return rows
        bias = bias[(None,) * (4 - bias.dim())]
        return rows & from_tensor(bias.expand(sizes), "b h q k")

    @staticmethod
    def others(mask: Mask) -> Mask:
        """The mask of the other rows, which use the ordinary projections."""
        return without_global_rows(mask)

    @staticmethod
    def check_need(need: Collection[str]) -> None:
        """Refuse results that sum over queries or depend on their positions."""
        for word in need:
            if word not in PER_QUERY:
                raise BadValue(
                    "need: with global_projections expected some of {words}, got {word!r}; "
                    "take the weights and measure them",
                    words=PER_QUERY,
                    word=word,
                )

    def replace_rows(self, result: Result, own: Result) -> Result:
        """A result with the rows of global tokens replaced by their own result."""
        names = ("output", *(name for name in PER_QUERY if getattr(result, name) is not None))
        new = {name: self.put(getattr(result, name), getattr(own, name)) for name in names}
        return replace(result, **new)


def without_global_rows(mask: Mask) -> Mask:
    """The mask without the rows of global tokens, which are computed apart."""
    if isinstance(mask, GlobalTokens):
        return replace(mask, symmetric=False)
    return mask.map(without_global_rows)


def cache_refused() -> BadValue:
    """The error of a module with ``global_projections`` that is called with a cache."""
    return BadValue(
        "cache: with global_projections each key has two projections, and the row of a "
        "global token sees future keys; call the module without a cache"
    )


def _symmetric(mask: Mask) -> list[GlobalTokens]:
    """The symmetric global tokens in a mask."""
    return [part for part in mask.walk() if isinstance(part, GlobalTokens) and part.symmetric]


def _empty_like(linear: nn.Linear) -> nn.Linear:
    factory = ParameterFactory(linear.weight.device, linear.weight.dtype)
    return factory.linear(linear.in_features, linear.out_features, linear.bias is not None)

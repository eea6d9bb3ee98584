"""Longformer's second projections: what global tokens ask, and what they find, is projected apart.

The global tokens are those of every symmetric `headwise.global_tokens` in the mask, found through
& | ~. Their rows are q_g k_gᵀ over all keys that the mask allows; every other row uses the ordinary
projections, for the columns of the global tokens too.

Source: Beltagy et al. 2020 (Longformer), section 3.1; their Q_g, K_g, V_g are q_proj, k_proj,
v_proj here, and Q_s, K_s, V_s those of the attention itself.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headwise.call import Result
from headwise.errors import BadValue
from headwise.masks import Mask, from_tensor
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.shapes import AttentionShape

OF_A_ROW = ("weights", "logsumexp", "entropy", "largest")
"""What can be asked beside the output: what belongs to one query, wherever it stands."""


class GlobalProjections(nn.Module):
    """The projections of global tokens, which start as copies of the ordinary ones.

    Args:
        like: q_proj, k_proj and v_proj of the attention.
    """

    def __init__(self, like: Collection[nn.Linear]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (_linear_like(each) for each in like)

    def copy(self, like: Collection[nn.Linear]) -> None:
        """Take the values of the ordinary projections, as the paper starts."""
        own = (self.q_proj, self.k_proj, self.v_proj)
        with torch.no_grad():
            for ours, theirs in zip(own, like, strict=True):
                for name, parameter in ours.named_parameters():
                    parameter.copy_(theirs.get_parameter(name))


@dataclass(frozen=True, eq=False)
class GlobalRows:
    """The rows of the global tokens, as many for each sample as the one with the most has.

    Attributes:
        index: (B, n), numbers of queries.
        real: (B, n), False where a sample has fewer.
    """

    index: Tensor
    real: Tensor

    @classmethod
    def of(cls, mask: Mask, frame: AttentionShape) -> "GlobalRows | None":
        """Those of a resolved mask; None if it has no global token."""
        b, h, query, _ = frame.indices()
        found = [replace(each, symmetric=False).rule(b, h, query, query) for each in _named(mask)]
        if not found:
            return None
        chosen = found[0]
        for each in found[1:]:
            chosen = chosen | each
        chosen = chosen.expand(frame.batch, 1, -1, 1)[:, 0, :, 0]  # (B, Lq)
        most = int(chosen.sum(-1).max()) if chosen.numel() else 0
        if not most:
            return None
        index = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, :most]
        return cls(index, chosen.gather(1, index))

    def take(self, x: Tensor) -> Tensor:
        """(B, n, E) of x (B, Lq, E)."""
        return x.gather(1, self.index[..., None].expand(-1, -1, x.shape[2]))

    def put(self, into: Tensor, rows: Tensor) -> Tensor:
        """``into`` (B, H, Lq, ...) with rows (B, H, n, ...) in their places."""
        sample, number = self.real.nonzero(as_tuple=True)
        place = (sample, self.index[sample, number])
        new = rows.transpose(1, 2)[sample, number].to(into.dtype)
        return into.transpose(1, 2).index_put(place, new).transpose(1, 2)

    def mask(self, mask: Mask, frame: AttentionShape) -> Mask:
        """What the mask says of these rows: (B, 1 or H, n, Lk)."""
        b, h, _, key = frame.indices()
        where = (b, h, self.index[:, None, :, None] + frame.offset, key)
        sizes = (frame.batch, -1, self.index.shape[1], frame.keys)
        allowed = mask.rule(*where) & self.real[:, None, :, None]
        rows = from_tensor(allowed.expand(sizes), "b h q k")
        bias = mask.bias(*where)
        return rows if bias is None else rows & from_tensor(_four(bias).expand(sizes), "b h q k")


def one_sided(mask: Mask) -> Mask:
    """The mask without the rows of global tokens, which are attended to apart."""
    if isinstance(mask, GlobalTokens):
        return replace(mask, symmetric=False)
    return mask.map(one_sided)


def joined(result: Result, rows: GlobalRows, own: Result) -> Result:
    """A result with what the rows of global tokens give in their places."""
    names = ("output", *(name for name in OF_A_ROW if getattr(result, name) is not None))
    return replace(
        result, **{name: rows.put(getattr(result, name), getattr(own, name)) for name in names}
    )


def check_need(need: Collection[str]) -> None:
    """Refuse what sums over queries or asks where they stand.

    Raises:
        BadValue: for "received" and "distance".
    """
    for word in need:
        if word not in OF_A_ROW:
            raise BadValue(
                "need: with global_projections expected some of {of_a_row}, got "
                "{word!r}; ask for the weights and measure them",
                of_a_row=OF_A_ROW,
                word=word,
            )


def no_cache() -> BadValue:
    """Why a module with projections of global tokens takes no cache."""
    return BadValue(
        "cache: with global_projections each key has two projections, and the row of a "
        "global token sees keys that are still to come; call the module without a cache"
    )


def _named(mask: Mask) -> list[GlobalTokens]:
    """The symmetric global tokens in a mask."""
    return [part for part in mask.walk() if isinstance(part, GlobalTokens) and part.symmetric]


def _four(values: Tensor) -> Tensor:
    return values[(None,) * (4 - values.dim())]


def _linear_like(linear: nn.Linear) -> nn.Linear:
    weight = linear.weight
    made: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear,
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    )
    return made

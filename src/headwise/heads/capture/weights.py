"""The attention weights of one block of queries, as a model computes them.

Everything a transformer adds to softmax(q kᵀ · scale) stands here once: a mask, causal order, a
position bias (T5), a soft cap (Gemma 2) and a learned sink (gpt-oss).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Terms:
    """What one attention of a model is computed from.

    Attributes:
        q: (B, H, Lq, D).
        k: (B, G, Lk, D); query head h reads key head h // (H / G).
        v: (B, G, Lk, Dv).
        scale: factor on the scores.
        mask: (B or 1, H or 1, Lq, Lk): booleans, True = may attend, or numbers that are added,
            the lowest of their dtype meaning "not allowed"; or None.
        causal: whether query i sees keys 0 to i only.
        bias: (B or 1, H or 1, Lq, Lk), added to the scaled scores; or None.
        softcap: c in c · tanh(scores / c), before bias and mask; or None.
        sink: (H,), one more score in each row's softmax that no key gets; or None.
    """

    q: Float[Tensor, "b h lq d"]
    k: Float[Tensor, "b g lk d"]
    v: Float[Tensor, "b g lk dv"]
    scale: float
    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None

    @property
    def size(self) -> tuple[int, int, int, int]:
        """B, H, Lq, Lk."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    def allowed(self, rows: slice) -> Bool[Tensor, "b #h r lk"]:
        """True where a query of these rows may attend."""
        batch, _, length, keys = self.size
        here = torch.arange(length, device=self.q.device)[rows]
        seen = torch.arange(keys, device=self.q.device) <= here[:, None]  # (R, Lk)
        allowed = (seen if self.causal else torch.ones_like(seen))[None, None]
        if self.mask is not None:
            allowed = allowed & _open(self.mask[:, :, rows, :keys])
        return allowed.expand(batch, -1, -1, -1)

    def weights(
        self, rows: slice, dtype: torch.dtype = torch.float32
    ) -> tuple[Float[Tensor, "b h r lk"], Bool[Tensor, "b #h r lk"]]:
        """The weights of these rows, 0 where not allowed, and what is allowed."""
        allowed = self.allowed(rows)
        scores = self._scores(rows, dtype).masked_fill(~allowed, -torch.inf)
        if self.sink is not None:
            extra = self.sink.to(dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, extra), dim=-1)
        weights = scores.softmax(-1)[..., : allowed.shape[-1]]
        return torch.where(allowed, weights, 0.0), allowed

    def output(self, rows: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Weights times values, (B, H, R, Dv)."""
        weights, _ = self.weights(rows, dtype)
        return weights @ self._each_head(self.v).to(dtype)

    def _scores(self, rows: slice, dtype: torch.dtype) -> Tensor:
        q, k = self.q[:, :, rows].to(dtype), self._each_head(self.k).to(dtype)
        scores = q @ k.transpose(-2, -1) * self.scale  # (B, H, R, Lk)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        for added in (self.bias, self.mask):
            if added is not None and added.dtype != torch.bool:
                scores = scores + added[:, :, rows, : k.shape[2]].to(dtype)
        return scores

    def _each_head(self, grouped: Tensor) -> Tensor:
        """One row of keys or values for every query head."""
        return grouped.repeat_interleave(self.q.shape[1] // grouped.shape[1], dim=1)


def _open(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2

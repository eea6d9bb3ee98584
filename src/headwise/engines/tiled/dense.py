"""The attention with its scores written out: what derivatives of the backward are taken of."""

import torch
from torch import Tensor

from headwise.engines.sinks import sunk
from headwise.engines.tiled import kernel
from headwise.engines.tiled.forward import by_weights
from headwise.engines.tiled.parts import Part
from headwise.engines.tiled.rows import Strided
from headwise.engines.tiled.scores import added, values
from headwise.engines.tiled.work import Work


def dense(work: Work) -> tuple[Tensor, Tensor]:
    """Output and logsumexp in O(Lq Lk) memory, differentiable to any order."""
    frame = work.frame
    whole = Part(Strided(0, 1, frame.queries), Strided(0, 1, frame.keys), work.mask)
    extra = added(work, whole, work.asked[:, :, None])
    mask = None if extra.scores is None else extra.scores[:, :, 0]
    scores = kernel.plain_scores(work.q, work.k, mask, work.scale)
    blind = torch.zeros_like(scores[..., 0], dtype=torch.bool)
    if extra.blind is not None:
        blind = blind | extra.blind[:, :, 0]
    known = scores.masked_fill(blind[..., None], 0.0)
    shares = known.softmax(-1).masked_fill(blind[..., None], 0.0)
    output = kernel.grouped(shares, work.v.to(shares.dtype))
    if by_weights(work, whole):
        output = output + values(work, whole, shares[:, :, None])[:, :, 0]
    sums = known.logsumexp(-1).masked_fill(blind, -torch.inf)
    if work.sinks is not None:
        output, sums = sunk(output, sums, work.sinks)
    return output.to(work.v.dtype), sums

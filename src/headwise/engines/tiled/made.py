"""What a position gives once for all pairs, differentiable in what it is made of."""

import torch
from torch import Tensor

from headwise.engines.tiled import far
from headwise.masks import Mask
from headwise.positions import Position, Stage
from headwise.positions.base import Far
from headwise.positions.relative import Relative, differences
from headwise.shapes import Frame


def relative(position: Position, asked: Tensor, frame: Frame, scale: float) -> Relative:
    """What the position adds at every difference of a key and a query, if that is all it adds.

    Args:
        position: of the attention.
        asked: the queries as they were given, (B, H, Lq, D).
        frame: the outer shape.
        scale: the factor on the scores.
    """
    if Stage.SCORES not in position.stages:
        return Relative()
    _, _, query, key = frame.indices()
    with torch.autocast(asked.device.type, enabled=False):
        found = position.relative(differences(query.flatten(), key.flatten()), asked, scale)
    return found or Relative()


def stand_ins(position: Position, mask: Mask, frame: Frame, k: Tensor, v: Tensor) -> Far | None:
    """What stands for k (B, G, Lk, D) and v (B, G, Lk, Dv) where pairs are far apart, if most are.

    Args:
        position: of the attention.
        mask: resolved for the frame.
        frame: the outer shape.
        k: the keys as they meet in the scores.
        v: the values.
    """
    with torch.autocast(k.device.type, enabled=False):
        found = position.far(k, v)
    return found if found is not None and far.pays(mask, frame, found.reach) else None

"""Which samples go on: what a beam search tells everything that is kept between calls."""

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue
from headwise.lang import Text


def check_index(index: Tensor, batch: int, holder: Text) -> None:
    """Refuse what does not say for each sample which of those held it goes on from.

    Args:
        index: should be integers (B',), each from 0 to B - 1.
        batch: B, how many samples are held.
        holder: what holds them.

    Raises:
        BadType: if it is no row of integers.
        BadValue: if a number is not that of a sample.
    """
    integers = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if not integers or index.dim() != 1:
        got = tuple(index.shape) if isinstance(index, Tensor) else repr(index)
        raise BadType(
            "index: expected integers (B,), the sample that each goes on from, got "
            "{got}; for example torch.tensor([0, 0, 1])",
            got=got,
        )
    if bool(((index < 0) | (index >= batch)).any()):
        raise BadValue(
            "index: {holder} holds {batch} samples, numbered from 0, got {index}; "
            "reorder before reset(), with numbers of the batch that was held",
            holder=holder,
            batch=batch,
            index=index.tolist(),
        )

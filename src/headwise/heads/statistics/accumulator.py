"""Named sums that add up: what several texts, files or processes counted becomes one count."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.errors import BadFile, BadValue

MOST_NAMES, MOST_NUMBERS = 1 << 16, 1 << 24
"""How many sums, and numbers in one of them, may be read from a file."""

_FORM = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")


@dataclass
class Accumulator:
    """Sums by name, each a float64 tensor; two tallies merge by adding what has one name.

    Example:
        >>> one = Accumulator()
        >>> one.add("hits", torch.tensor([1.0, 2.0]))
        >>> one.merge(one)
        >>> one["hits"]
        tensor([2., 4.], dtype=torch.float64)
    """

    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, more: Tensor) -> None:
        """Add to one sum.

        Raises:
            BadValue: if it has another shape than what was added before.
        """
        more = more.detach().to("cpu", torch.float64)
        before = self.sums.get(name)
        if before is not None and before.shape != more.shape:
            raise BadValue(
                "tally: {name} had shape {before_shape} and now has {more_shape}; keep "
                "one tally for each model",
                name=name,
                before_shape=tuple(before.shape),
                more_shape=tuple(more.shape),
            )
        self.sums[name] = more.clone() if before is None else before + more

    def merge(self, other: "Accumulator") -> None:
        """Add every sum of another tally, which stays as it was."""
        for name, more in other.sums.items():
            self.add(name, more)

    def __getitem__(self, name: str) -> Tensor:
        return self.sums[name]

    def __contains__(self, name: str) -> bool:
        return name in self.sums

    def __iter__(self) -> Iterator[str]:
        return iter(self.sums)

    def tensors(self) -> dict[str, Tensor]:
        """Every sum by name, to be written."""
        return dict(self.sums)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Accumulator":
        """The tally that `tensors` wrote; what comes from a file is held to its form.

        Raises:
            BadFile: if there are too many names or numbers, a name has spaces or control
                characters, or a sum is not of finite float64.
        """
        if len(tensors) > MOST_NAMES:
            raise _unfit(f"{len(tensors)} names")
        for name, tensor in tensors.items():
            if not _FORM.fullmatch(name):
                raise _unfit(repr(name[:80]))
            good = tensor.dtype == torch.float64 and tensor.numel() <= MOST_NUMBERS
            if not good or not bool(tensor.isfinite().all()):
                raise _unfit(f"{name} {tuple(tensor.shape)} {tensor.dtype}")
        return cls({name: tensor.clone() for name, tensor in tensors.items()})


def _unfit(what: str) -> BadFile:
    return BadFile(
        "tally: expected finite float64 sums as tensors() writes them, got {what}; count again",
        what=what,
    )

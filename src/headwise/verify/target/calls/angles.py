"""Cosines and sines for targets that take them as arguments, in every usual layout."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.positions import Rotary
from headwise.verify.oracle.jobs import Job

Width = Literal["halves", "neighbours", "half"]
"""D numbers of which the second half repeats the first, or every number occurs twice in a row; or
D / 2 numbers."""

SHAPES = ("l d", "b l d", "1 1 l d", "1 l 1 d", "l 1 d")


@dataclass(frozen=True)
class AngleForm:
    """The layout of angles: whether they turn at all, their width, their axes, and their kind.

    `kind` is "complex" or "real" for one argument that is neither called cosine nor sine.
    """

    turning: bool
    width: Width
    shape: str
    kind: Literal["complex", "real"] = "complex"

    def arguments(self, names: Sequence[str], job: Job) -> dict[str, object]:
        """The angles for a job, by the names of the arguments.

        Raises:
            ValueError: if D is odd.
        """
        dim, length = job.head_dim, job.query.shape[1]
        if dim % 2:
            raise ValueError("rotation needs an even head_dim")
        dtype = torch.promote_types(job.query.dtype, torch.float32)
        steps = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-steps
        angles = angles if self.turning else angles * 0.0
        wide = {
            "halves": torch.cat((angles, angles), -1),
            "neighbours": angles.repeat_interleave(2, -1),
            "half": angles,
        }[self.width].to(dtype)
        return {name: self._of(name, wide, job) for name in names}

    def _of(self, name: str, angles: Tensor, job: Job) -> object:
        cos, sin = (self._shaped(x.to(job.query.dtype), job) for x in (angles.cos(), angles.sin()))
        if re.search(r"(?i)(^|_)cos", name):
            return cos
        if re.search(r"(?i)(^|_)sin", name):
            return sin
        if "position_embeddings" in name or (self.kind == "real" and "rope" in name.lower()):
            return cos, sin
        if self.kind == "real":
            return self._shaped(angles, job)
        return torch.polar(torch.ones_like(angles), angles).reshape(self._sizes(angles, job))

    def _sizes(self, x: Tensor, job: Job) -> list[int]:
        sizes = {"l": x.shape[0], "d": x.shape[1], "1": 1, "b": 1}
        return [sizes[axis] for axis in self.shape.split()]

    def _shaped(self, x: Tensor, job: Job) -> Tensor:
        whole = x.reshape(self._sizes(x, job))
        return whole.expand(job.query.shape[0], -1, -1) if self.shape == "b l d" else whole


def angle_forms(names: Sequence[str]) -> Iterator[AngleForm | None]:
    """The layouts of angles to try; None where a target takes none."""
    if not names:
        yield None
        return
    plain = all(re.search(r"(?i)(^|_)(cos|sin)|position_embeddings", name) for name in names)
    kinds: tuple[Literal["complex", "real"], ...] = ("complex",) if plain else ("complex", "real")
    widths: tuple[Width, ...] = ("halves", "neighbours", "half")
    for turning in (True, False):
        for kind in kinds:
            for width in ("half",) if kind == "complex" and not plain else widths:
                for shape in SHAPES:
                    yield AngleForm(turning, width, shape, kind)


def rotary_positions(dim: int) -> tuple[Rotary, ...]:
    """The rotary positions of an even D, by the features that form a pair."""
    return () if dim % 2 else (Rotary(dim, pairs="halves"), Rotary(dim, pairs="neighbours"))

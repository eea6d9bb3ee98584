"""Rotary position encodings."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue, one_of
from headwise.lang import Text
from headwise.positions.frequencies import Frequencies, Length
from headwise.positions.position import Position, Stage, check_base
from headwise.shapes import AttentionShape, check_boolean, check_integer

PAIRS = ("halves", "neighbours")


class Rotary(Position):
    """Rotary position encoding: rotates q and k, so that scores depend on distances only.

    Pair p of the ``rotary_dim / 2`` pairs is rotated by position / base^(2p / rotary_dim) radians.
    The angles are computed in float64, and the rotation in at least float32.

    Args:
        head_dim: D.
        pairs: the features that form pair p. "halves": p and p + rotary_dim / 2, as in Llama and
            GPT-NeoX. "neighbours": 2p and 2p + 1, as in the paper and GPT-J.
        rotary_dim: the number of features to rotate, beginning with the first; None means all. The
            ``partial_rotary_factor`` of transformers is rotary_dim / head_dim.
        base: the upper limit of the wavelengths, divided by 2 pi; None means 10000.
        frequencies: frequencies that replace those of ``base``, such as `YaRN`; see
            `headwise.positions.frequencies`.
        sections: for positions with several axes, such as time, height and width, the number of
            pairs for each axis; pass positions on every axis to `at`.
        interleaved: whether the axes of the pairs alternate, t h w t h w ... t t, as in Qwen3-VL,
            instead of t ... t h ... h w ... w, as in Qwen2-VL.

    Raises:
        BadType, BadValue: if a size is not an integer, rotary_dim is odd or above head_dim, base is
            not above 1, pairs is unknown, or the sum of sections is not rotary_dim / 2; when
            called, if D or explicit positions do not fit.

    Source: Su et al. 2021 (RoFormer), section 3.2.2. Sections: Wang et al. 2024 (Qwen2-VL), section
        2.1, M-RoPE.

    Example:
        >>> q = torch.tensor([[[[1.0, 0.0]]]])
        >>> turned, _ = Rotary(2, pairs="halves").at([3], [3]).content(q, q, None)
        >>> [round(x, 4) for x in turned.flatten().tolist()]  # cos 3, sin 3
        [-0.99, 0.1411]
    """

    stages = frozenset({Stage.CONTENT})

    def __init__(
        self,
        head_dim: int,
        *,
        pairs: str | None = None,
        rotary_dim: int | None = None,
        base: float | None = None,
        frequencies: Frequencies | None = None,
        sections: Sequence[int] | None = None,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        head_dim = check_integer("Rotary", "head_dim", head_dim, 1)
        if rotary_dim is not None:
            rotary_dim = check_integer("Rotary", "rotary_dim", rotary_dim, 1)
        self.head_dim = head_dim
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        if pairs is None:
            raise BadValue(
                "Rotary: pairs is required: use 'halves' (Llama, GPT-NeoX) or 'neighbours' (the "
                "paper, GPT-J); a wrong choice raises no error"
            )
        if pairs not in PAIRS:
            raise one_of("pairs", pairs, PAIRS)
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= head_dim:
            raise BadValue(
                "Rotary: rotary_dim must be even, from 2 to head_dim={head_dim}, got "
                "{rotary_dim}; for an odd head_dim use rotary_dim=head_dim - 1",
                head_dim=head_dim,
                rotary_dim=self.rotary_dim,
            )
        if frequencies is None:
            frequencies = Frequencies(check_base("Rotary", 10000.0 if base is None else base))
        elif not isinstance(frequencies, Frequencies):
            raise BadType(
                "Rotary: frequencies must be a Frequencies object, or None to use base, got {got}",
                got=type(frequencies).__name__,
            )
        elif base is not None:
            raise BadValue(
                "Rotary: base and frequencies cannot be combined; use frequencies=Frequencies(base)"
            )
        self.pairs, self.frequencies, self.base = pairs, frequencies, frequencies.base
        self.sections = None if sections is None else _sections(sections, self.rotary_dim // 2)
        qwen = Text("use True for Qwen3-VL, False for Qwen2-VL")
        check_boolean("Rotary", "interleaved", interleaved, qwen)
        self.interleaved = interleaved
        self._places: tuple[Tensor, Tensor] | None = None

    def at(self, queries: object, keys: object) -> "Rotary":
        """Return this encoding at explicit positions, (L,) for all samples or (B, L) for each.

        With ``sections``, positions are (A, L) or (A, B, L), where A is the number of axes. Left
        padding, trees of draft tokens and caches that drop old keys need explicit positions.
        """
        bound = copy.copy(self)
        axes = 0 if self.sections is None else 1
        bound._places = (_places(queries, "queries", axes), _places(keys, "keys", axes))
        return bound

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape | None) -> tuple[Tensor, Tensor]:
        (queries, keys), frequencies = self._where(q, k, shape), self.frequencies
        if frequencies.depends_on_length:
            frequencies = frequencies.at_length(self._length(q, k, shape))
        return self._turn(q, queries, frequencies), self._turn(k, keys, frequencies)

    def expected_sizes(self) -> dict[str, int]:
        return {"D": self.head_dim}

    def extra_repr(self) -> str:
        words = f'{self.head_dim}, pairs="{self.pairs}", rotary_dim={self.rotary_dim}'
        if type(self.frequencies) is not Frequencies:
            words += f", frequencies={self.frequencies}"
        if self.sections is not None:
            words += f", sections={self.sections}, interleaved={self.interleaved}"
        return words

    def _where(self, q: Tensor, k: Tensor, shape: AttentionShape | None) -> tuple[Tensor, Tensor]:
        if self._places is None:
            offset = k.shape[2] - q.shape[2] if shape is None else shape.offset
            keys = torch.arange(k.shape[2], device=k.device)
            return torch.arange(q.shape[2], device=q.device) + offset, keys
        for name, places, rows in zip(("queries", "keys"), self._places, (q, k), strict=True):
            axes = () if self.sections is None else (len(self.sections),)
            batch, length = rows.shape[0], rows.shape[2]
            if places.shape not in ((*axes, length), (*axes, batch, length)):
                raise BadValue(
                    "Rotary: expected positions of {name} of shape {shared} or {single}, got {got}",
                    name=name,
                    got=tuple(places.shape),
                    shared=(*axes, length),
                    single=(*axes, batch, length),
                )
        return self._places[0].to(q.device), self._places[1].to(k.device)

    def _length(self, q: Tensor, k: Tensor, shape: AttentionShape | None) -> Length:
        """Return the number of positions, from 0 to the last position of a query or key."""
        if self._places is None:
            offset = k.shape[2] - q.shape[2] if shape is None else shape.offset
            return max(k.shape[2], q.shape[2] + offset)
        last = [places.max() for places in self._places if places.numel()]
        return torch.stack(last).max() + 1 if last else 0

    def _axes(self, device: torch.device) -> Tensor:
        """Return the axis whose position rotates each pair, (pairs,)."""
        sections = torch.tensor(self.sections, device=device)
        if not self.interleaved:
            return torch.arange(len(sections), device=device).repeat_interleave(sections)
        pair = torch.arange(self.rotary_dim // 2, device=device)
        axis = pair % len(sections)
        return torch.where(pair < sections[axis] * len(sections), axis, 0)

    def _turn(self, rows: Tensor, places: Tensor, frequencies: Frequencies) -> Tensor:
        """Rotate rows (B, H, L, D) by the angles of their positions."""
        wide = torch.promote_types(rows.dtype, torch.float32)
        per_pair = frequencies.per_pair(self.rotary_dim, rows.device)
        by_pair = places.double()[..., None]
        if self.sections is not None and self._places is not None:
            by_pair = places.double()[self._axes(rows.device)].movedim(0, -1)
        angle = by_pair * per_pair
        if angle.dim() == 3:
            angle = angle[:, None]  # (B, 1, L, pairs)
        scale = frequencies.length_scale
        cos, sin = (angle.cos() * scale).to(wide), (angle.sin() * scale).to(wide)
        turned, rest = rows[..., : self.rotary_dim].to(wide), rows[..., self.rotary_dim :]
        if self.pairs == "halves":
            first, second = turned.chunk(2, -1)
        else:
            first, second = turned[..., 0::2], turned[..., 1::2]
        pair = (first * cos - second * sin, second * cos + first * sin)
        if self.pairs == "halves":
            joined = torch.cat(pair, -1)
        else:
            joined = torch.stack(pair, -1).flatten(-2)
        if not rest.shape[-1]:
            return joined.to(rows.dtype)
        return torch.cat((joined, rest.to(wide)), -1).to(rows.dtype)  # autocast cannot join dtypes


def _places(places: object, name: str, axes: int) -> Tensor:
    try:
        tensor = places if isinstance(places, Tensor) else torch.tensor(places)
    except (TypeError, ValueError, RuntimeError):  # the errors of torch do not name the argument
        raise BadType(
            "Rotary: {name} must be numbers (L,) or (B, L), got {got}", name=name, got=repr(places)
        ) from None
    if tensor.dim() - axes not in (1, 2) or tensor.is_complex() or tensor.dtype == torch.bool:
        shape = tuple(tensor.shape)
        raise BadValue(
            "Rotary: {name} must be numbers (L,) or (B, L), got {got}", name=name, got=shape
        )
    return tensor


def _sections(sections: Sequence[int], pairs: int) -> tuple[int, ...]:
    """Check that the numbers of pairs of the axes add up to ``pairs``, and return them."""
    listed = list(sections) if isinstance(sections, Sequence) else [sections]
    counts = tuple(check_integer("Rotary", "sections", count, 0) for count in listed)
    if sum(counts) != pairs:
        raise BadValue(
            "Rotary: the sum of sections must be rotary_dim / 2 = {pairs}, got {sections}; "
            "Qwen2-VL uses [16, 24, 24] for 64 pairs",
            pairs=pairs,
            sections=list(counts),
        )
    return counts

"""Rotary positions."""

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
    """Turns q and k by an angle that grows with the position, so that scores see distances only.

    Pair number p of ``rotary_dim / 2`` turns by position / base^(2p / rotary_dim). The angles are
    computed in float64 and the turn in float32 at least.

    Args:
        head_dim: D.
        pairs: which numbers form a pair. "halves": p and p + rotary_dim / 2, as in Llama and
            GPT-NeoX. "neighbours": 2p and 2p + 1, as in the paper and GPT-J.
        rotary_dim: how many numbers of a head are turned, from the first; None means all. A
            ``partial_rotary_factor`` of transformers is rotary_dim / head_dim.
        base: the longest wavelength over 2 pi; None means 10000.
        frequencies: the angles of the pairs in place of those of ``base``, such as `YaRN`; see
            `headwise.positions.frequencies`.
        sections: for positions of several axes, such as time, height and width, how many pairs turn
            by each axis; `at` then gives each token a position on each axis.
        interleaved: whether the axes take turns, t h w t h w ... t t, as in Qwen3-VL, rather than
            t ... t h ... h w ... w, as in Qwen2-VL.

    Raises:
        BadType, BadValue: if a size is no integer, rotary_dim is odd or above head_dim, base is not
            above 1, pairs is unknown, sections do not add up to rotary_dim / 2, or, when called, D
            or given positions do not fit.

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
                "Rotary: say which numbers form a pair: pairs='halves' (Llama, GPT-NeoX) "
                "or pairs='neighbours' (the paper, GPT-J); the wrong one is silent"
            )
        if pairs not in PAIRS:
            raise one_of("pairs", pairs, PAIRS)
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= head_dim:
            raise BadValue(
                "Rotary: rotary_dim must be even, from 2 to head_dim {head_dim}, got "
                "{rotary_dim}; an odd head turns all but its last number",
                head_dim=head_dim,
                rotary_dim=self.rotary_dim,
            )
        if frequencies is None:
            frequencies = Frequencies(check_base("Rotary", 10000.0 if base is None else base))
        elif not isinstance(frequencies, Frequencies):
            raise BadType(
                "Rotary: frequencies must be a Frequencies, got {got}; None takes those of base",
                got=type(frequencies).__name__,
            )
        elif base is not None:
            raise BadValue("Rotary: base and frequencies exclude each other; use Frequencies(base)")
        self.pairs, self.frequencies, self.base = pairs, frequencies, frequencies.base
        self.sections = None if sections is None else _sections(sections, self.rotary_dim // 2)
        qwen = Text("Qwen3-VL's axes take turns, Qwen2-VL's do not")
        check_boolean("Rotary", "interleaved", interleaved, qwen)
        self.interleaved = interleaved
        self._places: tuple[Tensor, Tensor] | None = None

    def at(self, queries: object, keys: object) -> "Rotary":
        """The same encoding at explicit positions, (L,) for all samples or (B, L) for each.

        With ``sections`` they are (A, L) or (A, B, L), A the number of axes. Left padding, trees of
        drafts and caches that drop old keys need this.
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
                    "Rotary: {name} have places {got}, expected {shared} or {single}",
                    name=name,
                    got=tuple(places.shape),
                    shared=(*axes, length),
                    single=(*axes, batch, length),
                )
        return self._places[0].to(q.device), self._places[1].to(k.device)

    def _length(self, q: Tensor, k: Tensor, shape: AttentionShape | None) -> Length:
        """The number of positions, from 0 to the last of a query or key."""
        if self._places is None:
            offset = k.shape[2] - q.shape[2] if shape is None else shape.offset
            return max(k.shape[2], q.shape[2] + offset)
        last = [places.max() for places in self._places if places.numel()]
        return torch.stack(last).max() + 1 if last else 0

    def _axes(self, device: torch.device) -> Tensor:
        """The axis by which each pair turns, (pairs,)."""
        sections = torch.tensor(self.sections, device=device)
        if not self.interleaved:
            return torch.arange(len(sections), device=device).repeat_interleave(sections)
        pair = torch.arange(self.rotary_dim // 2, device=device)
        axis = pair % len(sections)
        return torch.where(pair < sections[axis] * len(sections), axis, 0)

    def _turn(self, rows: Tensor, places: Tensor, frequencies: Frequencies) -> Tensor:
        """Rows (B, H, L, D) turned by the angles of their places."""
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
        return torch.cat((joined, rest.to(wide)), -1).to(rows.dtype)  # autocast mixes no halves


def _places(places: object, name: str, axes: int) -> Tensor:
    try:
        tensor = places if isinstance(places, Tensor) else torch.tensor(places)
    except (TypeError, ValueError, RuntimeError):  # of its many, none names the argument
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
    """The number of pairs of each axis, which add up to all pairs."""
    listed = list(sections) if isinstance(sections, Sequence) else [sections]
    counts = tuple(check_integer("Rotary", "sections", count, 0) for count in listed)
    if sum(counts) != pairs:
        raise BadValue(
            "Rotary: sections must add up to rotary_dim / 2 = {pairs}, got {sections}; Qwen2-VL "
            "has 16, 24 and 24 of 64",
            pairs=pairs,
            sections=list(counts),
        )
    return counts

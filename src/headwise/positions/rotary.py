"""Rotary positions."""

import copy

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue, one_of
from headwise.positions.position import Position, Stage, check_base
from headwise.shapes import AttentionShape, check_integer

PAIRS = ("halves", "neighbours")


class Frequencies:
    """The angle by which each pair of numbers turns from one position to the next.

    A scaled rotary position, such as YaRN, is a subclass with a `per_pair` of its own.

    Args:
        base: the longest wavelength over 2 pi.
    """

    length_scale = 1.0  # what the turned numbers are multiplied by

    def __init__(self, base: float = 10000.0) -> None:
        self.base = base

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        """Radians per position of each pair, (rotary_dim / 2,), in float64."""
        even = torch.arange(0, rotary_dim, 2, device=device, dtype=torch.float64)
        return self.base ** (-even / rotary_dim)


class Rotary(Position):
    """Turns q and k by an angle that grows with the position, so that scores see distances only.

    Pair number p of ``rotary_dim / 2`` turns by position / base^(2p / rotary_dim). The angles are
    computed in float64 and the turn in float32 at least.

    Args:
        head_dim: D.
        pairs: which numbers form a pair. "halves": p and p + rotary_dim / 2, as in Llama and
            GPT-NeoX. "neighbours": 2p and 2p + 1, as in the paper and GPT-J.
        rotary_dim: how many numbers of a head are turned, from the first; None means all.
        base: the longest wavelength over 2 pi; None means 10000.
        frequencies: the angles of the pairs in place of those of ``base``; see `Frequencies`.

    Raises:
        BadType, BadValue: if a size is no integer, rotary_dim is odd or above head_dim, base is not
            above 1, pairs is unknown, or, when called, D or given positions do not fit.

    Source: Su et al. 2021 (RoFormer), section 3.2.2.

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
        self._places: tuple[Tensor, Tensor] | None = None

    def at(self, queries: object, keys: object) -> "Rotary":
        """The same encoding at explicit positions, (L,) for all samples or (B, L) for each.

        Left padding and caches that drop old keys need this.
        """
        bound = copy.copy(self)
        bound._places = (_places(queries, "queries"), _places(keys, "keys"))
        return bound

    def content(self, q: Tensor, k: Tensor, shape: AttentionShape | None) -> tuple[Tensor, Tensor]:
        queries, keys = self._where(q, k, shape)
        return self._turn(q, queries), self._turn(k, keys)

    def expected_sizes(self) -> dict[str, int]:
        return {"D": self.head_dim}

    def extra_repr(self) -> str:
        words = f'{self.head_dim}, pairs="{self.pairs}", rotary_dim={self.rotary_dim}'
        scaled = type(self.frequencies) is not Frequencies
        return f"{words}, frequencies={self.frequencies}" if scaled else words

    def _where(self, q: Tensor, k: Tensor, shape: AttentionShape | None) -> tuple[Tensor, Tensor]:
        if self._places is None:
            offset = k.shape[2] - q.shape[2] if shape is None else shape.offset
            keys = torch.arange(k.shape[2], device=k.device)
            return torch.arange(q.shape[2], device=q.device) + offset, keys
        for name, places, rows in zip(("queries", "keys"), self._places, (q, k), strict=True):
            if places.shape[-1] != rows.shape[2] or places.shape[:-1] not in ((), rows.shape[:1]):
                raise BadValue(
                    "Rotary: {name} have places {got}, expected ({length},) or ({batch}, {length})",
                    name=name,
                    got=tuple(places.shape),
                    batch=rows.shape[0],
                    length=rows.shape[2],
                )
        return self._places[0].to(q.device), self._places[1].to(k.device)

    def _turn(self, rows: Tensor, places: Tensor) -> Tensor:
        """Rows (B, H, L, D) turned by the angles of their places."""
        wide = torch.promote_types(rows.dtype, torch.float32)
        per_pair = self.frequencies.per_pair(self.rotary_dim, rows.device)
        angle = places.double()[..., None] * per_pair
        if angle.dim() == 3:
            angle = angle[:, None]  # (B, 1, L, pairs)
        scale = self.frequencies.length_scale
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


def _places(places: object, name: str) -> Tensor:
    try:
        tensor = places if isinstance(places, Tensor) else torch.tensor(places)
    except (TypeError, ValueError, RuntimeError):  # of its many, none names the argument
        raise BadType(
            "Rotary: {name} must be numbers (L,) or (B, L), got {got}", name=name, got=repr(places)
        ) from None
    if tensor.dim() not in (1, 2) or tensor.is_complex() or tensor.dtype == torch.bool:
        shape = tuple(tensor.shape)
        raise BadValue(
            "Rotary: {name} must be numbers (L,) or (B, L), got {got}", name=name, got=shape
        )
    return tensor

"""Where a text repeats itself: other places of a token, and the period of the whole."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

NAMES = ("same", "earlier_same", "after", "earlier_after")
"""Keys by their pairs: other places of the query's token, those of them before the query, what
follows another place, and what follows one that stands before the query."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a query of a block and a kept key that it may attend to.

    Attributes:
        query: the query's number in B·R.
        place: the key's number among those kept.
        allowed: whether the query of each head may attend to it: (p, H or 1).
        before: whether the other place of the token stands before the query; None where all do.
    """

    query: Int[Tensor, " p"]
    place: Int[Tensor, " p"]
    allowed: Bool[Tensor, "p #h"]
    before: Bool[Tensor, " p"] | None

    @classmethod
    def none(cls, device: torch.device, heads: int) -> "Pairs":
        """No pair at all."""
        empty = torch.zeros(0, dtype=torch.int, device=device)
        return cls(empty, empty, empty.bool()[:, None].expand(0, heads), None)

    @classmethod
    def of(
        cls, allowed: Tensor, origin: int, tokens: Tensor, position: Tensor
    ) -> tuple["Pairs", "Pairs"]:
        """A query with other places of its token, and with what follows those.

        `headwise.heads.metrics.key_context.KeyContext` says what the arguments are.
        """
        length, kept = allowed.shape[2:]
        start = max(origin - 1, 0)  # what follows the key before the first one kept is kept
        known = tokens[:, start : origin + kept].long()
        text = torch.arange(len(known), device=known.device)[:, None] * (tokens.max().long() + 2)
        ordered, order = (known + text).flatten().sort(stable=True)  # apart by text
        own = tokens[:, position].long()
        wanted = (own + text).flatten()
        begin = torch.searchsorted(ordered, wanted)
        many = torch.searchsorted(ordered, wanted, right=True) - begin
        many = many.where(own.flatten() >= 0, 0)  # padding is no token
        query = torch.arange(len(wanted), device=known.device).repeat_interleave(many)
        within = torch.arange(len(query), device=known.device)
        within -= (many.cumsum(0) - many).repeat_interleave(many)
        key = order[begin[query] + within] % known.shape[1] + start
        other = key != position[query % length]
        query, key = query[other], key[other]
        before = key < position[query % length]
        same, after = (cls._allowed(allowed, query, key + by - origin, before) for by in (0, 1))
        return same, after

    @classmethod
    def _allowed(cls, allowed: Tensor, query: Tensor, place: Tensor, before: Tensor) -> "Pairs":
        """Of these pairs those that some head may attend to."""
        length, kept = allowed.shape[2:]
        inside = (place >= 0) & (place < kept)
        query, place, before = query[inside], place[inside], before[inside]
        seen = allowed[query // length, :, query % length, place]
        some = seen.any(-1)
        query, place, before, seen = query[some], place[some], before[some], seen[some]
        return cls(query.int(), place.int(), seen, None if bool(before.all()) else before)


def period(tokens: Int[Tensor, " n"]) -> int:
    """After how many tokens a text repeats itself, at least once in full; 0 if it does not.

    Example:
        >>> period(torch.tensor([7, 8, 9, 7, 8, 9, 7, -1]))
        3
    """
    tokens = tokens[: int((tokens >= 0).sum())]  # padding stands behind, as -1
    same = (tokens == tokens[:1]).nonzero().flatten().tolist()
    for by in same[1:]:
        if 2 * by > len(tokens):
            break
        if torch.equal(tokens[by:], tokens[:-by]):
            return int(by)
    return 0

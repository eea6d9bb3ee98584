"""A metric of heads, and the rows of attention weights that it is computed from."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.heads.metrics.key_context import NEAR, SIZE, KeyContext, by_block, onto
from headwise.heads.metrics.query_facts import Queries, concatenated, fact
from headwise.lang import Text

AT_ONCE = 1 << 17
"""How many numbers are held beside the weights: so few stay near the processor."""

RUN = 64
"""Of how many keys the largest weight is found first."""

SHARE = 10
"""Which part of the blocks of keys is few: a tenth."""

SMOOTH = 1e-4
"""What Clark et al. mix into each row before they take its entropy."""

Sums = tuple[Tensor, Tensor]
"""What is summed over queries, and what it is divided by: each broadcasts to (B, H, R)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Queries):
    """Attention weights of a block of queries: what a metric is given.

    Attributes:
        weights: (B, H, R, K), 0 where not allowed; rows sum to 1, or less beside a learned sink.
        context: what the queries are offered.
        scores: (B, H, R, K), finite, whose softmax, over keys and sinks, the weights are; or None.
            The entropy uses them up.
    """

    weights: Float[Tensor, "b h r k"]
    context: KeyContext
    scores: Float[Tensor, "b h r k"] | None = None

    @property
    def shape(self) -> torch.Size:
        """B, H, R."""
        return self.weights.shape[:3]

    @property
    def uniform(self) -> "Rows":
        """The same rows of a head that attends to every allowed key alike: the baseline, H = 1."""
        context, allowed = self.context, self.context.allowed
        if allowed.shape[1] > 1:
            allowed = allowed.any(1, keepdim=True)  # (B, 1, R, K)
            context = replace(context, allowed=allowed)
        share = allowed.to(self.weights.dtype)
        share /= share.sum(-1, keepdim=True).clamp(min=1)
        return Rows(weights=share, context=context)

    def without_inputs(self, names: Collection[str]) -> "Rows":
        """The same without the weights: facts of those names remain."""
        none = self.weights.new_zeros(1).expand(self.weights.shape)
        context, known = self.context.without_inputs(names), self.facts(names)
        return Rows(weights=none, context=context, facts_only=True).with_facts(known)

    @classmethod
    def concatenated(
        cls, parts: Sequence["Rows"], context: KeyContext, names: Collection[str]
    ) -> "Rows":
        """The rows of blocks of one text, one behind the other, with the facts of those names.

        Args:
            parts: the blocks.
            context: what all of them are offered.
            names: of facts.
        """
        facts = concatenated([part.facts(names) for part in parts])
        shape = (*parts[0].shape[:2], context.counts.shape[1], 0)
        none = parts[0].weights.new_zeros(shape)
        return cls(weights=none, context=context, facts_only=True).with_facts(facts)

    @property
    def nothing(self) -> Sums:
        """What a metric gives that none of these queries can show."""
        zeros = self.weights.new_zeros(self.shape)
        return zeros, torch.zeros_like(self.context.queries)

    @fact
    def mass(self) -> Float[Tensor, "b h r"]:
        """What each query gives to all keys: 1, or less beside a learned sink."""
        return self.weights.sum(-1)

    @fact
    def entropy(self) -> Float[Tensor, "b h r"]:
        """-Σ_j A log A of each row in nats, where 0 log 0 is 0.

        With scores s, and m that of the largest weight a, it is Σ_j A (m - s) - log a Σ_j A: no
        weight has a logarithm of its own, and no term is negative, so that nothing cancels.

        Example:
            >>> allowed = torch.ones(1, 1, 1, 3, dtype=torch.bool)
            >>> here, first = torch.ones(1, 1, dtype=torch.bool), torch.tensor([0])
            >>> context = KeyContext(allowed=allowed, counts=here, position=None, first=first)
            >>> rows = Rows(weights=torch.tensor([[[[0.5, 0.5, 0.0]]]]), context=context)
            >>> rows.entropy.item() == torch.tensor(2.0).log().item()
            True
        """
        least = torch.finfo(self.weights.dtype).tiny  # the logarithm of 0 times 0 is NaN
        if self.scores is not None:
            largest, key = self.most
            top = self.scores.gather(-1, (key - self.context.origin)[..., None])
            below = self.scores.sub_(top).mul_(self.weights).sum(-1)
            return -below - largest.clamp(min=least).log() * self.mass
        if not self.weights.shape[2]:
            return self.weights.sum(-1)
        parts = torch.split(self.weights, self._few, 2)
        sums = [some.clamp(min=least).log_().mul_(some).sum(-1) for some in parts]
        return -torch.cat(sums, -1)

    @property
    def _few(self) -> int:
        """Of how many queries some numbers may be held beside the weights."""
        batch, heads, _, keys = self.weights.shape
        return max(1, AT_ONCE // max(1, batch * heads * keys))

    @fact
    def most(self) -> tuple[Float[Tensor, "b h r"], Int[Tensor, "b h r"]]:
        """The largest weight of each row, and the key it lies on: the first, if there are several.

        The largest of each run of keys is found first, since finding where it is costs more.
        """
        weights, origin = self.weights, self.context.origin
        runs = weights.shape[-1] // RUN
        if runs < 2:
            value, key = weights.max(-1)
            return value, key + origin
        largest = weights[..., : runs * RUN].view(*self.shape, runs, RUN).amax(-1)
        run = largest.argmax(-1, keepdim=True)  # (B, H, R, 1)
        value = largest.gather(-1, run)[..., 0]
        inside = run * RUN + torch.arange(RUN, device=run.device)
        key = weights.gather(-1, inside).argmax(-1) + run[..., 0] * RUN
        if runs * RUN < weights.shape[-1]:
            rest, place = weights[..., runs * RUN :].max(-1)
            key = torch.where(rest > value, place + runs * RUN, key)
            value = rest.maximum(value)
        return value, key + origin

    @fact
    def single(self) -> Float[Tensor, "b h r n"]:
        """The weight on each of the keys that are looked up one by one, 0 where not allowed."""
        index, _ = self.context.singles
        found = self.weights.gather(-1, index.expand(-1, self.weights.shape[1], -1, -1))
        return found.mul_(self.context.single)

    @property
    def near(self) -> Float[Tensor, "b h r n"]:
        """Weights at -NEAR to +NEAR tokens from each query, 0 where not allowed.

        With no positions there are none: the last axis has length 0.
        """
        return self.single[..., :-2]

    @property
    def on_first(self) -> Float[Tensor, "b h r"]:
        """The weight on the first real key."""
        return self.single[..., -2]

    @property
    def on_stripe(self) -> Float[Tensor, "b h r"]:
        """The weight on what followed the query's token one period ago."""
        return self.single[..., -1]

    @cached_property
    def _columns(self) -> dict[str, Tensor]:
        """What weights are summed by, each (B, K): sets of keys, and keys' distances."""
        (batch, *_, keys), dtype = self.weights.shape, self.weights.dtype
        found = {name: column.to(dtype) for name, column in self.context.columns.items()}
        if self.context.position is not None:
            start, stop = self.context.span
            place = torch.arange(keys, dtype=dtype, device=self.weights.device)
            sides = (("behind", start - place), ("ahead", place - (stop - 1)))
            for (name, away), some in zip(sides, self.context.beyond, strict=True):
                if some:
                    away.clamp_(min=0)
                    found[name] = away.clamp(max=1).expand(batch, -1)
                    found[f"{name} distance"] = away.expand(batch, -1)
                    found[f"{name} square"] = away.square().expand(batch, -1)
        return found

    @cached_property
    def _sums(self) -> dict[str, Tensor]:
        """The sum of each row by each column, (B, H, R), in one pass over the weights."""
        columns = torch.stack(list(self._columns.values()), 1)  # (B, m, K)
        found = onto(self.weights, columns).unbind(-1)
        return dict(zip(self._columns, found, strict=True))

    @fact
    def distances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Σ_j A |i - j|, Σ_j A (j - i), Σ_j A (i - j)² and Σ_{j<i} A of each row, (B, H, R) each.

        Keys before the block lie (i - start) + (start - j) away, so that sums over them need no
        distance of their own for each pair; keys beside its queries are measured one by one.
        """
        if self.context.position is None:
            return (self.weights.new_zeros(self.shape),) * 4
        (start, stop), dtype = self.context.span, self.weights.dtype
        position = self.context.position - self.context.origin
        beside = self.weights[..., start:stop]
        places = torch.arange(start, stop, device=beside.device)
        apart = (places - position[:, None]).to(dtype)  # (R, n)
        away, signed, square, before = (
            (beside * factor).sum(-1)
            for factor in (apart.abs(), apart, apart.square(), (apart < 0).to(dtype))
        )
        sides = (("behind", position - start, -1), ("ahead", stop - 1 - position, 1))
        for name, extra, sign in sides:
            if name not in self._sums:  # nobody may attend there
                continue
            mass, far = self._sums[name], self._sums[f"{name} distance"]
            squares = self._sums[f"{name} square"]
            offset = extra.to(dtype)
            further = far + mass * offset
            away = away + further
            signed = signed + sign * further
            square = square + squares + 2 * offset * far + offset.square() * mass
            before = before + mass if name == "behind" else before
        return away, signed, square, before

    @fact
    def sets(self) -> dict[str, Float[Tensor, "b h r"]]:
        """The weight on the keys of each set that is known."""
        return {name: self._sums[name] for name in self.context.columns}

    def on(self, name: str) -> Sums:
        """For each query the weight on a named set of keys, and whether it may attend to one.

        Args:
            name: "plain", "separators" (after the first token) or "punctuation".
        """
        if name not in self.sets:
            return self.nothing
        offered = (self.context.sets[name] > 0) & self.context.queries
        return self.sets[name] * offered, offered

    @fact
    def blocks(self) -> Float[Tensor, "b h r"]:
        """The weight on the heaviest tenth of the blocks of keys that a query may attend to."""
        ones = self.weights.new_ones(SIZE)
        sums = by_block(self.weights, self.context.origin) @ ones  # (B, H, R, blocks)
        most = -(-sums.shape[-1] // SHARE)
        fewer = most + self.context.blocks.neg() // SHARE  # (B, H or 1, R)
        if bool((fewer > 1).any()):
            heaviest = sums.topk(most, -1).values
            taken = torch.arange(most, device=fewer.device) < most - fewer[..., None]
            return (heaviest * taken).sum(-1)
        heaviest = sums.topk(most, -1, sorted=False).values  # queries that see about as much
        return heaviest.sum(-1) - heaviest.amin(-1) * fewer

    @fact
    def smoothed(self) -> Float[Tensor, "b h r"]:
        """The entropy of each row with `SMOOTH` spread over all keys of the text."""
        kept, length = self.weights.shape[-1], self.context.total
        least = self.weights.new_tensor(SMOOTH / length)
        terms: Tensor = torch.special.entr((1 - SMOOTH) * self.weights + least)
        elsewhere: Tensor = (length - kept) * torch.special.entr(least)
        return terms.sum(-1) + elsewhere

    @fact
    def segment(self) -> Float[Tensor, "b h r"]:
        """The weight on the part between separators that the query is in."""
        return (self.weights * self.context.own_part).sum(-1)

    @fact
    def received(self) -> Float[Tensor, "b h r t"]:
        """What each of the first `EARLY` keys gets from each early query, where allowed."""
        return self.context.first_keys(self.weights) * self.context.received

    @fact
    def repeats(self) -> dict[str, Float[Tensor, "b h r"]]:
        """The weight on the keys of each of `repeats.NAMES`."""
        weights, length = self.weights, self.shape[2]
        return self.context.by_pair(
            lambda query, place: weights[query // length, :, query % length, place]
        )

    def on_repeats(self, name: str) -> Sums:
        """For each query the weight on one of `repeats.NAMES`, and whether it has such a key.

        Nothing where tokens are unknown, or queries and keys are different texts.
        """
        counted = (self.context.repeats[name] > 0) & self.context.queries
        return self.repeats[name] * counted, counted

    def shifted(self, by: int) -> Sums:
        """For each query the weight on the key ``by`` places after it, and whether it may attend.

        At most `NEAR` places; nothing counts without positions.
        """
        if self.context.position is None:
            return self.nothing
        counted = self.context.near[..., NEAR + by] & self.context.queries
        return self.near[..., NEAR + by] * counted, counted


@dataclass(frozen=True)
class Metric:
    """One measure of a head.

    A head's value is the sum of the first of `sums` over all queries of all texts, divided by the
    sum of the second; NaN where that is 0, because no query could show it.

    Attributes:
        name: one word, as in JSON.
        label: the same for a person, as at the head of a table's column.
        title: what it is, for a person.
        formula: how it is computed, with A the weights, i a query and j a key.
        source: which published variant this is.
        share: whether it is a share of the attention, from 0 to 1, that a head may stand out by.
        reads: the facts of `Rows` and of its `KeyContext` that ``sums`` looks at.
        sums: the numerator and the denominator for each query.
    """

    name: str
    label: Text
    title: Text
    formula: Text
    source: Text
    share: bool
    reads: tuple[str, ...]
    sums: Callable[[Rows], Sums]


def totals(metrics: Sequence[Metric], rows: Rows) -> Tensor:
    """Numerators and denominators summed over batch and queries, (2, metrics, H) in float64.

    A query that does not count contributes to neither.
    """
    counted, shape = rows.context.queries, rows.shape
    sums = [
        torch.where(counted, part, 0.0).expand(shape).sum((0, 2), dtype=torch.float64)
        for metric in metrics
        for part in metric.sums(rows)
    ]
    return torch.stack(sums).view(-1, 2, shape[1]).transpose(0, 1)


def total(metric: Metric, rows: Rows) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of one metric, each (H,) in float64."""
    above, below = totals((metric,), rows)[:, 0]
    return above, below


__all__ = ["Metric", "Rows", "Sums", "total", "totals"]

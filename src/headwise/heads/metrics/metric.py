"""A metric of heads, and the rows of attention weights that it is computed from."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.engines.statistics import row_entropy
from headwise.heads.metrics.key_context import NEAR, SIZE, KeyContext, by_block, onto
from headwise.heads.metrics.query_facts import Queries, concatenated, fact
from headwise.lang import Text

AT_ONCE = 1 << 17  # numbers that the entropy copies at once, to stay in the processor's cache
RUN = 64  # keys per run: the largest weight of each run is found first
SHARE = 10  # the heaviest blocks are one in this many
SMOOTH = 1e-4  # the share of a uniform head that Clark et al. mix into each row for its entropy
Sums = tuple[Tensor, Tensor]  # numerator and denominator of each query; both broadcast to (B, H, R)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Queries):
    """Attention weights of a block of queries: the input of a metric.

    Attributes:
        weights: (B, H, R, K), 0 where not allowed; rows sum to 1, or less beside a learned sink.
        context: the keys that the queries may attend to.
        scores: (B, H, R, K), finite, whose softmax over keys and sinks gives the weights; or None.
            `entropy` overwrites them.
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
        """The rows of a head that attends equally to every allowed key: the baseline, H = 1."""
        context, allowed = self.context, self.context.allowed
        if allowed.shape[1] > 1:
            allowed = allowed.any(1, keepdim=True)  # (B, 1, R, K)
            context = replace(context, allowed=allowed)
        share = allowed.to(self.weights.dtype)
        share /= share.sum(-1, keepdim=True).clamp(min=1)
        return Rows(weights=share, context=context)

    def without_inputs(self, names: Collection[str]) -> "Rows":
        """These rows with the facts of these names, but not the weights."""
        none = self.weights.new_zeros(1).expand(self.weights.shape)
        context, facts = self.context.without_inputs(names), self.facts(names)
        return Rows(weights=none, context=context, facts_only=True).with_facts(facts)

    @classmethod
    def concatenated(
        cls, parts: Sequence["Rows"], context: KeyContext, names: Collection[str]
    ) -> "Rows":
        """The rows of consecutive blocks of one text, with the facts of these names."""
        facts = concatenated([part.facts(names) for part in parts])
        none = parts[0].weights.new_zeros(*parts[0].shape[:2], context.counts.shape[1], 0)
        return cls(weights=none, context=context, facts_only=True).with_facts(facts)

    @property
    def nothing(self) -> Sums:
        """The sums of a metric that none of these queries can show."""
        zeros = self.weights.new_zeros(self.shape)
        return zeros, torch.zeros_like(self.context.queries)

    @fact
    def mass(self) -> Float[Tensor, "b h r"]:
        """The sum of each row: 1, or less beside a learned sink."""
        return self.weights.sum(-1)

    @fact
    def entropy(self) -> Float[Tensor, "b h r"]:
        """-Σ_j A log A of each row in nats, where 0 log 0 is 0.

        With scores s, and m the score of the largest weight a, it is Σ_j A (m - s) - log a Σ_j A:
        one logarithm for each row, and no negative term, so that nothing cancels.

        Example:
            >>> allowed = torch.ones(1, 1, 1, 3, dtype=torch.bool)
            >>> here, first = torch.ones(1, 1, dtype=torch.bool), torch.tensor([0])
            >>> context = KeyContext(allowed=allowed, counts=here, position=None, first=first)
            >>> rows = Rows(weights=torch.tensor([[[[0.5, 0.5, 0.0]]]]), context=context)
            >>> rows.entropy.item() == torch.tensor(2.0).log().item()
            True
        """
        if self.scores is not None:
            largest, key = self.most
            least = torch.finfo(largest.dtype).tiny  # a row without weights has entropy 0
            top = self.scores.gather(-1, (key - self.context.origin)[..., None])
            below = self.scores.sub_(top).mul_(self.weights).sum(-1)
            return -below - largest.clamp(min=least).log() * self.mass
        if not self.weights.shape[2]:
            return self.weights.sum(-1)
        batch, heads, _, keys = self.weights.shape
        rows = max(1, AT_ONCE // max(1, batch * heads * keys))
        parts = torch.split(self.weights, rows, 2)
        return torch.cat([row_entropy(part) for part in parts], -1)

    @fact
    def most(self) -> tuple[Float[Tensor, "b h r"], Int[Tensor, "b h r"]]:
        """The largest weight of each row, and the number of its key: the first of several.

        The maximum of each run of keys is found first, since ``argmax`` is slower than ``amax``.
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
        """The weight on each of the context's `singles`, 0 where not allowed."""
        index = self.context.singles[0].expand(-1, self.weights.shape[1], -1, -1)
        return self.weights.gather(-1, index).mul_(self.context.single)

    @property
    def near(self) -> Float[Tensor, "b h r n"]:
        """Weights at -NEAR to +NEAR tokens from each query; without positions the axis is empty."""
        return self.single[..., :-2]

    def on_single(self, index: int) -> Sums:
        """For each query the weight on one of its `singles`, and whether it may attend to it."""
        allowed = self.context.single[..., index] & self.context.queries
        return averaged(self.single[..., index], allowed)

    @cached_property
    def _columns(self) -> dict[str, Tensor]:
        """Factors (B, K) of the sums over a row: sets of keys, and distances from the span."""
        (batch, *_, keys), dtype = self.weights.shape, self.weights.dtype
        columns = {name: column.to(dtype) for name, column in self.context.columns.items()}
        if self.context.position is not None:
            start, stop = self.context.span
            place = torch.arange(keys, dtype=dtype, device=self.weights.device)
            sides = (("behind", start - place), ("ahead", place - (stop - 1)))
            for (name, away), some in zip(sides, self.context.beyond, strict=True):
                if some:
                    away.clamp_(min=0)
                    columns[name] = away.clamp(max=1).expand(batch, -1)
                    columns[f"{name} distance"] = away.expand(batch, -1)
                    columns[f"{name} square"] = away.square().expand(batch, -1)
        return columns

    @cached_property
    def _sums(self) -> dict[str, Tensor]:
        """The sum of each row by each column, (B, H, R), in one pass over the weights."""
        columns = torch.stack(list(self._columns.values()), 1)  # (B, m, K)
        return dict(zip(self._columns, onto(self.weights, columns).unbind(-1), strict=True))

    @fact
    def distances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Σ_j A |i - j|, Σ_j A (j - i), Σ_j A (i - j)² and Σ_{j<i} A of each row, (B, H, R) each.

        Only keys in the span [start, stop) need a distance for each pair. A key before it is
        (i - start) + (start - j) away, so one sum over (start - j) serves every query.
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
            if name not in self._sums:  # no query may attend there
                continue
            kinds = (name, f"{name} distance", f"{name} square")
            mass, far, squares = (self._sums[kind] for kind in kinds)
            offset = extra.to(dtype)
            further = far + mass * offset
            away = away + further
            signed = signed + sign * further
            square = square + squares + 2 * offset * far + offset.square() * mass
            before = before + mass if name == "behind" else before
        return away, signed, square, before

    @fact
    def sets(self) -> dict[str, Float[Tensor, "b h r"]]:
        """The weight on each set of keys."""
        return {name: self._sums[name] for name in self.context.columns}

    def on(self, name: str) -> Sums:
        """For each query the weight on a named set of keys, and whether it may attend to one.

        The name is "plain", "separators" (after the first token) or "punctuation".
        """
        if name not in self.sets:
            return self.nothing
        return averaged(self.sets[name], (self.context.sets[name] > 0) & self.context.queries)

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
        heaviest = sums.topk(most, -1, sorted=False).values  # at most one is too many: the least
        return heaviest.sum(-1) - heaviest.amin(-1) * fewer

    @fact
    def smoothed(self) -> Float[Tensor, "b h r"]:
        """The entropy of each row with `SMOOTH` spread over all keys of the text."""
        left_out = self.context.total - self.weights.shape[-1]
        least = self.weights.new_tensor(SMOOTH / self.context.total)
        terms: Tensor = torch.special.entr((1 - SMOOTH) * self.weights + least)
        elsewhere: Tensor = left_out * torch.special.entr(least)
        return terms.sum(-1) + elsewhere

    @fact
    def segment(self) -> Float[Tensor, "b h r"]:
        """The weight on the part between separators that the query is in."""
        return (self.weights * self.context.own_part).sum(-1)

    @fact
    def received(self) -> Float[Tensor, "b h r t"]:
        """The weight of each early query on each of the first `EARLY` keys."""
        return self.context.first_keys(self.weights) * self.context.received

    @fact
    def repeats(self) -> dict[str, Float[Tensor, "b h r"]]:
        """The weight on the keys of each of `query_facts.NAMES`."""
        weights, length = self.weights, self.shape[2]
        return self.context.by_pair(lambda row, key: weights[row // length, :, row % length, key])

    def on_repeats(self, name: str) -> Sums:
        """As `on`, for one of the kinds of keys in `query_facts.NAMES`."""
        counted = (self.context.repeats[name] > 0) & self.context.queries
        return averaged(self.repeats[name], counted)

    def shifted(self, by: int) -> Sums:
        """As `on_single`, for the key ``by`` tokens after each query, at most `NEAR`."""
        return self.nothing if self.context.position is None else self.on_single(NEAR + by)


@dataclass(frozen=True)
class Metric:
    """One measure of a head.

    A head's value is the sum of the first of `sums` over all queries of all texts, divided by the
    sum of the second; NaN where that is 0, because no query could show it.

    Attributes:
        name: one word, as in JSON.
        label: the name at the head of a table's column.
        title: what it measures.
        formula: how it is computed, with A the weights, i a query and j a key.
        source: which published variant this is.
        reads: the facts of `Rows` and of its `KeyContext` that ``sums`` uses.
        sums: the numerator and the denominator for each query.
        share: whether it is a share of the attention, from 0 to 1, that a head may stand out by.
    """

    name: str
    label: Text
    title: Text
    formula: Text
    source: Text
    reads: tuple[str, ...]
    sums: Callable[[Rows], Sums]
    share: bool = False


def averaged(value: Tensor, queries: Tensor) -> Sums:
    """The sums of a mean: a value of each query, and which queries count."""
    return value * queries, queries


def with_positions(sums: Callable[[Rows], Sums]) -> Callable[[Rows], Sums]:
    """The same sums, but nothing where queries and keys are different texts (cross-attention)."""
    return lambda rows: rows.nothing if rows.context.position is None else sums(rows)


def totals(metrics: Sequence[Metric], rows: Rows) -> Tensor:
    """Numerators and denominators summed over the queries that count: (2, metrics, H), float64."""
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

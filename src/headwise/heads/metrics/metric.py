"""The class of a metric of heads, and the rows of attention weights from which it is computed."""

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

AT_ONCE = 1 << 17  # the most numbers that the entropy copies at once, to fit the processor's cache
RUN = 64  # the number of keys of a run in the search for the largest weight
SHARE = 10  # one of this many blocks counts as heaviest
SMOOTH = 1e-4  # the share of a uniform head that Clark et al. 2019 add to each row for its entropy
Sums = tuple[Tensor, Tensor]  # numerator and denominator per query; both broadcast to (B, H, R)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Queries):
    """Attention weights of a block of queries: the input of a metric.

    Attributes:
        weights: (B, H, R, K), 0 where not allowed; rows sum to 1, or to less with a learned sink.
        context: the keys that the queries may attend to.
        scores: (B, H, R, K), the finite scores whose softmax over keys and sinks is the weights, or
            None. `entropy` overwrites the scores.
    """

    weights: Float[Tensor, "b h r k"]
    context: KeyContext
    scores: Float[Tensor, "b h r k"] | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape (B, H, R)."""
        return self.weights.shape[:3]

    @property
    def uniform(self) -> "Rows":
        """The rows of the baseline, H = 1: a head that attends equally to every allowed key."""
        context, allowed = self.context, self.context.allowed
        if allowed.shape[1] > 1:
            allowed = allowed.any(1, keepdim=True)  # (B, 1, R, K)
            context = replace(context, allowed=allowed)
        share = allowed.to(self.weights.dtype)
        share /= share.sum(-1, keepdim=True).clamp(min=1)
        return Rows(weights=share, context=context)

    def without_inputs(self, names: Collection[str]) -> "Rows":
        """Return these rows without the weights, but with the facts of these names."""
        none = self.weights.new_zeros(1).expand(self.weights.shape)
        context, facts = self.context.without_inputs(names), self.facts(names)
        return Rows(weights=none, context=context, facts_only=True).with_facts(facts)

    @classmethod
    def concatenated(
        cls, parts: Sequence["Rows"], context: KeyContext, names: Collection[str]
    ) -> "Rows":
        """Return the rows of consecutive blocks of one text, with the facts of these names."""
        facts = concatenated([part.facts(names) for part in parts])
        none = parts[0].weights.new_zeros(*parts[0].shape[:2], context.counts.shape[1], 0)
        return cls(weights=none, context=context, facts_only=True).with_facts(facts)

    @property
    def nothing(self) -> Sums:
        """The sums of a metric that is undefined for all of these queries."""
        zeros = self.weights.new_zeros(self.shape)
        return zeros, torch.zeros_like(self.context.queries)

    @fact
    def mass(self) -> Float[Tensor, "b h r"]:
        """The sum of each row: 1, or less with a learned sink."""
        return self.weights.sum(-1)

    @fact
    def entropy(self) -> Float[Tensor, "b h r"]:
        """The entropy -Σ_j A log A of each row in nats, where 0 log 0 is 0.

        For scores s and the score m of the largest weight a, it equals Σ_j A (m - s) - log a Σ_j A.
        This takes one logarithm for each row and has no negative term that could cancel.

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
        """The largest weight of each row, and the number of its first key with that weight.

        It is found by the maximum of each run of keys, since ``amax`` is faster than ``argmax``.
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
        """The weight on each of the `singles` of the context, 0 where not allowed."""
        index = self.context.singles[0].expand(-1, self.weights.shape[1], -1, -1)
        return self.weights.gather(-1, index).mul_(self.context.single)

    @property
    def near(self) -> Float[Tensor, "b h r n"]:
        """The weights at distances -NEAR to NEAR from each query; empty without positions."""
        return self.single[..., :-2]

    def on_single(self, index: int) -> Sums:
        """Return for each query the weight on a `singles` key, and whether the key is allowed."""
        allowed = self.context.single[..., index] & self.context.queries
        return averaged(self.single[..., index], allowed)

    @cached_property
    def _columns(self) -> dict[str, Tensor]:
        """The factors (B, K) of sums over a row: sets of keys, and distances from the span."""
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
        """The product of each row with each column, (B, H, R), in one pass over the weights."""
        columns = torch.stack(list(self._columns.values()), 1)  # (B, m, K)
        return dict(zip(self._columns, onto(self.weights, columns).unbind(-1), strict=True))

    @fact
    def distances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The sums Σ_j A |i - j|, Σ_j A (j - i), Σ_j A (i - j)², Σ_{j<i} A of rows, (B, H, R) each.

        Only keys in the span [start, stop) need a distance for each pair. The distance of a key
        before the span is (i - start) + (start - j), and Σ_j A (start - j) is one of the `_sums`.
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
            if name not in self._sums:  # no query may attend to keys on this side
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
        """The weight on each named set of keys."""
        return {name: self._sums[name] for name in self.context.columns}

    def on(self, name: str) -> Sums:
        """Return for each query the weight on a set of keys, and whether a key of it is allowed.

        The name is "plain", "separators" (without the first token) or "punctuation".
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
        heaviest = sums.topk(most, -1, sorted=False).values  # at most one too many: the least
        return heaviest.sum(-1) - heaviest.amin(-1) * fewer

    @fact
    def smoothed(self) -> Float[Tensor, "b h r"]:
        """The entropy of each row after spreading `SMOOTH` over all keys of the text."""
        left_out = self.context.total - self.weights.shape[-1]
        least = self.weights.new_tensor(SMOOTH / self.context.total)
        terms: Tensor = torch.special.entr((1 - SMOOTH) * self.weights + least)
        elsewhere: Tensor = left_out * torch.special.entr(least)
        return terms.sum(-1) + elsewhere

    @fact
    def segment(self) -> Float[Tensor, "b h r"]:
        """The weight on the segment of the query."""
        return (self.weights * self.context.own_part).sum(-1)

    @fact
    def received(self) -> Float[Tensor, "b h r t"]:
        """The weight of each early query on each of the first `EARLY` keys."""
        return self.context.first_keys(self.weights) * self.context.received

    @fact
    def repeats(self) -> dict[str, Float[Tensor, "b h r"]]:
        """The weight on the keys of each kind in `query_facts.NAMES`."""
        weights, length = self.weights, self.shape[2]
        return self.context.by_pair(lambda row, key: weights[row // length, :, row % length, key])

    def on_repeats(self, name: str) -> Sums:
        """Return the same as `on`, for a kind of keys in `query_facts.NAMES`."""
        counted = (self.context.repeats[name] > 0) & self.context.queries
        return averaged(self.repeats[name], counted)

    def shifted(self, by: int) -> Sums:
        """Return the same as `on_single`, for the key ``by`` tokens after each query."""
        return self.nothing if self.context.position is None else self.on_single(NEAR + by)


@dataclass(frozen=True)
class Metric:
    """A metric of heads.

    The value of a head is Σ numerators / Σ denominators over all queries of all texts; NaN if the
    denominator is 0, because the metric is undefined for all queries.

    Attributes:
        name: the name as one word, as in JSON.
        label: the name as the head of a table column.
        title: what the metric measures.
        formula: the formula, with A the weights, i a query and j a key.
        source: the publication, and differences from it.
        reads: the facts of `Rows` and of its `KeyContext` that ``sums`` reads.
        sums: a function that returns the numerator and the denominator for each query.
        share: whether it is a share of the attention, from 0 to 1, for `highlights`.
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
    """Return the sums of a mean, from the value of each query and the queries that count."""
    return value * queries, queries


def with_positions(sums: Callable[[Rows], Sums]) -> Callable[[Rows], Sums]:
    """Make sums undefined if queries and keys are different texts, as in cross-attention."""
    return lambda rows: rows.nothing if rows.context.position is None else sums(rows)


def totals(metrics: Sequence[Metric], rows: Rows) -> Tensor:
    """Sum numerators and denominators over the queries that count: (2, metrics, H) in float64."""
    counted, shape = rows.context.queries, rows.shape
    sums = [
        torch.where(counted, part, 0.0).expand(shape).sum((0, 2), dtype=torch.float64)
        for metric in metrics
        for part in metric.sums(rows)
    ]
    return torch.stack(sums).view(-1, 2, shape[1]).transpose(0, 1)


def total(metric: Metric, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the numerator and the denominator of one metric, each (H,) in float64."""
    above, below = totals((metric,), rows)[:, 0]
    return above, below

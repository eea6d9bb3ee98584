"""A job: one multi-head attention with its projections, inputs and mask."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headwise.masks import Mask, full
from headwise.positions import Position
from headwise.shapes import Allowed, AttentionShape


@dataclass(frozen=True, eq=False)
class Weights:
    """The projections as in PyTorch, where y = x Wᵀ + b.

    q is (H D, E), k is (G D, E), v is (G Dv, E), and out is (E, H Dv), or None if there is no
    output projection. A bias has one number per row of its weight matrix, or is None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor | None
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    out_bias: Tensor | None = None

    def named(self) -> dict[str, Tensor]:
        """Return the weights that are not None, by name."""
        return {f.name: t for f in fields(self) if (t := getattr(self, f.name)) is not None}

    def without(self, names: Collection[str]) -> "Weights":
        """Return the weights without some biases, or without the output projection."""
        absent: dict[str, Any] = dict.fromkeys(names)
        return replace(self, **absent)

    def map(self, change: Callable[[Tensor], Tensor], letters: str = "qkvo") -> "Weights":
        """Apply a change to the weights whose names start with one of the letters."""
        named = self.named().items()
        return replace(self, **{name: change(t) for name, t in named if name[0] in letters})

    def shared(self, heads: int, groups: int) -> "Weights":
        """Return the weights with only the first G of H key/value heads."""
        return self.map(lambda t: t[: t.shape[0] // heads * groups], "kv")

    def spread(self, heads: int, groups: int) -> "Weights":
        """Return the weights with the key/value heads repeated for every query head."""

        def repeated(t: Tensor) -> Tensor:
            by_group = t.reshape(groups, -1, *t.shape[1:])
            return by_group.repeat_interleave(heads // groups, 0).flatten(0, 1)

        return self.map(repeated, "kv")


@dataclass(frozen=True, eq=False)
class StepContext:
    """The values that all steps share; `weights` is None if there are no projections."""

    shape: AttentionShape
    mask: Mask
    scale: float
    embed_dim: int
    groups: int
    dropout: float = 0.0
    training: bool = False
    weights: Weights | None = None
    position: Position | None = None

    @cached_property
    def allowed(self) -> Allowed:
        """True where a query may attend, (B, H, Lq, Lk)."""
        dense = self.mask.dense(self.shape)
        return dense.expand(self.shape.batch, self.shape.heads, -1, -1)

    @cached_property
    def bias(self) -> Tensor | None:
        """The bias that the mask adds to the scores, or None."""
        return self.mask.resolve(self.shape).bias(*self.shape.indices())

    def position_bias(self, scores: Tensor) -> Tensor | None:
        """The bias of the position on the scores (B, H, Lq, Lk), or None."""
        if self.position is None:
            return None
        queries, keys = self.shape.queries, self.shape.keys
        query = torch.arange(queries, device=scores.device) + self.shape.offset
        key = torch.arange(keys, device=scores.device)
        return self.position.bias(scores, query, key, self.scale)

    @property
    def projections(self) -> Weights:
        """The projections; an error if this run has none."""
        if self.weights is None:
            raise RuntimeError("steps: this run has no projections")
        return self.weights


@dataclass(frozen=True, eq=False)
class Job:
    """A multi-head attention with projections, for query (B, Lq, E) and key, value (B, Lk, E).

    Attributes:
        groups: G, the key/value heads.
        mask: the mask, not resolved.
        dropout: the probability that the module was constructed with.
        training: whether dropout acts.
        rng_seed: seeds what is random in the target.
        position: the position encoding that is part of the attention, or None.
        traces: what the oracle computed for this job, by dtype.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Weights
    heads: int
    groups: int
    mask: Mask
    dropout: float = 0.0
    training: bool = False
    rng_seed: int = 0
    position: Position | None = None
    traces: dict[torch.dtype, dict[str, Tensor]] = field(default_factory=dict, init=False)

    @property
    def alike(self) -> bool:
        """Whether query, key and value are the same tensor, as in self-attention."""
        return self.query is self.key and self.key is self.value

    @property
    def head_dim(self) -> int:
        """D, the size of each query and key vector in a head."""
        return self.weights.q.shape[0] // self.heads

    @property
    def shape(self) -> AttentionShape:
        """The shape of the attention; the last query is at the position of the last key."""
        (batch, queries, _), keys = self.query.shape, self.key.shape[1]
        return AttentionShape(batch, self.heads, queries, keys, keys - queries, self.query.device)

    @cached_property
    def context(self) -> StepContext:
        """The context that all steps of this job share."""
        return StepContext(
            shape=self.shape,
            mask=self.mask,
            scale=self.head_dim**-0.5,
            embed_dim=self.query.shape[-1],
            groups=self.groups,
            dropout=self.dropout,
            training=self.training,
            weights=self.weights,
            position=self.position,
        )

    @property
    def allowed(self) -> Allowed:
        """True where a query may attend, (B, H, Lq, Lk)."""
        return self.context.allowed

    def fitted(self, lacks: Collection[str] = (), groups: int | None = None) -> "Job":
        """Return the job for a module that lacks some weights or has fewer key/value heads."""
        groups = self.groups if groups is None else groups
        weights = self.weights.without(lacks)
        if groups != self.groups:
            weights = weights.shared(self.groups, groups)
        return replace(self, weights=weights, groups=groups)

    def with_input(self, x: Tensor) -> "Job":
        """Return the job with x as query, key and value."""
        return replace(self, query=x, key=x, value=x)

    def inputs(self, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Change query, key and value; inputs that share one tensor still share one."""
        query = change(self.query)
        key = query if self.key is self.query else change(self.key)
        return query, key, key if self.value is self.key else change(self.value)

    def to(self, dtype: torch.dtype) -> "Job":
        """Convert the job to another dtype; self-attention stays self-attention."""
        query, key, value = self.inputs(lambda x: copied(x, dtype))
        weights = self.weights.map(lambda t: t.to(dtype))
        return replace(self, query=query, key=key, value=value, weights=weights)

    def tracked(self) -> "Job":
        """Return a copy whose tensors are leaves that require gradients."""

        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().clone().requires_grad_()

        query, key, value = self.inputs(leaf)
        return replace(self, query=query, key=key, value=value, weights=self.weights.map(leaf))

    def leaves(self) -> dict[str, Tensor]:
        """Return every tensor that may require a gradient once, by name."""
        inputs = {"query": self.query, "key": self.key, "value": self.value}
        if self.alike:
            inputs = {"input": self.query}
        elif self.key is self.value:
            inputs = {"query": self.query, "context": self.key}
        return inputs | self.weights.named()


def copied(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor and keep its strides, which `clone` keeps only for some layouts.

    Example:
        >>> copied(torch.zeros(2, 6)[:, ::2]).stride()
        (6, 2)
    """
    if tensor.is_contiguous() or tensor.requires_grad:
        return tensor.to(dtype or tensor.dtype, copy=True)
    numbers = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.as_strided((numbers,), (1,), 0).to(dtype or tensor.dtype, copy=True)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def self_job(
    embed_dim: int,
    heads: int,
    *,
    batch: int = 2,
    length: int = 7,
    mask: Mask | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Job:
    """Draw a random self-attention job with D = E / H and all biases."""
    (x,), weights = _random([(batch, length, embed_dim)], seed, dtype)
    return Job(x, x, x, weights, heads, heads, full() if mask is None else mask)


def cross_job(
    embed_dim: int,
    heads: int,
    *,
    batch: int = 2,
    lengths: tuple[int, int] = (5, 7),
    mask: Mask | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Job:
    """Draw a random job with separate query, key and value tensors, of lengths (Lq, Lk)."""
    shapes = [(batch, n, embed_dim) for n in (*lengths, lengths[1])]
    (query, key, value), weights = _random(shapes, seed, dtype)
    return Job(query, key, value, weights, heads, heads, full() if mask is None else mask)


def _random(
    shapes: list[tuple[int, int, int]], seed: int, dtype: torch.dtype
) -> tuple[list[Tensor], Weights]:
    """Draw normal inputs and weights from a seed; all dtypes agree up to rounding."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    inputs, embed_dim = [draw(*shape) for shape in shapes], shapes[0][-1]
    q, k, v, out = (draw(embed_dim, embed_dim) / embed_dim**0.5 for _ in range(4))
    return inputs, Weights(q, k, v, out, *(draw(embed_dim) for _ in range(4)))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The output of a module for one job.

    Attributes:
        output: (B, Lq, E).
        weights: the weights (B, H, Lq, Lk) if the module returns one matrix per head, or None.
        wrote: the names of the inputs that the module modified.
    """

    output: Tensor
    weights: Tensor | None = None
    wrote: tuple[str, ...] = ()


@contextmanager
def seeded_rng(seed: int) -> Iterator[None]:
    """Seed PyTorch's CPU generator inside the ``with`` block; faster than `torch.manual_seed`."""
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)

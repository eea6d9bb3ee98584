"""One attention, validated once and immutable: the input of the reference and of every engine."""

import math
import sys
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue, one_of
from headwise.lang import Text
from headwise.masks import Mask, from_tensor, full
from headwise.masks.arguments import Content
from headwise.masks.mask import add
from headwise.positions import NoPosition, Position, Stage
from headwise.score_functions import (
    ScoreFunction,
    ScoreMod,
    checked_score_mod,
    checked_softcap,
    reads_learned,
    score_function,
)
from headwise.shapes import (
    LARGEST,
    Allowed,
    AttentionShape,
    Keys,
    Queries,
    Sinks,
    Values,
    check_dense,
    describe,
    format_value,
)

NEEDS = ("weights", "logsumexp", "entropy", "received", "distance", "largest")
"""The names of the optional results of an attention."""


@dataclass(frozen=True, repr=False)
class Result:
    """The output of an attention and the results named in ``need``; the others are None.

    Attributes:
        output: (B, H, Lq, Dv).
        weights: (B, H, Lq, Lk) before dropout. A row sums to 1, or to less than 1 with a sink,
            which has the rest; a fully masked row is 0.
        logsumexp: (B, H, Lq) of the masked scores and the head's sink, if any, in float32 at least;
            -inf for a fully masked query without a sink.
        entropy: (B, H, Lq), -Σ_j w log w of each query's weights, in nats; 0 if fully masked.
        received: (B, H, Lk), Σ_i w, the total attention that a key receives from all queries; a
            fully masked query contributes 0.
        distance: (B, H, Lq), Σ_j w |i - j|, the mean distance to the attended keys, in tokens, with
            query number i at position i + offset; 0 if fully masked.
        largest: (B, H, Lq), max_j w, the largest weight of each query; 0 if fully masked.

    The last four are computed from the weights before dropout, in float32 at least.
    """

    output: Tensor
    weights: Tensor | None = None
    logsumexp: Tensor | None = None
    entropy: Tensor | None = None
    received: Tensor | None = None
    distance: Tensor | None = None
    largest: Tensor | None = None

    def __repr__(self) -> str:
        results = ((name, value) for name, value in vars(self).items() if value is not None)
        shapes = (f"{name} {tuple(value.shape)}" for name, value in results)
        return f"Result({', '.join(shapes)})"


@dataclass(frozen=True, eq=False)
class Call:
    """One attention, created and validated by `Call.of`; engines do not check it again."""

    q: Queries
    k: Keys
    v: Values
    mask: Mask
    position: Position
    scale: float
    dropout: float
    shape: AttentionShape
    need: frozenset[str]
    sinks: Sinks | None = None
    softcap: float | None = None
    score_mod: ScoreMod | None = None

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        position: Position | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        offset: int | None = None,
        need: Collection[str] = (),
        sinks: Tensor | None = None,
        softcap: float | None = None,
        score_mod: ScoreMod | None = None,
    ) -> "Call":
        """Validate the arguments, which are those of `headwise.attend`, and return the call."""
        _check_tensors(q, k, v)
        offset = k.shape[2] - q.shape[2] if offset is None else _offset(offset)
        shape = AttentionShape(q.shape[0], q.shape[1], q.shape[2], k.shape[2], offset, q.device)
        place, resolved = _position(position, q, v), _mask(mask).resolve(shape)
        if resolved.content_dependent:
            resolved = resolved.bind(Content(*place.content(q, k, shape), shape))
        need, sinks = _need(need), _sinks(sinks, q)
        factor, probability = _scale(scale, q.shape[3]), checked_dropout(dropout)
        functions = checked_softcap(softcap), checked_score_mod(score_mod)
        return cls(q, k, v, resolved, place, factor, probability, shape, need, sinks, *functions)

    @property
    def group(self) -> int:
        """The number of query heads that share one key/value head, H / G."""
        return self.shape.heads // max(self.k.shape[1], 1)

    @property
    def grouped(self) -> bool:
        """Whether several query heads share one key/value head, never as a symbolic value."""
        if self.group > 1:  # noqa: SIM103  (a branch, so that a symbol becomes a constant)
            return True
        return False

    @property
    def sums(self) -> bool:
        """Whether the logsumexp of each row is needed, as a result or for the sinks."""
        return "logsumexp" in self.need or self.sinks is not None

    def allowed(self) -> Allowed:
        """Return the mask as booleans, True where a query may attend: (B or 1, H or 1, Lq, Lk)."""
        return self.mask.dense(self.shape)

    def position_ids(self) -> tuple[Tensor, Tensor]:
        """Return the positions of the queries (Lq,) and of the keys (Lk,)."""
        _, _, query, key = self.shape.indices()
        return query.flatten(), key.flatten()

    @property
    def empty(self) -> bool:
        """Whether some size is 0."""
        return 0 in self.q.shape or 0 in self.k.shape or 0 in self.v.shape

    @property
    def biased(self) -> bool:
        """Whether a bias is added to the scaled scores."""
        return self.mask.biased or Stage.SCORES in self.position.stages

    @property
    def score_function(self) -> ScoreFunction | None:
        """The function of the scaled scores before the bias: soft cap, ``score_mod``; or None."""
        return score_function(self.softcap, self.score_mod, self.shape.offset)

    def score_mod_requires_grad(self) -> bool:
        """Return whether ``score_mod`` reads a tensor that requires a gradient."""
        function = self.score_function
        return function is not None and not self.empty and reads_learned(function, self.shape)

    def bias(self, q: Tensor | None = None) -> Tensor | None:
        """Return the bias on the scaled scores, float32 at least, or None, for ``q`` or call.q."""
        fixed = self.mask.bias(*self.shape.indices())
        position = self.position
        bias = position.bias_grid if self.shape.queries and self.shape.keys else position.bias
        moving = bias(self.q if q is None else q, *self.position_ids(), self.scale)
        return add(fixed, moving)

    def bias_requires_grad(self) -> bool:
        if not self.biased or not torch.is_grad_enabled() or 0 in self.q.shape[:3]:
            return False
        zero = torch.zeros(1, dtype=torch.long, device=self.q.device)  # fake ones need an axis
        first = zero + self.shape.offset
        fixed = self.mask.bias(zero, zero, first, zero) if self.shape.keys else None
        moving = self.position.bias(self.q[:, :, :1], first, first, self.scale)
        return any(bias is not None and bias.requires_grad for bias in (fixed, moving))


NO_POSITION = NoPosition()


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_dense(name, tensor)
        if tensor.dim() != 4 or not tensor.is_floating_point():
            raise BadValue(
                "{name}: expected a floating point tensor (B, heads, L, D), got {got}; split the "
                "heads of (B, L, E) with x.unflatten(-1, (H, D)).transpose(1, 2)",
                name=name,
                got=describe(tensor),
            )
    _check_sizes(q, k, v)
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        places = (f"{n} {t.dtype} on {t.device}" for n, t in zip("qkv", (q, k, v), strict=True))
        raise BadValue(
            "q, k, v: must have the same dtype and device, got {got}; convert them with .to(...)",
            got=", ".join(places),
        )


_SHARED_SIZES = (
    Text("the batch size B of q, k and v"),
    Text("the head dim D of q and k"),
    Text("the head count G of k and v"),
    Text("the length Lk of k and v"),
)


def _check_sizes(q: Tensor, k: Tensor, v: Tensor) -> None:
    (batch, heads, _, dim), groups = q.shape, k.shape[1]
    agree = (
        k.shape[0] == v.shape[0] == batch,
        k.shape[3] == dim,
        v.shape[1] == groups,
        v.shape[2] == k.shape[2],
    )
    for holds, size in zip(agree, _SHARED_SIZES, strict=True):
        if not holds:
            raise BadValue(
                "q, k, v: {size} must agree, got {shapes}; expected q (B, H, Lq, D), "
                "k (B, G, Lk, D), v (B, G, Lk, Dv)",
                size=size,
                shapes=f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}",
            )
    if dim == 0 or (heads % groups if groups else heads):
        got = f"H={heads}, G={groups}, D={dim}"
        raise BadValue("q, k: H must be a multiple of G and D at least 1, got {got}", got=got)


def is_tracing() -> bool:
    """Return whether `torch.jit.trace` or the legacy ONNX exporter records the operations."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def _offset(offset: Any) -> Any:
    if isinstance(offset, Tensor) and is_tracing():  # a difference of sizes
        traced: Any = offset
        return traced
    if isinstance(offset, bool) or not isinstance(offset, Integral | torch.SymInt):
        raise BadType("offset: expected an integer or None, got {offset!r}", offset=offset)
    number: Any = offset if isinstance(offset, torch.SymInt) else int(offset)
    if not torch.compiler.is_compiling() and abs(number) > LARGEST:  # a guard while compiling
        raise BadValue(
            "offset: must be from -{most} to {most}, got {offset}; it is the position of the "
            "first query among the keys",
            most=LARGEST,
            offset=format_value(number),
        )
    result: int = number
    return result


def _mask(mask: Mask | Tensor | None) -> Mask:
    if mask is None:
        return full()
    if isinstance(mask, Tensor):
        return from_tensor(mask)
    if isinstance(mask, Mask):
        return mask
    raise BadType(
        "mask: expected a mask, a tensor or None, got {mask_type}; for example "
        "hw.causal(), hw.window(3, 0), hw.padding(lengths)",
        mask_type=type(mask).__name__,
    )


def _position(position: Position | None, q: Tensor, v: Tensor) -> Position:
    if position is None:
        return NO_POSITION
    if not isinstance(position, Position):
        raise BadType(
            "position: expected a position or None, got {position_type}; for example "
            "hw.ALiBi(num_heads)",
            position_type=type(position).__name__,
        )
    name = type(position).__name__
    if Stage.INPUT in position.stages:
        raise BadValue(
            "position: {name} is added to the layer's input; use position.embed(x), or "
            "MultiheadAttention(..., position={name}(...))",
            name=name,
        )
    sizes = {"H": q.shape[1], "D": q.shape[3], "Dv": v.shape[3]}
    for letter, size in position.expected_sizes().items():
        if sizes[letter] != size:
            raise BadValue(
                "position: {name} was created with {letter}={size}, but called with "
                "{letter}={sizes}; create it with {letter}={sizes}",
                name=name,
                letter=letter,
                size=size,
                sizes=sizes[letter],
            )
    return position


def _scale(scale: float | None, dim: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(dim)
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not number or not abs(scale) <= sys.float_info.max:
        raise BadValue(
            "scale: expected a finite number or None for 1/sqrt(D), got {scale}",
            scale=format_value(scale),
        )
    return float(scale)


def checked_dropout(dropout: object) -> float:
    """Validate the dropout probability and return it as a float."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise BadValue(
            "dropout: expected a probability from 0 to 1, got {dropout}; 0 disables dropout",
            dropout=format_value(dropout),
        )
    return float(dropout)


def _need(need: Collection[str]) -> frozenset[str]:
    if not isinstance(need, Collection) or isinstance(need, Tensor):
        raise BadType(
            "need: expected a collection of names, got {need_type}; for example need=('weights',)",
            need_type=type(need).__name__,
        )
    if isinstance(need, str):
        raise BadType(
            "need: expected a collection of names, got the string {need!r}; use need=({need!r},)",
            need=need,
        )
    for word in need:
        if word not in NEEDS:
            raise one_of("need", word, NEEDS)
    return frozenset(need)


def _sinks(sinks: Tensor | None, q: Tensor) -> Tensor | None:
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise BadType(
            "sinks: expected a floating point tensor (H,) or None, got {got}; "
            "use torch.zeros({heads}) for logits of 0",
            got=sinks.dtype if isinstance(sinks, Tensor) else type(sinks).__name__,
            heads=q.shape[1],
        )
    check_dense("sinks", sinks)
    if sinks.shape != q.shape[1:2] or sinks.device != q.device:
        raise BadValue(
            "sinks: expected one logit per head, ({heads},) on {device}, got {got} on {got_device};"
            " use sinks.expand({heads}) if all heads share one logit",
            heads=q.shape[1],
            device=q.device,
            got=tuple(sinks.shape),
            got_device=sinks.device,
        )
    return sinks


def softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the softmax is computed: float32 at least."""
    return torch.promote_types(dtype, torch.float32)

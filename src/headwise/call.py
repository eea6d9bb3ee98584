"""One attention, validated once and frozen: what the reference and every engine are given."""

import math
import sys
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue, one_of
from headwise.masks import Mask, from_tensor, full
from headwise.masks.base import Content
from headwise.positions import NoPosition, Position, Stage
from headwise.shapes import LARGEST, Allowed, Frame, Keys, Queries, Sinks, Values, dense, shown

NEEDS = ("weights", "logsumexp", "entropy", "received", "distance", "largest")
"""What a caller may ask for beside the output."""


@dataclass(frozen=True, repr=False)
class Result:
    """What an attention gives: the output, and what else was asked for.

    Attributes:
        output: (B, H, Lq, Dv).
        weights: (B, H, Lq, Lk) before dropout, each row summing to 1, or 0 where blind; with sinks
            to less than 1, the sink having the rest; or None.
        logsumexp: (B, H, Lq) of the masked scores and, where there is one, of the head's sink; -inf
            where blind without a sink; float32 at least; or None.
        entropy: (B, H, Lq), -Σ_j w log w of each query's weights in nats, 0 where blind; or None.
        received: (B, H, Lk), Σ_i w, the attention that a key gets from all queries together, in
            queries, a blind one giving 0; or None.
        distance: (B, H, Lq), Σ_j w |i - j|, how far a query looks on average, in tokens, where
            query number i stands at i + offset; 0 where blind; or None.
        largest: (B, H, Lq), max_j w, the largest weight of each query, 0 where blind; or None.

    The last four are of the weights before dropout, and in float32 at least.
    """

    output: Tensor
    weights: Tensor | None = None
    logsumexp: Tensor | None = None
    entropy: Tensor | None = None
    received: Tensor | None = None
    distance: Tensor | None = None
    largest: Tensor | None = None

    def __repr__(self) -> str:
        held = ((name, value) for name, value in vars(self).items() if value is not None)
        return f"Result({', '.join(f'{name} {tuple(value.shape)}' for name, value in held)})"


@dataclass(frozen=True, eq=False)
class Call:
    """One attention. Make it with `Call.of`, which validates; an engine can then trust it."""

    q: Queries
    k: Keys
    v: Values
    mask: Mask
    position: Position
    scale: float
    dropout: float
    frame: Frame
    need: frozenset[str]
    sinks: Sinks | None = None

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
    ) -> "Call":
        """The validated call; the arguments are those of `headwise.attend`."""
        _check_tensors(q, k, v)
        offset = k.shape[2] - q.shape[2] if offset is None else _offset(offset)
        frame = Frame(q.shape[0], q.shape[1], q.shape[2], k.shape[2], offset, q.device)
        place, resolved = _position(position, q, v), _mask(mask).resolve(frame)
        if resolved.looks:
            resolved = resolved.look(Content(*place.content(q, k, frame), frame))
        return cls(
            q=q,
            k=k,
            v=v,
            mask=resolved,
            position=place,
            scale=_scale(scale, q.shape[3]),
            dropout=_dropout(dropout),
            frame=frame,
            need=_need(need),
            sinks=_sinks(sinks, q),
        )

    @property
    def group(self) -> int:
        """How many query heads share one key/value head, H / G."""
        return self.frame.heads // max(self.k.shape[1], 1)

    @property
    def sums(self) -> bool:
        """Whether each row's logsumexp is needed: because it is asked for, or for the sinks."""
        return "logsumexp" in self.need or self.sinks is not None

    def allowed(self) -> Allowed:
        """The mask written out, True where a query may attend: (B or 1, H or 1, Lq, Lk)."""
        return self.mask.dense(self.frame)

    def places(self) -> tuple[Tensor, Tensor]:
        """Where the queries (Lq,) and the keys (Lk,) stand."""
        _, _, query, key = self.frame.indices()
        return query.flatten(), key.flatten()

    @property
    def biased(self) -> bool:
        """Whether anything is added to the scaled scores."""
        return self.mask.biased or Stage.SCORES in self.position.stages

    def bias(self, q: Tensor | None = None) -> Tensor | None:
        """What is added to the scaled scores, float32 at least, or None.

        Args:
            q: the queries, in the dtype to compute in; None means as given.
        """
        fixed = self.mask.bias(*self.frame.indices())
        some = self.frame.queries and self.frame.keys
        of = self.position.along if some else self.position.bias
        moving = of(self.q if q is None else q, *self.places(), self.scale)
        if fixed is None or moving is None:
            return moving if fixed is None else fixed
        return fixed + moving

    def learns(self) -> bool:
        """Whether what is added to the scaled scores wants a gradient."""
        if not self.biased or not torch.is_grad_enabled() or 0 in self.q.shape[:3]:
            return False
        zero = torch.zeros((), dtype=torch.long, device=self.q.device)
        first = zero + self.frame.offset
        fixed = self.mask.bias(zero, zero, first, zero) if self.frame.keys else None
        moving = self.position.bias(self.q[:, :, :1], first[None], first[None], self.scale)
        return any(bias is not None and bias.requires_grad for bias in (fixed, moving))


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise BadType(
                f"{name}: expected a tensor, got {type(tensor).__name__}",
                f"{name}：应为张量，收到 {type(tensor).__name__}",
            )
        dense(name, tensor)
        if tensor.dim() != 4 or not tensor.is_floating_point():
            raise BadValue(
                f"{name}: expected a floating point tensor (B, heads, L, D), got {tensor.dtype} "
                f"{tuple(tensor.shape)}; (B, L, E) becomes (B, H, L, D) by "
                "x.unflatten(-1, (H, D)).transpose(1, 2)",
                f"{name}：应为浮点张量 (B, 头数, L, D)，收到 {tensor.dtype} {tuple(tensor.shape)}；"
                "(B, L, E) 变为 (B, H, L, D)：x.unflatten(-1, (H, D)).transpose(1, 2)",
            )
    _check_sizes(q, k, v)
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        got = ", ".join(
            f"{n} {t.dtype} on {t.device}" for n, t in zip("qkv", (q, k, v), strict=True)
        )
        raise BadValue(
            f"q, k, v: must share one dtype and one device, got {got}; convert them with .to(...)",
            f"q, k, v：必须是同一种 dtype、在同一设备上，收到 {got}；请用 .to(...) 转换",
        )


def _check_sizes(q: Tensor, k: Tensor, v: Tensor) -> None:
    (batch, heads, _, dim), groups = q.shape, k.shape[1]
    rules = (
        (k.shape[0] == v.shape[0] == batch, "the batch size B of all three", "三者的批大小 B"),
        (k.shape[3] == dim, "the head dim D of q and k", "q 和 k 的头维度 D"),
        (v.shape[1] == groups, "the head count G of k and v", "k 和 v 的头数 G"),
        (v.shape[2] == k.shape[2], "the length Lk of k and v", "k 和 v 的长度 Lk"),
    )
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    for holds, en, zh in rules:
        if not holds:
            raise BadValue(
                f"q, k, v: {en} must agree, got {shapes}; expected q (B, H, Lq, D), "
                "k (B, G, Lk, D), v (B, G, Lk, Dv)",
                f"q, k, v：{zh}必须一致，收到 {shapes}；应为 q (B, H, Lq, D)、"
                "k (B, G, Lk, D)、v (B, G, Lk, Dv)",
            )
    if dim == 0 or (heads % groups if groups else heads):
        raise BadValue(
            f"q, k: H must be a multiple of G and D at least 1, got H={heads}, G={groups}, D={dim}",
            f"q, k：H 必须是 G 的整数倍且 D 至少为 1，收到 H={heads}、G={groups}、D={dim}",
        )


def _offset(offset: int) -> int:
    if not isinstance(offset, int | torch.SymInt) or isinstance(offset, bool):
        raise BadType(
            f"offset: expected an integer or None, got {offset!r}",
            f"offset：应为整数或 None，收到 {offset!r}",
        )
    if not torch.compiler.is_compiling() and abs(offset) > LARGEST:  # it would be a guard there
        raise BadValue(
            f"offset: must be from {-LARGEST} to {LARGEST}, got {shown(offset)}; it is "
            "where the first query stands among the keys",
            f"offset：应在 {-LARGEST} 到 {LARGEST} 之间，收到 {shown(offset)}；"
            "它是第一个查询在键中的位置",
        )
    return offset


def _mask(mask: Mask | Tensor | None) -> Mask:
    if mask is None:
        return full()
    if isinstance(mask, Tensor):
        return from_tensor(mask)
    if isinstance(mask, Mask):
        return mask
    raise BadType(
        f"mask: expected a mask, a tensor or None, got {type(mask).__name__}; "
        "for example hw.causal(), hw.window(3, 0), hw.padding(lengths)",
        f"mask：应为掩码、张量或 None，收到 {type(mask).__name__}；"
        "例如 hw.causal()、hw.window(3, 0)、hw.padding(lengths)",
    )


def _position(position: Position | None, q: Tensor, v: Tensor) -> Position:
    if position is None:
        return NoPosition()
    if not isinstance(position, Position):
        raise BadType(
            f"position: expected a position or None, got {type(position).__name__}; "
            "for example hw.ALiBi(num_heads)",
            f"position：应为位置编码或 None，收到 {type(position).__name__}；"
            "例如 hw.ALiBi(num_heads)",
        )
    name = type(position).__name__
    if Stage.INPUT in position.stages:
        raise BadValue(
            f"position: {name} is added before the projections; use position.embed(x), or "
            f"MultiheadAttention(..., position={name}(...))",
            f"position：{name} 在投影之前相加；请用 position.embed(x)，或 "
            f"MultiheadAttention(..., position={name}(...))",
        )
    sizes = {"H": q.shape[1], "D": q.shape[3], "Dv": v.shape[3]}
    for letter, size in position.made_for().items():
        if sizes[letter] != size:
            raise BadValue(
                f"position: {name} was made for {letter}={size}, called with "
                f"{letter}={sizes[letter]}; make it with {sizes[letter]}",
                f"position：{name} 按 {letter}={size} 构造，调用时 {letter}={sizes[letter]}；"
                f"请用 {sizes[letter]} 构造",
            )
    return position


def _scale(scale: float | None, dim: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(dim)
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not number or not abs(scale) <= sys.float_info.max:
        raise BadValue(
            f"scale: expected a finite number or None for 1/sqrt(D), got {shown(scale)}",
            f"scale：应为有限的数，或用 None 表示 1/sqrt(D)，收到 {shown(scale)}",
        )
    return float(scale)


def _dropout(dropout: float) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise BadValue(
            f"dropout: expected a probability from 0 to 1, got {shown(dropout)}",
            f"dropout：应为 0 到 1 之间的概率，收到 {shown(dropout)}",
        )
    return float(dropout)


def _need(need: Collection[str]) -> frozenset[str]:
    if not isinstance(need, Collection) or isinstance(need, Tensor):
        raise BadType(
            f"need: expected a collection of words, got {type(need).__name__}; for example "
            "need=('weights',)",
            f"need：应为若干词的集合，收到 {type(need).__name__}；例如 need=('weights',)",
        )
    if isinstance(need, str):
        raise BadType(
            f"need: expected a collection of words, got the string {need!r}; use need=({need!r},)",
            f"need：应为若干词的集合，收到字符串 {need!r}；请用 need=({need!r},)",
        )
    for word in need:
        if word not in NEEDS:
            raise one_of("need", word, NEEDS)
    return frozenset(need)


def _sinks(sinks: Tensor | None, q: Tensor) -> Tensor | None:
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        got = sinks.dtype if isinstance(sinks, Tensor) else type(sinks).__name__
        raise BadType(
            f"sinks: expected a floating point tensor (H,) or None, got {got}; "
            f"torch.zeros({q.shape[1]}) is one whose logits are 0",
            f"sinks：应为浮点张量 (H,) 或 None，收到 {got}；"
            f"torch.zeros({q.shape[1]}) 表示 logit 全为 0",
        )
    dense("sinks", sinks)
    if sinks.shape != q.shape[1:2] or sinks.device != q.device:
        raise BadValue(
            f"sinks: expected one logit a head, {(q.shape[1],)} on {q.device}, got "
            f"{tuple(sinks.shape)} on {sinks.device}; use sinks.expand({q.shape[1]}) for one "
            "logit for all",
            f"sinks：每个头应有一个 logit，即 {q.device} 上的 {(q.shape[1],)}，收到 "
            f"{sinks.device} 上的 {tuple(sinks.shape)}；各头共用一个时请用 "
            f"sinks.expand({q.shape[1]})",
        )
    return sinks


def softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the softmax runs: float32 at least."""
    return torch.promote_types(dtype, torch.float32)

"""Optional submodules of a `MultiheadAttention`: norms, scale, gate and global projections."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headwise.call import Result
from headwise.errors import BadValue
from headwise.masks import Mask, from_tensor
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.nn.init import ParameterFactory
from headwise.nn.projections import QKV
from headwise.nn.validation import check_positive, checked_module
from headwise.shapes import AttentionShape


class UnitNorm(nn.Module):
    """A module that divides every vector by its Euclidean norm: x / max(|x|, eps).

    The scores of normalised queries and keys are cosines; `LogitScale` scales them. The computation
    uses at least float32. A zero vector stays zero and has a finite gradient.

    Args:
        eps: lower bound on the divisor.

    Raises:
        BadValue: if eps is not above 0.

    Source: Henry et al. 2020 (Query-Key Normalization for Transformers), the hat on q and k;
        Liu et al. 2022 (Swin Transformer V2), the cosine of scaled cosine attention.

    Example:
        >>> UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        if not eps > 0:
            raise BadValue("UnitNorm: eps must be above 0, got {eps}; 1e-6 is usual", eps=eps)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the vectors of x (..., D) to unit length."""
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        # linalg.norm is not used here: its second derivative is NaN at zero
        square = y.square().sum(-1, keepdim=True)
        return (y * square.clamp(min=self.eps**2).rsqrt()).to(x.dtype)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


class LogitScale(nn.Module):
    """A learned factor s_h on the scores of head h, which replaces 1/sqrt(D).

        scores = s_h q kᵀ        s_h = exp(min(t_h, log most)),   t_h learned

    With `UnitNorm` on queries and keys, a score is s_h times a cosine (scaled cosine attention).

    Args:
        num_heads: H.
        start: initial value of s_h.
        most: upper bound of s_h, beyond which the gradient is 0; None means no bound.
        device, dtype: the device and the dtype of the parameter.

    Raises:
        BadType, BadValue: if num_heads or a factor is not positive, or start is above most.

    Source: Henry et al. 2020 (Query-Key Normalization for Transformers), where s is g; Liu et al.
        2022 (Swin Transformer V2), scaled cosine attention, where s_h is 1/tau of head h and
        tau > 0.01; the initial value in their code is 10.

    Example:
        >>> [round(factor, 4) for factor in LogitScale(2)().tolist()]
        [10.0, 10.0]
    """

    def __init__(
        self,
        num_heads: int,
        *,
        start: float = 10.0,
        most: float | None = 100.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads)
        for name, value in (("start", start), ("most", start if most is None else most)):
            if not (math.isfinite(value) and value > 0):
                raise BadValue(
                    "LogitScale: {name} must be a positive number, got {value}; Swin V2 uses "
                    "start=10 and most=100, ordinary attention start=head_dim**-0.5",
                    name=name,
                    value=value,
                )
        if most is not None and start > most:
            raise BadValue(
                "LogitScale: start={start} must be at most most={most}, beyond which the gradient "
                "is 0; use most=None for no upper bound",
                start=start,
                most=most,
            )
        self.start, self.most = start, most
        self.log = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log, math.log(self.start))

    def forward(self) -> Tensor:
        """Return the factor of each head, (H,)."""
        log = self.log if self.most is None else self.log.clamp(max=math.log(self.most))
        return log.exp()

    def extra_repr(self) -> str:
        return f"{self.log.shape[0]}, start={self.start}, most={self.most}"


class OutputGate(nn.Module):
    """A sigmoid gate on the heads' outputs, before the output projection.

        O'_h = O_h * sigmoid(x W_h + b_h)        x the query token, (E,)

    The gate lets a head output 0; without a gate, a head attends to a sink for this purpose.

    Args:
        embed_dim: E.
        num_heads: H.
        head_dim: the number of gates per head: 1, or D for one gate per output feature.
        bias: whether to add the bias b, initially 0; the paper has no bias.
        device, dtype: the device and the dtype of the parameters.

    Raises:
        BadType, BadValue: if a size is not a positive integer.

    Source: Qiu et al. 2025 (Gated Attention for Large Language Models), Y' = Y * sigmoid(X W_theta)
        at position G1, after scaled dot-product attention, head-specific: elementwise with
        head_dim=D, headwise with head_dim=1. Their X, Y, W_theta are x, O, W here.

    Example:
        >>> OutputGate(8, 2)(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 2])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int = 1,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(embed_dim=embed_dim, num_heads=num_heads, head_dim=head_dim)
        width = num_heads * head_dim
        self.proj = nn.Linear(embed_dim, width, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Xavier uniform weights and set the bias to 0."""
        nn.init.xavier_uniform_(self.proj.weight)
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the gates (B, L, H · head_dim), between 0 and 1, of the tokens x (B, L, E)."""
        return torch.sigmoid(self.proj(x))


def checked_norm(name: str, norm: nn.Module | None, head_dim: int) -> nn.Module | None:
    """Check that ``norm`` is None or a module for vectors of size D, and return it."""
    example = f"nn.RMSNorm({head_dim}) or headwise.nn.UnitNorm()"
    size = getattr(checked_module(name, norm, example), "normalized_shape", None)
    if size is not None and tuple(size) != (head_dim,):
        raise BadValue(
            "{name}: expected a norm over the D = {head_dim} features of one head, got a norm over "
            "{size}; use nn.{norm_type}({head_dim}), or for a norm over all heads replace the "
            "projection by nn.Sequential(layer.q_proj, norm)",
            name=name,
            head_dim=head_dim,
            size=tuple(size),
            norm_type=type(norm).__name__,
        )
    return norm


def apply_norm(name: str, norm: nn.Module | None, x: Tensor) -> Tensor:
    """Normalise queries or keys (B, heads, L, D), and check that the norm keeps their shape."""
    if norm is None:
        return x
    y: Tensor = norm(x)
    if y.shape != x.shape:
        raise BadValue(
            "{name}: expected a module that keeps the shape {expected}, got {got}; its input is "
            "(B, heads, L, D)",
            name=name,
            expected=tuple(x.shape),
            got=tuple(y.shape),
        )
    return y.to(x.dtype)


def apply_scale(scale: nn.Module | None, q: Tensor) -> Tensor:
    """Scale queries (B, H, L, D) so that `attend`, which divides by sqrt(D), yields s_h q kᵀ."""
    if scale is None:
        return q
    factor: Tensor = scale()
    heads, dim = q.shape[1], q.shape[3]
    if factor.shape not in ((), (1,), (heads,)):
        raise BadValue(
            "logit_scale: expected one factor for each head, ({heads},), got {got}; create the "
            "module with num_heads={heads}",
            heads=heads,
            got=tuple(factor.shape),
        )
    dtype = torch.promote_types(q.dtype, torch.float32)
    return (q.to(dtype) * (factor.to(dtype) * math.sqrt(dim)).view(-1, 1, 1)).to(q.dtype)


def apply_gate(gate: nn.Module | None, output: Tensor, x: Tensor) -> Tensor:
    """Multiply the heads' outputs (B, H, L, D) by the gates of the query tokens x (B, L, E)."""
    if gate is None:
        return output
    gates: Tensor = gate(x)
    batch, heads, length, dim = output.shape
    if gates.shape not in ((batch, length, heads), (batch, length, heads * dim)):
        raise BadValue(
            "gate: expected factors (B, L, H) = {expected}, or (B, L, H·D) with H·D = {width}, got "
            "{got}; create the gate with num_heads={heads} and head_dim=1 or {dim}",
            expected=(batch, length, heads),
            width=heads * dim,
            got=tuple(gates.shape),
            heads=heads,
            dim=dim,
        )
    factors = torch.unflatten(gates, -1, (heads, -1)).transpose(1, 2)  # (B, H, L, 1 or D)
    return (output * factors).to(output.dtype)


PER_QUERY = ("weights", "logsumexp", "entropy", "largest")
"""The optional results of one query that do not depend on the position of the query."""


class GlobalProjections(nn.Module):
    """Projections for global tokens, with the sizes of ``like``: q_proj, k_proj and v_proj."""

    def __init__(self, like: Sequence[nn.Linear]) -> None:
        super().__init__()

        def empty(linear: nn.Linear) -> nn.Linear:
            factory = ParameterFactory(linear.weight.device, linear.weight.dtype)
            return factory.linear(linear.in_features, linear.out_features, linear.bias is not None)

        self.q_proj, self.k_proj, self.v_proj = map(empty, like)

    @torch.no_grad()
    def copy(self, like: Sequence[nn.Linear]) -> None:
        """Copy the values of the ordinary projections, as the paper initialises them."""
        for name, source in zip(QKV, like, strict=True):
            for kind, parameter in self.get_submodule(name).named_parameters():
                parameter.copy_(source.get_parameter(kind))


@dataclass(frozen=True, eq=False)
class GlobalRows:
    """The queries that are global tokens, padded to the largest number in one sample."""

    index: Tensor  # (B, n), positions of queries
    real: Tensor  # (B, n), False on padding

    @classmethod
    def of(cls, mask: Mask, shape: AttentionShape) -> "GlobalRows | None":
        """Find the global tokens of a resolved mask; return None if the mask has none."""
        b, h, query, _ = shape.indices()
        is_global: Tensor | None = None
        for part in mask.walk():
            if isinstance(part, GlobalTokens) and part.symmetric:
                own = replace(part, symmetric=False).rule(b, h, query, query)
                is_global = own if is_global is None else is_global | own
        if is_global is None:
            return None
        is_global = is_global.expand(shape.batch, 1, -1, 1)[:, 0, :, 0]  # (B, Lq)
        most = int(is_global.sum(-1).max()) if is_global.numel() else 0
        if not most:
            return None
        index = is_global.int().argsort(dim=-1, descending=True, stable=True)[:, :most]
        return cls(index, is_global.gather(1, index))

    def take(self, x: Tensor) -> Tensor:
        """Return the rows of global tokens, (B, n, E), of x (B, Lq, E)."""
        return x.gather(1, self.index[..., None].expand(-1, -1, x.shape[2]))

    def put(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return a copy of x (B, H, Lq, ...), its global tokens replaced by rows (B, H, n, ...)."""
        sample, number = self.real.nonzero(as_tuple=True)
        new = rows.transpose(1, 2)[sample, number].to(x.dtype)
        place = (sample, self.index[sample, number])
        return x.transpose(1, 2).index_put(place, new).transpose(1, 2)

    def mask(self, mask: Mask, shape: AttentionShape) -> Mask:
        """Return the mask of the global tokens' rows, (B, 1 or H, n, Lk)."""
        b, h, _, key = shape.indices()
        indices = (b, h, self.index[:, None, :, None] + shape.offset, key)
        sizes = (shape.batch, -1, self.index.shape[1], shape.keys)
        allowed = mask.rule(*indices) & self.real[:, None, :, None]
        rows = from_tensor(allowed.expand(sizes), "b h q k")
        bias = mask.bias(*indices)
        if bias is None:
            return rows
        bias = bias[(None,) * (4 - bias.dim())]
        return rows & from_tensor(bias.expand(sizes), "b h q k")

    @staticmethod
    def check_need(need: Collection[str]) -> None:
        """Raise BadValue for results that sum over queries or depend on their positions."""
        for word in need:
            if word not in PER_QUERY:
                raise BadValue(
                    "need: with global_projections, expected names from {words}, got {word!r}; "
                    "request 'weights' and compute the result from them",
                    words=PER_QUERY,
                    word=word,
                )

    def replace_rows(self, result: Result, own: Result) -> Result:
        names = ("output", *(name for name in PER_QUERY if getattr(result, name) is not None))
        new = {name: self.put(getattr(result, name), getattr(own, name)) for name in names}
        return replace(result, **new)


def without_global_rows(mask: Mask) -> Mask:
    """Return the mask without the rows of global tokens, which are computed separately."""
    if isinstance(mask, GlobalTokens):
        return replace(mask, symmetric=False)
    return mask.map(without_global_rows)

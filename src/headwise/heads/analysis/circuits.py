"""What a head can do, told from its weights alone: what it looks for, carries and reads.

A head has two circuits. QK, W_Q W_Kᵀ, says which token looks at which; OV, W_V W_O, says what is
carried over. Both are matrices of the residual's width that are the product of two thin ones, and
are never built: their eigenvalues are those of the small product the other way round.

Vectors are rows here, so that W_V W_O stands in the order in which they are applied; Elhage et al.
write columns. Norms before the attention, biases and rotations of positions are left out.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.heads.names import Layer
from headwise.nn.huggingface.attention_function import is_cross_attention
from headwise.nn.projections import (
    Architecture,
    architecture_of,
    attribute,
    features,
    is_transposed,
)

Kind = Literal["Q", "K", "V"]
"""What of a later head reads what an earlier one wrote: its queries, keys or values."""


@dataclass(frozen=True, eq=False)
class Circuits:
    """The projections of one layer, head by head, in float64.

    Attributes:
        q, k, v: (H, E, D) each, from the residual to the head.
        o: (H, D, E), from the head back.
        v_bias: (H, D), added to the values; 0 where there is none.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    v_bias: Tensor

    def copying(self, embedding: Tensor | None = None, unembedding: Tensor | None = None) -> Tensor:
        """How far each head writes what it read: Σ λ / Σ |λ| of OV, -1 to 1, (H,).

        Args:
            embedding: (V, E), from tokens; None leaves the residual as it is.
            unembedding: (V, E), to tokens; None means the embedding, as in a model that ties them.

        Source: Elhage et al. 2021, "Detecting copying behavior": eigenvalues of W_E W_V W_O W_U.
        """
        return _positive(self.o @ _through(embedding, unembedding, self.o.shape[2]) @ self.v)

    def matching(self, embedding: Tensor | None = None) -> Tensor:
        """How far each head looks for tokens like its own: Σ λ / Σ |λ| of QK, -1 to 1, (H,).

        Source: Elhage et al. 2021: eigenvalues of W_E W_Q W_Kᵀ W_Eᵀ.
        """
        return _positive(self.k.mT @ _through(embedding, None, self.k.shape[1]) @ self.q)

    def values(self, residual: Tensor) -> Tensor:
        """The value of each token, (H, L, D), of what the attention is given, (L, E)."""
        return residual.to(self.v.dtype) @ self.v + self.v_bias[:, None]


def composition(earlier: Circuits, later: Circuits, kind: Kind) -> Tensor:
    """How much of what earlier heads write the later ones read, (H earlier, H later), 0 to 1.

        ‖W_OV M‖ / (‖W_OV‖ ‖M‖), M = W_QK for queries, its transpose for keys, W_OV for values

    Two heads that know nothing of each other have about `chance`, and heads that read exactly what
    was written have more.

    Raises:
        BadValue: if ``kind`` is another word.

    Source: Elhage et al. 2021, "Two-layer attention-only transformers", Frobenius norms.
    """
    read = {"Q": (later.q, later.k.mT), "K": (later.k, later.q.mT), "V": (later.v, later.o)}
    if kind not in read:
        raise BadValue("kind: unknown {kind!r}; expected 'Q', 'K' or 'V'", kind=kind)
    into, out = read[kind]  # (H, E, D) and (H, D, E)
    between = torch.einsum("ade,bef->abdf", earlier.o, into)  # what of one head the other sees
    left, right = _root(earlier.v.mT @ earlier.v), _root(out @ out.mT)
    whole = torch.linalg.matrix_norm(left[:, None] @ between @ right.mT)
    found: Tensor = whole / (_norm(earlier.v, earlier.o)[:, None] * _norm(into, out))
    return found


def chance(width: int) -> float:
    """The composition of two heads that lie at random to each other in a residual of that width.

    The mean over all rotations of ‖A R B‖² is ‖A‖² ‖B‖² / E.
    """
    return 1 / math.sqrt(width)


def value_weighted(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """How much each key really brings: the norm of what it adds to the layer's output, (H, Lq, Lk).

        ‖A[i,j] v_j W_O‖

    A large weight on a token whose value is small, such as a sink, becomes small.

    Args:
        weights: (H, Lq, Lk).
        values: (H, Lk, D), `Circuits.values`.
        output: (H, D, E), `Circuits.o`.

    Source: Kobayashi et al. 2020, section 3, equation 6.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> value_weighted(0.5 * one, 3 * one, 2 * one)
        tensor([[[3.]]])
    """
    found: Tensor = weights * torch.linalg.vector_norm(values @ output, dim=-1)[:, None]
    return found


def value_weighted_together(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """The same of all heads of a layer together, which may cancel: ‖Σ_h A[i,j] v_j W_O‖, (Lq, Lk).

    Source: Kobayashi et al. 2020, section 3.
    """
    brought = values @ output  # (H, Lk, E)
    rows = [torch.einsum("hk,hke->ke", row, brought).norm(dim=-1) for row in weights.unbind(1)]
    return torch.stack(rows)


def circuits_of(module: nn.Module) -> Circuits:
    """The projections of one attention.

    Args:
        module: an attention that is built in one of the known ways.

    Raises:
        BadType: if it is built in another way.
    """
    architecture = architecture_of(module)
    if architecture is None:
        raise BadType(
            "module: expected an attention with projections of q, k, v and out that are "
            "known here, got {module_type}; give its Circuits yourself",
            module_type=type(module).__name__,
        )
    size: Any = attribute(module, architecture.size)
    (q, _), (k, _), (v, bias) = _inputs(module, architecture, size)
    o = _matrix(attribute(module, architecture.out)).mT.unflatten(0, (-1, size))  # type: ignore[no-untyped-call]
    heads = len(q)
    k, v, bias = (part.repeat_interleave(heads // len(part), 0) for part in (k, v, bias))
    return Circuits(q, k, v, o, bias)


def circuits(model: nn.Module) -> dict[Layer, Circuits]:
    """The projections of every attention to the same text, by layer, of one stack of layers.

    A module that is used several times, as ALBERT's, is one layer here: its weights are the same.

    Raises:
        BadType: if there is none that is known here.
    """
    found: dict[Layer, Circuits] = {}
    for name, module in model.named_modules():
        if architecture_of(module) is not None and not is_cross_attention(name.lower(), module):
            stacks = ("encoder", "decoder")
            part = next((stack for stack in stacks if _within(model, name, stack)), "")
            number = sum(layer.part == part for layer in found)
            found[Layer(part, number)] = circuits_of(module)
    if not found:
        raise BadType(
            "model: expected attentions whose projections are known here, got none in "
            "{model_type}; circuits_of says of one module what is expected",
            model_type=type(model).__name__,
        )
    return found


def _within(model: nn.Module, name: str, part: str) -> bool:
    config = getattr(model, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False)) and part in name.lower().split(".")


def _inputs(
    module: nn.Module, architecture: Architecture, size: int
) -> list[tuple[Tensor, Tensor]]:
    """(heads, E, D) and (heads, D) of q, k and v."""
    if not architecture.fused:
        projections = [attribute(module, path) for path in architecture.projections]
        return [_heads(_matrix(projection), _bias(projection), size) for projection in projections]
    one = attribute(module, architecture.fused)
    matrix, bias = _matrix(one), _bias(one)
    if architecture.by_head:
        parts = matrix.view(-1, 3, size, matrix.shape[1]).unbind(1)
        offsets = bias.view(-1, 3, size).unbind(1)
        return [(part.mT, offset) for part, offset in zip(parts, offsets, strict=True)]
    pairs = zip(matrix.chunk(3), bias.chunk(3), strict=True)
    return [_heads(part, offset, size) for part, offset in pairs]


def _heads(matrix: Tensor, bias: Tensor, size: int) -> tuple[Tensor, Tensor]:
    return matrix.view(-1, size, matrix.shape[1]).mT, bias.view(-1, size)


def _matrix(projection: Any) -> Tensor:
    """(out, in) in float64."""
    weight: Tensor = projection.weight.detach().double()
    return weight.mT if is_transposed(projection) else weight


def _bias(projection: Any) -> Tensor:
    bias = getattr(projection, "bias", None)
    sizes = features(projection)
    if bias is not None:
        found: Tensor = bias.detach().double()
        return found
    return torch.zeros(sizes[1] if sizes else 0, dtype=torch.float64)


def _through(embedding: Tensor | None, unembedding: Tensor | None, width: int) -> Tensor:
    """What stands between the end of a circuit and its beginning: W_U W_E, (E, E), or nothing."""
    if embedding is None:
        return torch.eye(width, dtype=torch.float64)
    into = embedding.detach().double()
    back = into if unembedding is None else unembedding.detach().double()
    if into.shape != back.shape or into.shape[-1] != width:
        raise BadValue(
            "embedding: expected (tokens, {width}) twice, got {into_shape} and "
            "{back_shape}; give those of the same model",
            width=width,
            into_shape=tuple(into.shape),
            back_shape=tuple(back.shape),
        )
    return back.mT @ into


def _positive(matrices: Tensor) -> Tensor:
    """Σ λ / Σ |λ| of each."""
    values = torch.linalg.eigvals(matrices)
    found: Tensor = values.real.sum(-1) / values.abs().sum(-1)
    return found


def _root(gram: Tensor) -> Tensor:
    """A square root of G = Rᵀ R, so that ‖R X‖ is the norm of X as G measures it."""
    values, vectors = torch.linalg.eigh(gram)
    roots = values.clamp(min=0).sqrt()[..., None]
    found: Tensor = roots * vectors.mT
    return found


def _norm(into: Tensor, out: Tensor) -> Tensor:
    """The Frobenius norm of the product of two thin matrices, which is not built."""
    return ((into.mT @ into) * (out @ out.mT)).sum((-2, -1)).clamp(min=0).sqrt()

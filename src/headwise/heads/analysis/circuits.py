"""The QK and OV circuits of heads, computed from their weights alone.

The QK circuit W_Q W_Kᵀ decides which token attends to which; the OV circuit W_V W_O decides what is
written. Both are (E, E) products of two thin matrices and are never built: their eigenvalues are
those of the (D, D) product in the other order.

Vectors are rows, so that W_V W_O is in the order of application; Elhage et al. write columns. Norms
before the attention, biases and rotations of positions are left out.

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

Kind = Literal["Q", "K", "V"]  # the input of a later head that reads an earlier output


@dataclass(frozen=True, eq=False)
class Circuits:
    """The projections of one layer, head by head, in float64.

    Attributes:
        q, k, v: (H, E, D) each, from the residual stream to the head.
        o: (H, D, E), from the head back to the residual stream.
        v_bias: (H, D), added to the values; 0 without a bias.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    v_bias: Tensor

    def copying(self, embedding: Tensor | None = None, unembedding: Tensor | None = None) -> Tensor:
        """The copying score of each head: Σ λ / Σ |λ| of OV, -1 to 1, (H,).

        Args:
            embedding: (V, E); None measures copying in the residual stream.
            unembedding: (V, E); None for the embedding, as in a model that ties them.

        Source: Elhage et al. 2021, "Detecting copying behavior": eigenvalues of W_E W_V W_O W_U.
        """
        return _positive_share(self.o @ _through(embedding, unembedding, self.o.shape[2]) @ self.v)

    def matching(self, embedding: Tensor | None = None) -> Tensor:
        """How far each head attends to tokens like the query's: Σ λ / Σ |λ| of QK, -1 to 1, (H,).

        Source: Elhage et al. 2021: eigenvalues of W_E W_Q W_Kᵀ W_Eᵀ.
        """
        return _positive_share(self.k.mT @ _through(embedding, None, self.k.shape[1]) @ self.q)

    def values(self, residual: Tensor) -> Tensor:
        """The values (H, L, D) of the input of the attention, (L, E)."""
        return residual.to(self.v.dtype) @ self.v + self.v_bias[:, None]


def composition(earlier: Circuits, later: Circuits, kind: Kind) -> Tensor:
    """How much of the output of earlier heads the later ones read, (H earlier, H later), 0 to 1.

        ‖W_OV M‖ / (‖W_OV‖ ‖M‖), M = W_QK for queries, its transpose for keys, W_OV for values

    Unrelated heads have about `chance`.

    Raises:
        BadValue: if ``kind`` is unknown.

    Source: Elhage et al. 2021, "Two-layer attention-only transformers", Frobenius norms.
    """
    read = {"Q": (later.q, later.k.mT), "K": (later.k, later.q.mT), "V": (later.v, later.o)}
    if kind not in read:
        raise BadValue("kind: unknown {kind!r}; expected 'Q', 'K' or 'V'", kind=kind)
    into, out = read[kind]  # (H, E, D) and (H, D, E)
    between = torch.einsum("ade,bef->abdf", earlier.o, into)
    left, right = _root(earlier.v.mT @ earlier.v), _root(out @ out.mT)
    norms: Tensor = torch.linalg.matrix_norm(left[:, None] @ between @ right.mT)
    return norms / (_norm(earlier.v, earlier.o)[:, None] * _norm(into, out))


def chance(width: int) -> float:
    """The composition of two random heads: the mean over rotations of ‖A R B‖² is ‖A‖² ‖B‖² / E."""
    return 1 / math.sqrt(width)


def value_weighted(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """The norm of what each key adds to the layer's output, ‖A[i,j] v_j W_O‖, (H, Lq, Lk).

    It is small for a large weight on a token whose value is small, such as a sink.

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
    norms: Tensor = torch.linalg.vector_norm(values @ output, dim=-1)  # (H, Lk)
    return weights * norms[:, None]


def value_weighted_together(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """The norm of the sum over the heads of a layer, ‖Σ_h A[i,j] v_j W_O‖, (Lq, Lk).

    Source: Kobayashi et al. 2020, section 3.
    """
    outputs = values @ output  # (H, Lk, E)
    rows = [torch.einsum("hk,hke->ke", row, outputs).norm(dim=-1) for row in weights.unbind(1)]
    return torch.stack(rows)


def circuits_of(module: nn.Module) -> Circuits:
    """The projections of one attention module; raises `BadType` if its architecture is unknown."""
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
    """The projections of every self-attention, by layer.

    A module that is used several times, as in ALBERT, is one layer.

    Raises:
        BadType: if no attention is of a known architecture.
    """
    config = getattr(model, "config", None)
    stacks = ("encoder", "decoder") if getattr(config, "is_encoder_decoder", False) else ()
    by_layer: dict[Layer, Circuits] = {}
    for name, module in model.named_modules():
        if architecture_of(module) is not None and not is_cross_attention(name.lower(), module):
            words = name.lower().split(".")
            part = next((stack for stack in stacks if stack in words), "")
            number = sum(layer.part == part for layer in by_layer)
            by_layer[Layer(part, number)] = circuits_of(module)
    if not by_layer:
        raise BadType(
            "model: expected attentions whose projections are known here, got none in "
            "{model_type}; circuits_of says of one module what is expected",
            model_type=type(model).__name__,
        )
    return by_layer


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
    bias: Tensor | None = getattr(projection, "bias", None)
    if bias is not None:
        return bias.detach().double()
    _, outputs = features(projection) or (0, 0)
    return torch.zeros(outputs, dtype=torch.float64)


def _through(embedding: Tensor | None, unembedding: Tensor | None, width: int) -> Tensor:
    """From the end of a circuit back to its beginning: W_U W_E or the identity, (E, E)."""
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


def _positive_share(matrices: Tensor) -> Tensor:
    """Σ λ / Σ |λ| of each."""
    values: Tensor = torch.linalg.eigvals(matrices)
    return values.real.sum(-1) / values.abs().sum(-1)


def _root(gram: Tensor) -> Tensor:
    """R with G = Rᵀ R."""
    values, vectors = torch.linalg.eigh(gram)
    root: Tensor = values.clamp(min=0).sqrt()[..., None] * vectors.mT
    return root


def _norm(into: Tensor, out: Tensor) -> Tensor:
    """The Frobenius norm of the product of two thin matrices, without building it."""
    return ((into.mT @ into) * (out @ out.mT)).sum((-2, -1)).clamp(min=0).sqrt()

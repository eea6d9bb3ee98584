"""The QK and OV circuits of heads, computed only from the parameters of the model.

The QK circuit W_Q W_Kᵀ determines which tokens a token attends to; the OV circuit W_V W_O
determines the output. Both are (E, E) products of two thin matrices that are never computed: the
(D, D) products in the opposite order have the same nonzero eigenvalues.

Vectors are rows, so W_V W_O is in the order of application; Elhage et al. use columns.
Normalisation before the attention, biases and rotary embeddings are ignored.

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
    """The projections of one layer for each head, in float64.

    Attributes:
        q, k, v: the projections from the residual stream to the head, (H, E, D) each.
        o: the projection from the head to the residual stream, (H, D, E).
        v_bias: the bias of the values (H, D); 0 without a bias.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    v_bias: Tensor

    def copying(self, embedding: Tensor | None = None, unembedding: Tensor | None = None) -> Tensor:
        """Return the copying score (H,) of each head, Σ λ / Σ |λ| of OV, from -1 to 1.

        Args:
            embedding: the embedding (V, E); None measures copying in the residual stream.
            unembedding: the unembedding (V, E); None for tied embeddings.

        Source: Elhage et al. 2021, "Detecting copying behavior": eigenvalues of W_E W_V W_O W_U.
        """
        return _positive_share(self.o @ _through(embedding, unembedding, self.o.shape[2]) @ self.v)

    def matching(self, embedding: Tensor | None = None) -> Tensor:
        """Return the matching score (H,) of each head, Σ λ / Σ |λ| of QK, from -1 to 1.

        Source: Elhage et al. 2021: eigenvalues of W_E W_Q W_Kᵀ W_Eᵀ.
        """
        return _positive_share(self.k.mT @ _through(embedding, None, self.k.shape[1]) @ self.q)

    def values(self, residual: Tensor) -> Tensor:
        """Return the values (H, L, D) for an input (L, E) of the attention."""
        return residual.to(self.v.dtype) @ self.v + self.v_bias[:, None]


def composition(earlier: Circuits, later: Circuits, kind: Kind) -> Tensor:
    """Return how much later heads read from the output of earlier heads, (H earlier, H later).

        ‖W_OV M‖ / (‖W_OV‖ ‖M‖), M = W_QK for queries, its transpose for keys, W_OV for values

    Scores are between 0 and 1; unrelated heads have about `chance`.

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
    """Return 1 / √E, the composition of random heads: ‖A R B‖² averages ‖A‖² ‖B‖² / E over R."""
    return 1 / math.sqrt(width)


def value_weighted(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """Return the norm of the output from each key, ‖A[i,j] v_j W_O‖, (H, Lq, Lk).

    The norm is small for a large weight on a token with a small value, such as a sink.

    Args:
        weights: the attention weights (H, Lq, Lk).
        values: the values (H, Lk, D), from `Circuits.values`.
        output: the output projections (H, D, E), `Circuits.o`.

    Source: Kobayashi et al. 2020, section 3, equation 6.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> value_weighted(0.5 * one, 3 * one, 2 * one)
        tensor([[[3.]]])
    """
    norms: Tensor = torch.linalg.vector_norm(values @ output, dim=-1)  # (H, Lk)
    return weights * norms[:, None]


def value_weighted_together(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """Return the norm of the output of all heads from each key, ‖Σ_h A[i,j] v_j W_O‖, (Lq, Lk).

    Source: Kobayashi et al. 2020, section 3.
    """
    outputs = values @ output  # (H, Lk, E)
    rows = [torch.einsum("hk,hke->ke", row, outputs).norm(dim=-1) for row in weights.unbind(1)]
    return torch.stack(rows)


def circuits_of(module: nn.Module) -> Circuits:
    """Return the projections of an attention module; raise `BadType` if it is not supported."""
    architecture = architecture_of(module)
    if architecture is None:
        raise BadType(
            "module: expected an attention module of a supported architecture, got "
            "{module_type}; create its Circuits directly",
            module_type=type(module).__name__,
        )
    size: Any = attribute(module, architecture.size)
    (q, _), (k, _), (v, bias) = _inputs(module, architecture, size)
    o = _matrix(attribute(module, architecture.out)).mT.unflatten(0, (-1, size))  # type: ignore[no-untyped-call]
    heads = len(q)
    k, v, bias = (part.repeat_interleave(heads // len(part), 0) for part in (k, v, bias))
    return Circuits(q, k, v, o, bias)


def circuits(model: nn.Module) -> dict[Layer, Circuits]:
    """Return the projections of every self-attention, by layer.

    A module that several layers share, as in ALBERT, counts as one layer.

    Raises:
        BadType: if no attention module has a supported architecture.
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
            "model: expected attention modules of a supported architecture, got none in "
            "{model_type}; create Circuits directly",
            model_type=type(model).__name__,
        )
    return by_layer


def _inputs(
    module: nn.Module, architecture: Architecture, size: int
) -> list[tuple[Tensor, Tensor]]:
    """Return weight (heads, E, D) and bias (heads, D) for each of q, k and v."""
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
    """Return the weight (out, in) of a projection in float64."""
    weight: Tensor = projection.weight.detach().double()
    return weight.mT if is_transposed(projection) else weight


def _bias(projection: Any) -> Tensor:
    bias: Tensor | None = getattr(projection, "bias", None)
    if bias is not None:
        return bias.detach().double()
    _, outputs = features(projection) or (0, 0)
    return torch.zeros(outputs, dtype=torch.float64)


def _through(embedding: Tensor | None, unembedding: Tensor | None, width: int) -> Tensor:
    """Return the map (E, E) from the output of a circuit to its input: W_U W_E or the identity."""
    if embedding is None:
        return torch.eye(width, dtype=torch.float64)
    into = embedding.detach().double()
    back = into if unembedding is None else unembedding.detach().double()
    if into.shape != back.shape or into.shape[-1] != width:
        raise BadValue(
            "embedding: expected two matrices (V, {width}), got {into_shape} and "
            "{back_shape}; use embedding and unembedding of the same model",
            width=width,
            into_shape=tuple(into.shape),
            back_shape=tuple(back.shape),
        )
    return back.mT @ into


def _positive_share(matrices: Tensor) -> Tensor:
    """Return Σ λ / Σ |λ| of the eigenvalues of each matrix."""
    values: Tensor = torch.linalg.eigvals(matrices)
    return values.real.sum(-1) / values.abs().sum(-1)


def _root(gram: Tensor) -> Tensor:
    """Return R with G = Rᵀ R."""
    values, vectors = torch.linalg.eigh(gram)
    root: Tensor = values.clamp(min=0).sqrt()[..., None] * vectors.mT
    return root


def _norm(into: Tensor, out: Tensor) -> Tensor:
    """Return the Frobenius norm of a product of two thin matrices, without the product."""
    return ((into.mT @ into) * (out @ out.mT)).sum((-2, -1)).clamp(min=0).sqrt()

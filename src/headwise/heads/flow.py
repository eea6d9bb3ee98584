"""How much of each input token reaches each token of a layer, through all layers below.

In causal models early tokens gain by construction: every path ends among them. Compare with the
value of a uniform head, or with tokens at like places.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import BadValue, MissingExtra


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Attention through the layers as a product of matrices, (..., L, L).

    Each layer counts half for the tokens it attends to and half for the residual beside it.

    Args:
        layers: from the lowest, each (..., L, L): the weights, averaged over the heads.

    Raises:
        BadValue: if there is no layer, or they differ in shape.

    Source: Abnar & Zuidema 2020, section 3, equation 1.

    Example:
        >>> rollout([torch.tensor([[1.0, 0.0], [0.5, 0.5]])])
        tensor([[1.0000, 0.0000],
                [0.2500, 0.7500]])
    """
    with_residual = _with_residual(layers)
    found = with_residual[0]
    for layer in with_residual[1:]:
        found = layer @ found
    return found


def flow(layers: Sequence[Tensor], *, normalised: bool = False) -> Tensor:
    """The largest flow from each token of the last layer to each input token, (L, L).

    Weights are capacities of pipes between tokens of neighbouring layers; a token passes on
    whatever it gets.

    Args:
        layers: from the lowest, each (L, L): the weights, averaged over the heads.
        normalised: whether each row is divided by its sum, as the authors' code does.

    Raises:
        BadValue: if there is no layer, or they differ in shape or are no matrices.
        MissingExtra: if networkx, which torch brings along, is not there.

    Source: Abnar & Zuidema 2020, section 3: one maximum flow for each pair, O(L² · edges²) at
    worst: for sentences, not for documents.

    Example:
        >>> flow([torch.tensor([[1.0, 0.0], [0.5, 0.5]])])
        tensor([[1.0000, 0.0000],
                [0.2500, 0.7500]])
    """
    try:
        import networkx
    except ImportError as error:
        raise MissingExtra.of("networkx", "inspect") from error
    with_residual = _with_residual(layers)
    if with_residual[0].dim() != 2:
        raise BadValue(
            "layers: expected matrices (L, L), got {shape}; average over the heads, one "
            "sample at a time",
            shape=tuple(with_residual[0].shape),
        )
    graph = networkx.DiGraph()
    for number, layer in enumerate(with_residual, 1):
        for i, row in enumerate(layer.tolist()):
            pipes = (((number, i), (number - 1, j), size) for j, size in enumerate(row) if size)
            graph.add_weighted_edges_from(pipes, weight="capacity")
    length, top = with_residual[0].shape[0], len(with_residual)
    graph.add_nodes_from((0, j) for j in range(length))
    found = [
        [networkx.maximum_flow_value(graph, (top, i), (0, j)) for j in range(length)]
        for i in range(length)
    ]
    flows = with_residual[0].new_tensor(found)
    return flows / flows.sum(-1, keepdim=True) if normalised else flows


def _with_residual(layers: Sequence[Tensor]) -> list[Tensor]:
    shapes = [tuple(layer.shape) for layer in layers]
    if not shapes or len(set(shapes)) > 1 or len(shapes[0]) < 2 or shapes[0][-1] != shapes[0][-2]:
        raise BadValue(
            "layers: expected one or more of one shape (..., L, L), got {shapes}", shapes=shapes
        )
    own = torch.eye(shapes[0][-1], dtype=layers[0].dtype, device=layers[0].device)
    return [0.5 * layer + 0.5 * own for layer in layers]

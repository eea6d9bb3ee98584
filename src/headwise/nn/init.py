"""How the projections of a `MultiheadAttention` start.

| word | each projection W (out, in) | variance of an entry |
|---|---|---|
| xavier_uniform | U(-a, a), a = sqrt(6 / (in + out)) | 2 / (in + out) |
| xavier_normal | N(0, 2 / (in + out)) | 2 / (in + out) |
| orthogonal | W Wᵀ = I, or Wᵀ W = I where W is tall | 1 / max(in, out) |
| torch, q k v | xavier_uniform over the packed (3E, E) | 1 / (2E) |
| torch, out | U(-a, a), a = 1 / sqrt(in) | 1 / (3 in) |

PyTorch draws q, k and v as one matrix of 3E rows, so each of them starts with half the variance
that Xavier asks for: at E = 256 a standard deviation of .0442 and not .0625. Here each projection
is drawn by itself unless "torch" is asked for, which gives PyTorch's very numbers for a seed.

Biases start at 0; ``bias_k`` and ``bias_v`` are Xavier normal, as in PyTorch, variance 1 / (G D).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue, one_of

PROJECTIONS = ("q", "k", "v", "out")
"""The projections, by the names that an `init` mapping uses."""

INITS = ("xavier_uniform", "xavier_normal", "orthogonal", "torch")
"""Every word that `init` knows."""


def words(init: object) -> dict[str, str]:
    """The word for each projection.

    Args:
        init: one word for all, or a mapping from projections to words; what it leaves out is
            "xavier_uniform".

    Raises:
        BadType: if it is neither.
        BadValue: if a word or a projection is unknown, or "torch" is asked of one projection.

    Example:
        >>> words({"out": "orthogonal"})["q"]
        'xavier_uniform'
    """
    if isinstance(init, str):
        if init not in INITS:
            raise one_of("init", init, INITS)
        return dict.fromkeys(PROJECTIONS, init)
    if not isinstance(init, Mapping):
        raise BadType(
            f"init: expected a word or a mapping such as {{'q': 'orthogonal'}}, got {init!r}",
            f"init：应为一个词，或形如 {{'q': 'orthogonal'}} 的映射，收到 {init!r}",
        )
    for name, word in init.items():
        if name not in PROJECTIONS:
            raise one_of("init", name, PROJECTIONS)
        if word == "torch":
            raise BadValue(
                f"init: 'torch' is for the whole module, got it for '{name}' alone; "
                "use init='torch', or 'xavier_uniform' for this projection",
                f"init：'torch' 只能用于整个模块，收到单独用于 '{name}'；"
                "请用 init='torch'，或对该投影用 'xavier_uniform'",
            )
        if word not in INITS:
            raise one_of(f"init[{name!r}]", word, INITS[:-1])
    return dict.fromkeys(PROJECTIONS, "xavier_uniform") | dict(init)


@torch.no_grad()
def initialise(
    projections: Mapping[str, nn.Linear],
    extra: Iterable[Tensor],
    init: Mapping[str, str],
    packed: bool,
) -> None:
    """Draw every parameter anew.

    Args:
        projections: the four, by the names in `PROJECTIONS`.
        extra: ``bias_k`` and ``bias_v`` where the module has them.
        init: what `words` gave.
        packed: whether PyTorch would keep q, k and v as one matrix.
    """
    if "torch" in init.values():
        _as_torch(projections, packed)
    else:
        for name in PROJECTIONS:
            _fill(projections[name].weight, init[name])
    for projection in projections.values():
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)
    for vector in extra:
        nn.init.xavier_normal_(vector)


def _as_torch(projections: Mapping[str, nn.Linear], packed: bool) -> None:
    """PyTorch's draws in PyTorch's order: the output projection as an nn.Linear, then q, k, v."""
    projections["out"].reset_parameters()
    weights = [projections[name].weight for name in PROJECTIONS[:3]]
    if not packed:
        for weight in weights:
            nn.init.xavier_uniform_(weight)
        return
    whole = nn.init.xavier_uniform_(torch.cat(weights))
    for weight, part in zip(weights, whole.chunk(3), strict=True):
        weight.copy_(part)


def _fill(weight: Tensor, word: str) -> None:
    if word == "xavier_uniform":
        nn.init.xavier_uniform_(weight)
    elif word == "xavier_normal":
        nn.init.xavier_normal_(weight)
    else:  # the QR decomposition wants float32 at least
        wide = torch.empty_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        weight.copy_(nn.init.orthogonal_(wide))

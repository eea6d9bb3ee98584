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

`t_fixup` starts the layers of a deep model anew, with smaller values the deeper it is:

| T-Fixup, for depth N | each W (out, in) | variance of an entry |
|---|---|---|
| q, k | xavier_uniform | 2 / (in + out) |
| v, out, feed-forward: encoder | the same times .67 N^(-1/4) | .8978 N^(-1/2) / (in + out) |
| v, out, feed-forward: decoder | the same times (9 N)^(-1/4) | 2 (9 N)^(-1/2) / (in + out) |

`headwise.nn.measure` gives the variance of signal and gradient through a stack of layers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from headwise.errors import BadType, BadValue, one_of
from headwise.nn.validation import check_positive

PROJECTIONS = ("q", "k", "v", "out")
"""The projections, by the names that an `init` mapping uses."""

INITS = ("xavier_uniform", "xavier_normal", "orthogonal", "torch")
"""Every word that `init` knows."""

FIXUP: dict[str, Callable[[int], float]] = {
    "encoder": lambda depth: 0.67 * float(depth) ** -0.25,
    "decoder": lambda depth: float(9 * depth) ** -0.25,
}
"""The factor of T-Fixup for each part of a model of that many layers."""


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
            "init: expected a word or a mapping such as {{'q': 'orthogonal'}}, got {init!r}",
            init=init,
        )
    for name, word in init.items():
        if name not in PROJECTIONS:
            raise one_of("init", name, PROJECTIONS)
        if word == "torch":
            raise BadValue(
                "init: 'torch' is for the whole module, got it for '{name}' alone; use "
                "init='torch', or 'xavier_uniform' for this projection",
                name=name,
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


@torch.no_grad()
def t_fixup(layer: nn.Module, depth: int, part: str = "encoder") -> None:
    """Draw the weights of one layer anew, so that a model of that many trains without warm-up.

    Every `headwise.MultiheadAttention` in the layer starts as "xavier_uniform" with v and out times
    the factor of `FIXUP`; every other ``nn.Linear`` likewise, all of it times the factor; their
    biases are 0. The paper also removes the layer norms, which is the caller's to do, and starts
    embeddings as N(0, 1/E) times (9 N)^(-1/4).

    Args:
        layer: one layer of the model, attention and feed-forward.
        depth: N, how many layers the encoder, or the decoder, has.
        part: "encoder" or "decoder".

    Raises:
        BadType: if the layer holds a `torch.nn.MultiheadAttention`, or depth is no integer.
        BadValue: if depth is below 1 or the part unknown.

    Source: Huang et al. 2020 (T-Fixup), section 3.2.

    Example:
        >>> import headwise as hw
        >>> layers = [nn.TransformerEncoderLayer(8, 2) for _ in range(16)]
        >>> for layer in layers:
        ...     _ = hw.convert(layer)
        ...     t_fixup(layer, depth=len(layers))
        >>> FIXUP["encoder"](16)
        0.335
    """
    check_positive({"depth": depth})
    if part not in FIXUP:
        raise one_of("part", part, tuple(FIXUP))
    modules = list(layer.modules())
    if any(isinstance(module, nn.MultiheadAttention) for module in modules):
        raise BadType(
            "layer: holds a torch.nn.MultiheadAttention, whose v is part of a packed "
            "matrix; use hw.convert(layer) first"
        )
    factor, done = FIXUP[part](depth), set[nn.Module]()
    for module in modules:
        found = {name: getattr(module, f"{name}_proj", None) for name in PROJECTIONS}
        projections = {name: each for name, each in found.items() if isinstance(each, nn.Linear)}
        if len(projections) == len(PROJECTIONS):
            initialise(projections, (), words("xavier_uniform"), False)
            for name in ("v", "out"):
                projections[name].weight.mul_(factor)
            done.update(projections.values())
    for module in modules:
        if isinstance(module, nn.Linear) and module not in done:
            _fill(module.weight, "xavier_uniform")
            module.weight.mul_(factor)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


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


@dataclass(frozen=True)
class Place:
    """Where the parameters of a module are made, and of which type.

    Attributes:
        device: where.
        dtype: their type; None means PyTorch's default.
    """

    device: torch.device | str
    dtype: torch.dtype | None

    @classmethod
    def of(cls, device: torch.device | str | None, dtype: torch.dtype | None) -> "Place":
        """The place asked for; None means the default device."""
        return cls(torch.get_default_device() if device is None else device, dtype)

    def linear(self, size: int, out: int, bias: bool) -> nn.Linear:
        """A projection of vectors of one size to another, its numbers not drawn yet."""
        options = {"bias": bias, "device": self.device, "dtype": self.dtype}
        made: nn.Linear = skip_init(nn.Linear, size, out, **options)  # type: ignore[no-untyped-call]
        return made

    def vector(self, *shape: int) -> nn.Parameter:
        """A parameter, its numbers not drawn yet."""
        return nn.Parameter(torch.empty(*shape, device=self.device, dtype=self.dtype))

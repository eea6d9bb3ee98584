"""Initialisation of the projections, and the variance of the signal through a stack of layers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue, one_of
from headwise.nn.validation import check_positive

ROLES = ("q", "k", "v", "out")  # the projections, by the names that an `init` mapping uses
INITS = ("xavier_uniform", "xavier_normal", "orthogonal", "torch")  # the values of `init`

FIXUP: dict[str, Callable[[int], float]] = {
    "encoder": lambda depth: 0.67 * float(depth) ** -0.25,
    "decoder": lambda depth: float(9 * depth) ** -0.25,
}
"""The factor of T-Fixup for each part of a model, by its depth."""


@dataclass(frozen=True)
class ParameterFactory:
    """Creates parameters on a device and of a dtype, without initialisation or random numbers."""

    device: torch.device | str | None
    dtype: torch.dtype | None

    def linear(self, size: int, out: int, bias: bool) -> nn.Linear:
        linear = nn.Linear(size, out, bias=bias, device="meta", dtype=self.dtype)
        linear.weight = self.vector(out, size)
        if bias:
            linear.bias = self.vector(out)
        return linear

    def vector(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(*shape, device=self.device, dtype=self.dtype))


def words_by_role(init: object) -> dict[str, str]:
    """The initialisation of each projection, of a word for all or a mapping from roles to words.

    A missing role is "xavier_uniform".

    Example:
        >>> words_by_role({"out": "orthogonal"})["q"]
        'xavier_uniform'
    """
    if isinstance(init, str):
        if init not in INITS:
            raise one_of("init", init, INITS)
        return dict.fromkeys(ROLES, init)
    if not isinstance(init, Mapping):
        raise BadType(
            "init: expected a word or a mapping such as {{'q': 'orthogonal'}}, got {init!r}",
            init=init,
        )
    for role, word in init.items():
        if role not in ROLES:
            raise one_of("init", role, ROLES)
        if word == "torch":
            raise BadValue(
                "init: 'torch' is for the whole module, got it for '{role}' alone; use "
                "init='torch', or 'xavier_uniform' for this projection",
                role=role,
            )
        if word not in INITS:
            raise one_of(f"init[{role!r}]", word, INITS[:-1])
    return dict.fromkeys(ROLES, "xavier_uniform") | dict(init)


@torch.no_grad()
def initialise(
    projections: Mapping[str, nn.Linear], vectors: Iterable[Tensor], init: Mapping[str, str],
    packed: bool,
) -> None:  # fmt: skip
    """Initialise the projections by role, and ``bias_k`` and ``bias_v``.

    ``packed`` is whether PyTorch would keep q, k and v as one matrix.
    """
    if "torch" in init.values():
        _initialise_as_torch(projections, packed)
    for role in ROLES:
        if init[role] != "torch":
            _initialise_weight(projections[role].weight, init[role])
        if projections[role].bias is not None:
            nn.init.zeros_(projections[role].bias)
    for vector in vectors:
        nn.init.xavier_normal_(vector)


@torch.no_grad()
def t_fixup(layer: nn.Module, depth: int, part: str = "encoder") -> None:
    """Initialise one layer of a deep model so that it trains without warm-up.

    All ``nn.Linear`` become "xavier_uniform" with bias 0, times the factor of `FIXUP` except q and
    k of a `headwise.MultiheadAttention`. The paper also removes the layer norms and initialises
    embeddings as N(0, 1/E) times (9 N)^(-1/4), which is left to the caller.

    Args:
        layer: one layer of the model, attention and feed-forward.
        depth: N, how many layers the encoder, or the decoder, has.
        part: "encoder" or "decoder".

    Raises:
        BadType, BadValue: if the layer holds a `torch.nn.MultiheadAttention`, depth is no integer
            of at least 1, or the part is unknown.

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
    check_positive(depth=depth)
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
        projections = {role: getattr(module, f"{role}_proj", None) for role in ROLES}
        linear = {role: p for role, p in projections.items() if isinstance(p, nn.Linear)}
        if len(linear) == len(ROLES):
            initialise(linear, (), words_by_role("xavier_uniform"), False)
            for role in ("v", "out"):
                linear[role].weight.mul_(factor)
            done.update(linear.values())
    for module in modules:
        if isinstance(module, nn.Linear) and module not in done:
            _initialise_weight(module.weight, "xavier_uniform")
            module.weight.mul_(factor)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _initialise_as_torch(projections: Mapping[str, nn.Linear], packed: bool) -> None:
    """PyTorch's draws in PyTorch's order: the output projection as an nn.Linear, then q, k, v."""
    projections["out"].reset_parameters()
    weights = [projections[role].weight for role in ROLES[:3]]
    fused = [torch.cat(weights)] if packed else weights
    for matrix in fused:
        nn.init.xavier_uniform_(matrix)
    if packed:
        for weight, rows in zip(weights, fused[0].chunk(3), strict=True):
            weight.copy_(rows)


def _initialise_weight(weight: Tensor, word: str) -> None:
    if word == "xavier_uniform":
        nn.init.xavier_uniform_(weight)
    elif word == "xavier_normal":
        nn.init.xavier_normal_(weight)
    else:  # the QR decomposition needs float32 at least
        matrix = torch.empty_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        weight.copy_(nn.init.orthogonal_(matrix))


Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Flow:
    """Variances before the first layer and after every layer; printed as a table.

    Attributes:
        signal: of the input, then of the output of every layer: N + 1 numbers.
        gradient: of the gradient at the same places; the last is that of the random gradient, of
            variance about 1, with which the backward pass starts.
    """

    signal: tuple[float, ...]
    gradient: tuple[float, ...]

    def __str__(self) -> str:
        head = f"{'after layer':>11}  {'signal':>9}  {'gradient':>9}"
        pairs = zip(self.signal, self.gradient, strict=True)
        rows = (f"{n:>11}  {up:>9.3g}  {down:>9.3g}" for n, (up, down) in enumerate(pairs))
        return "\n".join((head, *rows))


def measure(layers: Sequence[Layer], x: Tensor, *, seed: int = 0) -> Flow:
    """The variance of the signal and of the gradient after every layer.

    Both are taken over all entries of one input and one gradient. The gradients of parameters are
    left unchanged.

    Args:
        layers: functions of one tensor, in order; of an attention
            ``lambda x: attention(x, x, x, need_weights=False)[0]``.
        x: the input of the first layer, floating point, large enough and drawn from N(0, 1).
        seed: of the gradient with which the backward pass starts.

    Raises:
        BadType, BadValue: if there is no layer, a tensor is not floating point, or x has fewer than
            two entries.

    Example:
        >>> def double(x):
        ...     return 2 * x
        >>> print(measure([double, double], torch.tensor([-1.0, 0.0, 1.0])))
        after layer     signal   gradient
                  0          1       55.4
                  1          4       13.8
                  2         16       3.46
    """
    layers = list(layers)
    if not layers:
        raise BadValue("layers: expected at least one function of a tensor, got none")
    _check_floating("x", x)
    if x.numel() < 2:
        raise BadValue(
            "x: expected at least two entries to have a variance, got {shape}", shape=tuple(x.shape)
        )
    with torch.enable_grad():
        signals = [x.detach().requires_grad_()]
        for number, layer in enumerate(layers):
            signals.append(layer(signals[-1]))
            _check_floating(f"layers[{number}]", signals[-1])
        generator = torch.Generator().manual_seed(seed)
        last = torch.randn(signals[-1].shape, generator=generator).to(signals[-1])
        gradients = torch.autograd.grad(signals[-1], signals, last)
    return Flow(_variances(signals), _variances(gradients))


def _variances(tensors: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(tensor.detach().double().var().item() for tensor in tensors)


def _check_floating(name: str, value: object) -> None:
    if isinstance(value, Tensor) and value.is_floating_point():
        return
    raise BadType(
        "{name}: expected a floating point tensor, got {got}; wrap an attention that also returns "
        "weights as lambda x: attention(x, x, x)[0]",
        name=name,
        got=value.dtype if isinstance(value, Tensor) else type(value).__name__,
    )

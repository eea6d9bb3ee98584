"""Initialisation of the projections, and the variance of the signal through a stack of layers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue, one_of
from headwise.nn.validation import check_positive

ROLES = ("q", "k", "v", "out")  # the names of the projections in an `init` mapping
INITS = ("xavier_uniform", "xavier_normal", "orthogonal", "torch")  # the values of `init`

FIXUP: dict[str, Callable[[int], float]] = {
    "encoder": lambda depth: 0.67 * float(depth) ** -0.25,
    "decoder": lambda depth: float(9 * depth) ** -0.25,
}
"""T-Fixup's factor for each part of a model, as a function of the number of layers."""


@dataclass(frozen=True)
class ParameterFactory:
    """A factory of uninitialised parameters on one device and of one dtype."""

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
    """Return the initialisation of each role, given one name for all or a mapping by role.

    A role missing from the mapping gets "xavier_uniform".

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
            "init: expected a string or a mapping such as {{'q': 'orthogonal'}}, got {init!r}",
            init=init,
        )
    for role, word in init.items():
        if role not in ROLES:
            raise one_of("init", role, ROLES)
        if word == "torch":
            raise BadValue(
                "init: 'torch' initialises the whole module, but the mapping has it for '{role}' "
                "only; use init='torch', or 'xavier_uniform' for this projection",
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

    ``packed`` says whether PyTorch would store q, k and v as one matrix.
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

    Every ``nn.Linear`` gets "xavier_uniform" weights and bias 0. The weights are multiplied by the
    factor in `FIXUP`, except q and k of a `headwise.MultiheadAttention`. The paper also removes the
    layer norms and draws embeddings from N(0, 1/E), times (9 N)^(-1/4): the caller must do both.

    Args:
        layer: one layer of the model, with attention and feed-forward network.
        depth: N, the number of layers of the encoder or of the decoder.
        part: the part of the model that contains the layer, "encoder" or "decoder".

    Raises:
        BadType, BadValue: if the layer contains a `torch.nn.MultiheadAttention`, depth is not an
            integer of at least 1, or the part is unknown.

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
            "layer: it contains a torch.nn.MultiheadAttention, whose v is part of a packed "
            "matrix; call hw.convert(layer) first"
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
    """Draw the same random numbers as PyTorch: first the output projection, then q, k and v."""
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
    else:  # the QR decomposition needs at least float32
        matrix = torch.empty_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        weight.copy_(nn.init.orthogonal_(matrix))


Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Flow:
    """The variances before the first layer and after every layer; ``str`` gives a table.

    Attributes:
        signal: the variance of the input, then of the output of every layer; N + 1 numbers.
        gradient: the variance of the gradient at the same places. The last number, about 1, belongs
            to the random gradient with which the backward pass starts.
    """

    signal: tuple[float, ...]
    gradient: tuple[float, ...]

    def __str__(self) -> str:
        head = f"{'after layer':>11}  {'signal':>9}  {'gradient':>9}"
        pairs = zip(self.signal, self.gradient, strict=True)
        rows = (f"{n:>11}  {up:>9.3g}  {down:>9.3g}" for n, (up, down) in enumerate(pairs))
        return "\n".join((head, *rows))


def measure(layers: Sequence[Layer], x: Tensor, *, seed: int = 0) -> Flow:
    """Measure the variance of the signal and of the gradient after every layer.

    Each variance is taken over all entries of one tensor. The gradients of parameters stay
    unchanged.

    Args:
        layers: functions of one tensor, in order; for an attention module use
            ``lambda x: attention(x, x, x, need_weights=False)[0]``.
        x: the floating point input of the first layer, usually a large sample from N(0, 1).
        seed: the seed of the random gradient with which the backward pass starts.

    Raises:
        BadType, BadValue: if ``layers`` is empty, a tensor is not floating point, or x has fewer
            than two entries.

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
        raise BadValue("layers: expected at least one layer, got an empty sequence")
    _check_floating("x", x)
    if x.numel() < 2:
        raise BadValue(
            "x: the variance needs at least two entries, got shape {shape}", shape=tuple(x.shape)
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
        "{name}: expected a floating point tensor, got {got}; for an attention module, which also "
        "returns weights, use lambda x: attention(x, x, x)[0]",
        name=name,
        got=value.dtype if isinstance(value, Tensor) else type(value).__name__,
    )

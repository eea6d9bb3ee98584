"""The expected output of a `MultiheadAttention`, from its parameters and the float64 reference.

The test writes the masks in headwise's convention (True means that the query may attend), so the
conversion of PyTorch's arguments in the module is not used.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headwise as hw
from headwise.call import Call
from headwise.nn import UnitNorm
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests import roundings
from tests.roundings import nudged

B, L, S, E, H = 2, 5, 7, 12, 3
"""Primes, but for E, which H divides."""

NAMES = ("query", "key", "value")

BEFORE = {
    "query_norm": "q_proj",
    "logit_scale": "q_proj",
    "key_norm": "k_proj",
    "bias_k": "k_proj",
    "bias_v": "v_proj",
}
"""The projection to which few parameters belong."""


def torch_state(module: nn.Module, *, keep_vars: bool = False) -> dict[str, Tensor]:
    """The state_dict of a module in which PyTorch's attention stands where ours does."""
    state = dict(module.state_dict(keep_vars=keep_vars))
    for name, child in module.named_modules():
        if isinstance(child, hw.MultiheadAttention):
            prefix = f"{name}." if name else ""
            state = {key: value for key, value in state.items() if not key.startswith(prefix)}
            state |= child.torch_state_dict(prefix, keep_vars=keep_vars)
    return state


@dataclass
class Exact:
    """The exact answer in one dtype, with the leaves its gradients are taken for."""

    output: Tensor  # (B, L, E)
    weights: Tensor  # (B, H, L, S + extra)
    leaves: dict[str, Tensor]


def inputs(
    module: hw.MultiheadAttention, batch: int = B, queries: int = L, keys: int = S
) -> list[Tensor]:
    """query, key, value, batch first, that want gradients."""
    dtype = next(module.parameters()).dtype
    sizes = ((queries, module.embed_dim), (keys, module.kdim), (keys, module.vdim))
    return [torch.randn(batch, *size, dtype=dtype, requires_grad=True) for size in sizes]


def exact(
    module: hw.MultiheadAttention,
    given: list[Tensor],
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Exact:
    """The answer for inputs (B, L, E); allowed and bias broadcast to (B, H, L, S)."""
    named = dict(zip(NAMES, given, strict=True)) | dict(module.named_parameters())
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in named.items()}

    def project(name: str, x: Tensor) -> Tensor:
        return F.linear(x, leaves[f"{name}.weight"], leaves.get(f"{name}.bias"))

    def split(x: Tensor, heads: int) -> Tensor:
        return x.reshape(*x.shape[:2], heads, module.head_dim).permute(0, 2, 1, 3)

    q = _normed(
        "query_norm", module, leaves, split(project("q_proj", leaves["query"]), module.num_heads)
    )
    k = _normed(
        "key_norm", module, leaves, split(project("k_proj", leaves["key"]), module.num_kv_heads)
    )
    v = split(project("v_proj", leaves["value"]), module.num_kv_heads)
    batch, heads, queries, keys = (*q.shape[:3], k.shape[2])
    if "bias_k" in leaves:
        shape = (batch, module.num_kv_heads, 1, module.head_dim)
        rows = [leaves[n].view(1, *shape[1:]).expand(shape) for n in ("bias_k", "bias_v")]
        k, v = torch.cat((k, rows[0]), 2), torch.cat((v, rows[1]), 2)
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    extra = k.shape[2] - keys
    seen = torch.ones(1, dtype=torch.bool) if allowed is None else allowed
    seen = F.pad(seen.expand(batch, heads, queries, keys), (0, extra), value=True)
    mask = hw.from_tensor(seen, "b h q k")
    if bias is not None:
        wide = F.pad(bias.expand(batch, heads, queries, keys), (0, extra))
        mask = mask & hw.from_tensor(wide, "b h q k")
    position = copy.deepcopy(module.position)
    if position is not None:  # one that acts inside attention; the reference applies it
        own = position.to(dtype).named_parameters()
        leaves |= {f"position.{name}": parameter for name, parameter in own}
    scale = None
    if module.logit_scale is not None:
        factor = leaves["logit_scale.log"].exp()
        q, scale = q * factor.clamp(max=module.logit_scale.most or torch.inf)[:, None, None], 1.0
    steps = reference(Call.of(q, k, v, mask=mask, position=position, scale=scale), dtype)
    found = steps.output
    if module.gate is not None:
        gates = torch.sigmoid(leaves["query"] @ leaves["gate.proj.weight"].mT)
        found = found * gates.view(batch, queries, heads, -1).permute(0, 2, 1, 3)
    joined = found.permute(0, 2, 1, 3).reshape(batch, queries, heads * module.head_dim)
    return Exact(project("out_proj", joined), steps.weights, leaves)


def _normed(
    name: str, module: hw.MultiheadAttention, leaves: dict[str, Tensor], x: Tensor
) -> Tensor:
    """What a norm gives, written out: x / rms(x) times the weights, or x / |x|."""
    norm = getattr(module, name)
    if norm is None:
        return x
    if isinstance(norm, UnitNorm):
        return x / x.square().sum(-1, keepdim=True).sqrt()
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * leaves[f"{name}.weight"]


class Truth:
    """The exact answer and the plain one, with their gradients, to hold results against."""

    def __init__(
        self,
        module: hw.MultiheadAttention,
        given: list[Tensor],
        allowed: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        self.module, self.given, self.hidden = module, given, (allowed, bias)
        self.own = dict(zip(NAMES, given, strict=True)) | dict(module.named_parameters())
        self.oracle = exact(module, given, allowed, bias)
        self.plain = exact(module, given, allowed, bias, given[0].dtype)
        self.probe = torch.randn_like(self.oracle.output)
        self.right = _gradients(self.oracle.output, self.oracle.leaves, self.probe)
        self.near = _gradients(self.plain.output, self.plain.leaves, self.probe)

    def hold(self, output: Tensor, weights: Tensor | None) -> None:
        """Assert that a result, batch first, is accepted, and its gradients where it has any."""

        def numbers(run: Exact, gradients: dict[str, Tensor]) -> list[Tensor]:
            kept = [run.output]
            if weights is not None:
                kept.append(run.weights.mean(1) if weights.dim() == 3 else run.weights)
            return kept + [gradients[name] for name in found]

        found = _gradients(output, self.own, self.probe) if output.requires_grad else {}
        results = [x for x in (output, weights, *found.values()) if x is not None]
        pair = (self.plain, self.near), (self.oracle, self.right)
        roundings.hold(
            results, *(numbers(*each) for each in pair), lambda run: numbers(*self._again(run))
        )

    def _again(self, run: int) -> tuple[Exact, dict[str, Tensor]]:
        """A plain run that rounds otherwise, with its gradients."""
        module = copy.deepcopy(self.module)
        with torch.enable_grad():
            for parameter in module.parameters():
                parameter.data = nudged(parameter, run).detach()
            given = [nudged(x, run) for x in self.given]
            plain = exact(module, given, *self.hidden, given[0].dtype)
            return plain, _gradients(plain.output, plain.leaves, self.probe)


def check(
    module: hw.MultiheadAttention,
    given: list[Tensor],
    got: tuple[Tensor, Tensor | None],
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Assert that what the module gave for `given`, batch first, is accepted."""
    Truth(module, given, allowed, bias).hold(*got)


def _gradients(output: Tensor, leaves: dict[str, Tensor], probe: Tensor) -> dict[str, Tensor]:
    """One gradient for each input and for each projection, its weight and bias in one vector.

    k_proj's bias has the gradient 0, the softmax being blind to it; alone it would compare noise.
    So would a few numbers, the largest of six roundings with that of six others: those that are
    not of a projection go with the one that they belong to.
    """
    wanted = [x for x in leaves.values() if x.requires_grad]
    grads = torch.autograd.grad(
        output, wanted, probe.to(output.dtype), allow_unused=True, retain_graph=True
    )
    parts: dict[str, list[Tensor]] = {}
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        whole = torch.zeros_like(leaf) if grad is None else grad
        owner = name.split(".")[0]
        parts.setdefault(BEFORE.get(owner, owner), []).append(whole.flatten())
    return {name: torch.cat(grads) for name, grads in parts.items()}


def against_torch(
    ours: hw.MultiheadAttention, theirs: nn.MultiheadAttention, *given: Tensor, **options: object
) -> None:
    """Assert that both give the same: PyTorch in float64 is O, and in the module's dtype N."""
    exactly = copy.deepcopy(theirs).double()
    wide = [x.double() for x in given]
    options64 = {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in options.items()
    }
    oracle, plain = exactly(*wide, **options64), theirs(*given, **options)
    found = ours(*given, **options)
    accept(found[0], plain[0], oracle[0])
    assert (found[1] is None) == (plain[1] is None)
    if found[1] is not None:
        accept(found[1], plain[1], oracle[1])

"""The state_dict of a `MultiheadAttention`, in the names and shapes of PyTorch's.

    q_proj.weight, k_proj.weight, v_proj.weight   <->  in_proj_weight, one below the other; or
                                                       q_proj_weight, k_proj_weight, v_proj_weight
    q_proj.bias,   k_proj.bias,   v_proj.bias     <->  in_proj_bias

Weights are packed where PyTorch packs them: kdim = vdim = embed_dim, as many key/value heads as
heads, heads that fill embed_dim. Only plain projections are renamed: the keys of one that was
wrapped or quantised (LoRA, for example) stay as they are, and so do those of the other two.
"""

from collections.abc import Mapping, MutableMapping
from typing import NoReturn, Protocol, cast

import torch
from torch import Tensor, nn

from headwise.errors import BadType

NAMES = ("q_proj", "k_proj", "v_proj")
"""The projections that PyTorch packs, in its order."""


class Owner(Protocol):
    """What packing needs to know of the module: its sizes, and whether PyTorch would pack it."""

    embed_dim: int
    kdim: int
    vdim: int

    @property
    def rows(self) -> tuple[int, int, int]:
        """How many rows q_proj, k_proj and v_proj have."""
        ...

    @property
    def packs(self) -> bool:
        """Whether PyTorch would keep the three weights as one."""
        ...


class NotPacked:
    """Stands where PyTorch keeps a packed parameter, and refuses to be used as one.

    `torch.nn.TransformerEncoder` looks at ``self_attn.in_proj_weight`` to decide whether it may
    bypass the module; an object with ``__torch_function__`` tells it not to.
    """

    @classmethod
    def __torch_function__(
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> NoReturn:
        del func, types, args, kwargs
        raise _unpacked()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(str(_unpacked()))


class PackedBias:
    """The same for the bias, which is None in a module that was made without: as in PyTorch."""

    def __get__(self, module: nn.Module | None, owner: type) -> "NotPacked | None":
        del owner
        bare = module is not None and getattr(module.q_proj, "bias", None) is None
        return None if bare else NotPacked()


def _unpacked() -> BadType:
    return BadType(
        "in_proj_weight, in_proj_bias: headwise keeps the projections apart and has no "
        "packed parameter; use q_proj, k_proj and v_proj, or state_dict() for the "
        "packed names"
    )


def pack(
    module: nn.Module, state: MutableMapping[str, object], prefix: str, metadata: object
) -> None:
    """Rename what `nn.Module.state_dict` collected; a post hook."""
    del metadata
    owner = cast("Owner", module)
    packed: dict[str, object] = {}
    if _plain(owner, state, prefix):
        weights = [cast("Tensor", state.pop(f"{prefix}{name}.weight")) for name in NAMES]
        if owner.packs:
            packed[f"{prefix}in_proj_weight"] = torch.cat(weights)
        else:
            packed |= {f"{prefix}{n}_weight": w for n, w in zip(NAMES, weights, strict=True)}
        if f"{prefix}q_proj.bias" in state:
            biases = [cast("Tensor", state.pop(f"{prefix}{name}.bias")) for name in NAMES]
            packed[f"{prefix}in_proj_bias"] = torch.cat(biases)
    others = {key: state.pop(key) for key in list(state) if key.startswith(prefix)}
    state.update(packed | others)  # PyTorch's order


def unpack(
    module: nn.Module,
    state: MutableMapping[str, object],
    prefix: str,
    metadata: object,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Give each projection its part of a state_dict in PyTorch's names; a pre hook of loading.

    A tensor of another size is cut in three all the same, so that each projection says what it
    expected and what it got.
    """
    del metadata, strict, missing, unexpected, errors
    rows = cast("Owner", module).rows
    for kind in ("weight", "bias"):
        if any(f"{prefix}{name}.{kind}" in state for name in NAMES):
            continue
        packed = state.get(f"{prefix}in_proj_{kind}")
        if isinstance(packed, Tensor) and packed.dim():
            del state[f"{prefix}in_proj_{kind}"]
            fits = packed.shape[0] == sum(rows)
            parts = packed.tensor_split((rows[0], rows[0] + rows[1]) if fits else 3)
            state.update({f"{prefix}{n}.{kind}": p for n, p in zip(NAMES, parts, strict=True)})
    for name in NAMES:
        if f"{prefix}{name}_weight" in state and f"{prefix}{name}.weight" not in state:
            state[f"{prefix}{name}.weight"] = state.pop(f"{prefix}{name}_weight")


def _plain(module: "Owner", state: Mapping[str, object], prefix: str) -> bool:
    """Whether q, k and v all hold a weight of the size PyTorch gives it, and at most a bias."""
    whole = {"weight", "bias"} if f"{prefix}q_proj.bias" in state else {"weight"}
    kinds = set()
    for name, rows, columns in zip(
        NAMES, module.rows, (module.embed_dim, module.kdim, module.vdim), strict=True
    ):
        start = f"{prefix}{name}."
        if {key.removeprefix(start) for key in state if key.startswith(start)} != whole:
            return False
        shapes = {"weight": (rows, columns), "bias": (rows,)}
        for kind in whole:
            tensor = state[start + kind]
            if not isinstance(tensor, Tensor) or tensor.shape != shapes[kind]:
                return False
            kinds.add((tensor.dtype, tensor.device))
    return len(kinds) == 1

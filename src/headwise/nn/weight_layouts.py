"""Loading of weights from other attention modules, with the heads in the right order.

| layout | arrangement of the weights | used by |
|---|---|---|
| separate | q, k and v matrices (rows, in), or q and a stacked k, v | Llama, BERT, ViT, `to_kv` |
| blocks | one matrix: all of q, all of k, all of v | timm, Phi-3, `qkv` |
| blocks transposed | as "blocks", but each matrix is (in, rows) | GPT-2's `Conv1D` `c_attn` |
| groups | one matrix: for each k/v head its q heads, k, v | GPT-NeoX, BLOOM, Falcon |

A fused matrix has the same shape in every order, so the caller must name the layout.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue, one_of
from headwise.nn.multihead_attention import MultiheadAttention
from headwise.nn.projections import NAMES, PROJECTIONS, QKV

Split = Callable[[Tensor, int, int], tuple[Tensor, ...]]
"""A function (rows of a fused matrix, H, G) -> rows of q, k and v."""


@dataclass(frozen=True)
class Layout:
    """An arrangement of the weights of one attention module."""

    name: str  # the value of the argument ``layout`` of `load_layout`
    projections: tuple[tuple[str, ...], ...]  # the permitted combinations of keys of `NAMES`
    split: Split | None = None  # splits a fused matrix
    transposed: bool = False  # whether matrices are (in, rows)


def _split_blocks(rows: Tensor, heads: int, groups: int) -> tuple[Tensor, ...]:
    """Split rows ((H + 2G)·D, ...) that contain all of q, all of k and all of v."""
    dim = rows.shape[0] // (heads + 2 * groups)
    return torch.split(rows, [heads * dim, groups * dim, groups * dim])


def _split_groups(rows: Tensor, heads: int, groups: int) -> tuple[Tensor, ...]:
    """Split rows ((H + 2G)·D, ...) that contain, for each k/v head, its q heads, k and v."""
    grouped = torch.unflatten(rows, 0, (groups, heads // groups + 2, -1))  # (G, H/G + 2, D, ...)
    q, k, v = grouped[:, :-2].flatten(1, 2), grouped[:, -2], grouped[:, -1]
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


_FUSED = (("qkv", "out_proj"),)

LAYOUTS = (
    Layout("separate", (PROJECTIONS, ("q_proj", "kv", "out_proj"))),
    Layout("blocks", _FUSED, _split_blocks),
    Layout("blocks transposed", _FUSED, _split_blocks, transposed=True),
    Layout("groups", _FUSED, _split_groups),
)
"""Every layout that `load_layout` accepts."""


@torch.no_grad()
def load_layout(module: MultiheadAttention, state: Mapping[str, Tensor], layout: str) -> None:
    """Copy the projection weights of another attention module into a `MultiheadAttention`.

    A bias that the source module lacks becomes 0. Parameters keep their dtype and device. Position
    encodings, norms and masks are not part of the weights; pass them to the constructor.

    Args:
        module: the target, created with the num_heads, num_kv_heads and sizes of the source.
        state: the ``state_dict()`` of the source, including its output projection, with the names
            in `headwise.nn.projections.NAMES`.
        layout: "separate", "blocks", "blocks transposed" or "groups"; see the table above.

    Raises:
        BadType, BadValue: if the module or the layout is wrong, or a matrix is missing, duplicated,
            unknown or of a wrong shape. In this case no weight is changed.

    Example:
        >>> theirs = {"qkv.weight": torch.randn(12, 4), "proj.weight": torch.randn(4, 4)}
        >>> ours = MultiheadAttention(4, 2, bias=False)
        >>> load_layout(ours, theirs, "groups")  # rows: q k v of head 0, q k v of head 1
        >>> torch.equal(ours.q_proj.weight[2:], theirs["qkv.weight"][6:8])
        True
    """
    if not isinstance(module, MultiheadAttention):
        raise BadType(
            "module: expected a headwise.MultiheadAttention, got {module_type}",
            module_type=type(module).__name__,
        )
    by_name = {choice.name: choice for choice in LAYOUTS}
    if layout not in by_name:
        raise one_of("layout", layout, tuple(by_name))
    new = _renamed(state, by_name[layout], module)
    parameters = module.named_parameters()
    targets = {name: value for name, value in parameters if _owner(name) in PROJECTIONS}
    for name, target in targets.items():
        tensor = new.get(name)
        missing_bias = tensor is None and name.endswith("bias")
        if not missing_bias and (tensor is None or tensor.shape != target.shape):
            raise BadValue(
                "state: expected {name} of shape {expected}, got {got}; create the module with the "
                "sizes of the source module, and check the layout",
                name=name,
                expected=tuple(target.shape),
                got=None if tensor is None else tuple(tensor.shape),
            )
    extra = sorted(new.keys() - targets.keys())
    if extra:
        raise BadValue(
            "state: it contains {extra}, but the module has no biases; create the module with "
            "bias=True",
            extra=", ".join(extra),
        )
    for name, target in targets.items():
        target.copy_(new.get(name, torch.zeros(())))


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _renamed(
    state: Mapping[str, Tensor], layout: Layout, module: MultiheadAttention
) -> dict[str, Tensor]:
    """Return the source module's tensors under the names of our parameters."""
    new: dict[str, Tensor] = {}
    for name, role in _roles(state, layout).items():
        kind = name.rpartition(".")[2]
        rows = state[name].T if layout.transposed and kind == "weight" else state[name]
        ours = {"qkv": QKV, "kv": QKV[1:]}.get(role, (role,))
        expected = sum(module.rows[-len(ours) :])
        if len(ours) > 1 and rows.shape[0] != expected:
            raise BadValue(
                "state: expected {expected} rows in {name} for the heads of the module, got "
                "{rows}; create it with num_heads, num_kv_heads and head_dim of the source module",
                name=name,
                rows=rows.shape[0],
                expected=expected,
            )
        parts: tuple[Tensor, ...] = rows.chunk(2) if role == "kv" else (rows,)
        if role == "qkv" and layout.split is not None:
            parts = layout.split(rows, module.num_heads, module.num_kv_heads)
        new |= {f"{own}.{kind}": part for own, part in zip(ours, parts, strict=True)}
    return new


def _roles(state: Mapping[str, Tensor], layout: Layout) -> dict[str, str]:
    """Return the key of `NAMES` for each name in the state_dict."""
    role_of = {name: role for role, names in NAMES.items() for name in names}
    unknown = [name for name in state if _owner(name) not in role_of]
    if unknown:
        raise BadValue(
            "state: {names} is not a known projection; rename it to a name in "
            "headwise.nn.projections.NAMES, or remove it if attention does not use it",
            names=", ".join(unknown),
        )
    roles = {name: role_of[_owner(name)] for name in state}
    owners = {(role, _owner(name)) for name, role in roles.items()}
    if sorted(role for role, _ in owners) not in [sorted(names) for names in layout.projections]:
        raise BadValue(
            "state: layout '{layout}' needs {expected}, each exactly once, got {got}; see "
            "headwise.nn.projections.NAMES for the known names",
            layout=layout.name,
            expected=" or ".join(", ".join(names) for names in layout.projections),
            got=", ".join(sorted(owner for _, owner in owners)) or "nothing",
        )
    return roles

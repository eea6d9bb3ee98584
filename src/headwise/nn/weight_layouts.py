"""Weights of other people's attention modules in ours, with the order of heads right.

| layout | where the weights are | who |
|---|---|---|
| separate | three matrices (rows, in), or q, and k above v | Llama, BERT, ViT, `wq`, `to_kv` |
| blocks | one matrix: all of q, all of k, all of v | timm, Phi-3, `qkv` |
| blocks transposed | the same, each matrix (in, rows) | GPT-2's `Conv1D` `c_attn` |
| groups | one matrix: for each k/v head its q heads, k, v | GPT-NeoX, BLOOM, Falcon |

A fused matrix has the same shape in every order, so the layout is asked for by name, never guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue, one_of
from headwise.nn.multihead_attention import MultiheadAttention
from headwise.nn.projections import NAMES, PROJECTIONS, QKV

Split = Callable[[Tensor, int, int], tuple[Tensor, ...]]
"""Rows of a fused matrix, H and G to the rows of q, k and v."""


@dataclass(frozen=True)
class Layout:
    """One way to keep the weights.

    Attributes:
        name: what `load_layout` is given.
        held: the entries of `NAMES` that a module of this layout has; one of the tuples.
        split: how a fused matrix is taken apart, or None where there is none.
        transposed: whether matrices are (in, rows).
    """

    name: str
    held: tuple[tuple[str, ...], ...]
    split: Split | None = None
    transposed: bool = False


def _blocks(rows: Tensor, heads: int, groups: int) -> tuple[Tensor, ...]:
    """((H + 2G)·D, ...): all of q, all of k, all of v."""
    dim = rows.shape[0] // (heads + 2 * groups)
    return torch.split(rows, [heads * dim, groups * dim, groups * dim])


def _groups(rows: Tensor, heads: int, groups: int) -> tuple[Tensor, ...]:
    """((H + 2G)·D, ...): for each k/v head the H / G query heads that read it, then k, then v."""
    each = torch.unflatten(rows, 0, (groups, heads // groups + 2, -1))  # (G, H/G + 2, D, ...)
    return each[:, :-2].flatten(0, 2), each[:, -2].flatten(0, 1), each[:, -1].flatten(0, 1)


_FUSED = (("qkv", "out_proj"),)

LAYOUTS = (
    Layout("separate", (PROJECTIONS, ("q_proj", "kv", "out_proj"))),
    Layout("blocks", _FUSED, _blocks),
    Layout("blocks transposed", _FUSED, _blocks, transposed=True),
    Layout("groups", _FUSED, _groups),
)
"""Every layout that `load_layout` knows."""


@torch.no_grad()
def load_layout(module: MultiheadAttention, state: Mapping[str, Tensor], layout: str) -> None:
    """Copy the weights of another attention module into one of ours, all of them or none.

    A bias that the other module does not have becomes 0, which is the same. Parameters keep their
    dtype and device. What positions, norms and masks the other module applies is not in its
    projections: give them to ours.

    Args:
        module: ours, made with the same num_heads, num_kv_heads and sizes.
        state: the other module's ``state_dict()``; its output projection must be among it, under
            one of the names in `NAMES`.
        layout: "separate", "blocks", "blocks transposed" or "groups"; see the table above.

    Raises:
        BadType: if the module is none of ours.
        BadValue: if the layout is unknown, a matrix is missing, there under two names, of another
            shape, or not known; nothing is loaded then.

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
    chosen = next((each for each in LAYOUTS if each.name == layout), None)
    if chosen is None:
        raise one_of("layout", layout, tuple(each.name for each in LAYOUTS))
    read = _taken_apart(state, chosen, module)
    targets = {
        name: value for name, value in module.named_parameters() if _part(name) in PROJECTIONS
    }
    for name, target in targets.items():
        _check_shape(name, read.get(name), target)
    extra = sorted(read.keys() - targets.keys())
    if extra:
        raise BadValue(
            "state: has {extra}, and the module was made with bias=False; make it with bias=True",
            extra=", ".join(extra),
        )
    for name, target in targets.items():
        target.copy_(read.get(name, torch.zeros(())))


def _part(name: str) -> str:
    return name.rpartition(".")[0]


def _taken_apart(
    state: Mapping[str, Tensor], layout: Layout, module: MultiheadAttention
) -> dict[str, Tensor]:
    """The other module's tensors under our names."""
    found = _found(state, layout)
    read: dict[str, Tensor] = {}
    for name, role in found.items():
        kind = name.rpartition(".")[2]
        rows = state[name].T if layout.transposed and kind == "weight" else state[name]
        parts: tuple[Tensor, ...] = (rows,)
        if role == "kv":
            _check_rows(name, rows, 2 * module.num_kv_heads * module.head_dim)
            parts = rows.chunk(2)
        elif role == "qkv" and layout.split is not None:
            _check_rows(name, rows, sum(module.rows))
            parts = layout.split(rows, module.num_heads, module.num_kv_heads)
        ours = {"qkv": QKV, "kv": PROJECTIONS[1:3]}.get(role, (role,))
        read |= {f"{part}.{kind}": each for part, each in zip(ours, parts, strict=True)}
    return read


def _found(state: Mapping[str, Tensor], layout: Layout) -> dict[str, str]:
    """Each name of the state with the entry of `NAMES` that it belongs to."""
    roles = {name: role for role, names in NAMES.items() for name in names}
    known = {name: roles.get(_part(name), "") for name in state}
    _refuse_unknown([name for name, role in known.items() if not role])
    owners = {(role, _part(name)) for name, role in known.items()}
    held = sorted(role for role, _ in owners)
    if held not in [sorted(each) for each in layout.held]:
        wanted = " or ".join(", ".join(each) for each in layout.held)
        got = ", ".join(sorted(owner for _, owner in owners)) or "nothing"
        raise BadValue(
            "state: layout '{layout_name}' has {wanted}, each once, got {got}; see "
            "headwise.nn.projections.NAMES for the names that are known",
            layout_name=layout.name,
            wanted=wanted,
            got=got,
        )
    return known


def _refuse_unknown(names: list[str]) -> None:
    if names:
        raise BadValue(
            "state: {names} is no projection known here; rename it to a name in "
            "headwise.nn.projections.NAMES, or leave it out if attention does not need it",
            names=", ".join(names),
        )


def _check_rows(name: str, rows: Tensor, wanted: int) -> None:
    if rows.shape[0] != wanted:
        raise BadValue(
            "state: {name} has {rows_shape_0} rows, expected {wanted} for the heads of "
            "the module; make it with the num_heads, num_kv_heads and head_dim of the "
            "other",
            name=name,
            rows_shape_0=rows.shape[0],
            wanted=wanted,
        )


def _check_shape(name: str, found: Tensor | None, target: Tensor) -> None:
    if found is None and name.endswith("bias"):
        return
    got = None if found is None else tuple(found.shape)
    if got != tuple(target.shape):
        raise BadValue(
            "state: {name} should be {target_shape}, got {got}; make the module with the "
            "sizes of the other, and name the layout that the other has",
            name=name,
            target_shape=tuple(target.shape),
            got=got,
        )

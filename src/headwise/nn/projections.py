"""Names of the query, key, value and output projections in other people's modules.

The one table of such names: `headwise.nn.weight_layouts` loads weights by them, `headwise.heads`
finds the heads of a model by them, and `headwise.verify` binds the weights of a module under test.
"""

import re
from dataclasses import dataclass

from torch import nn

QKV = ("q_proj", "k_proj", "v_proj")
"""The input projections of `headwise.MultiheadAttention`, in PyTorch's order."""

PROJECTIONS = (*QKV, "out_proj")  # all projections of `headwise.MultiheadAttention`

NAMES = {
    "q_proj": ("q_proj", "wq", "to_q", "query", "q_lin", "q"),
    "k_proj": ("k_proj", "wk", "to_k", "key", "k_lin", "k"),
    "v_proj": ("v_proj", "wv", "to_v", "value", "v_lin", "v"),
    "kv": ("to_kv", "kv_proj", "kv"),
    "qkv": ("qkv", "qkv_proj", "query_key_value", "c_attn", "to_qkv", "Wqkv"),
    "out_proj": ("out_proj", "o_proj", "wo", "to_out", "to_out.0", "proj", "dense", "c_proj", "Wo",
                 "out_lin", "o"),
}  # fmt: skip
"""The attribute names of each projection, or of a fused one, in published modules."""

WORDS = {
    "q": ("q", "qs", "query", "queries", "wq", "qw", "toq"),
    "k": ("k", "ks", "key", "keys", "wk", "kw", "tok"),
    "v": ("v", "vs", "value", "values", "wv", "vw", "tov"),
    "qkv": ("qkv", "wqkv", "toqkv"),
    "kqv": ("kqv",),
    "out": ("o", "out", "output", "wo", "ow", "final", "combine", "unify", "unifyheads", "merge"),
}
"""The last telling word of a parameter's name in a module that is not published."""

NEUTRAL_WORDS = frozenset(
    (
        *("w", "weight", "weights", "b", "bias", "proj", "projection", "projections", "linear"),
        *("linears", "layer", "layers", "lin", "fc", "dense", "to", "in", "net", "transform"),
        *("matrix", "mat", "map", "conv", "attn", "attention", "self", "c", "mha", "h"),
        *("head", "heads", "module"),
    )
)
"""Words that name no projection; a name of such words alone is the output projection."""

FUSED = (*NAMES["qkv"], "in_proj", "in_proj_weight", "in_proj_bias", "in_projection")
"""Names of a fused q, k, v projection; in some of them `WORDS` finds no role."""

_LIST_ITEM = re.compile(r"(?:.*\.)?(?:linears|projections|projs|layers)\.([0-3])")


@dataclass(frozen=True)
class Architecture:
    """Where the attention modules of one model family keep their projections.

    Paths begin at the attention module.
    """

    name: str  # the family, after its first model
    out: str  # path of the output projection; its input is the concatenated outputs of the heads
    size: str  # path of the attribute that holds the head dimension D
    projections: tuple[str, ...] = ()  # paths of q, k and v; empty where they are fused
    fused: str = ""  # path of the fused q, k, v projection; "" where they are separate
    by_head: bool = False  # fused rows: q, k, v of head 0, then of head 1; or all q, all k, all v
    beside: tuple[str, ...] = ()  # prefixes of the names of parameters that belong to no head


SIZE, SELF = "attention_head_size", ("self.query", "self.key", "self.value")
ARCHITECTURES = (
    Architecture("Llama", "o_proj", "head_dim", QKV),
    Architecture("BART", "out_proj", "head_dim", QKV),
    Architecture("T5", "o", "key_value_proj_dim", ("q", "k", "v")),
    Architecture("BERT", "output.dense", f"self.{SIZE}", SELF, beside=("output.LayerNorm",)),
    Architecture("ALBERT", "dense", SIZE, ("query", "key", "value"), beside=("LayerNorm",)),
    Architecture("DistilBERT", "out_lin", SIZE, ("q_lin", "k_lin", "v_lin")),
    Architecture("GPT-2", "c_proj", "head_dim", fused="c_attn"),
    Architecture("GPT-NeoX", "dense", "head_size", fused="query_key_value", by_head=True),
    Architecture("ModernBERT", "Wo", "head_dim", fused="Wqkv"),
)
"""Every known architecture. GPT-2's cross-attention has a separate q and fits none: its fused
projection holds two parts and not three."""


def architecture_of(module: nn.Module) -> Architecture | None:
    """The architecture of an attention module, or None for any other module.

    Decided by the attributes of the module and their sizes, never by the name of its class.

    Example:
        >>> import headwise as hw
        >>> architecture_of(hw.MultiheadAttention(8, 2)).name
        'BART'
        >>> architecture_of(nn.Linear(2, 2)) is None
        True
    """
    return next((known for known in ARCHITECTURES if _fits(module, known)), None)


def attribute(module: nn.Module, path: str) -> object:
    """The attribute at a path such as "self.query", or None."""
    value: object = module
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def features(projection: object) -> tuple[int, int] | None:
    """(in, out) of an `nn.Linear` or of transformers' Conv1D; None for anything else."""
    weight = getattr(projection, "weight", None)
    if weight is None or getattr(weight, "ndim", 0) != 2 or not isinstance(projection, nn.Module):
        return None
    rows, columns = weight.shape
    return (rows, columns) if is_transposed(projection) else (columns, rows)


def is_transposed(projection: nn.Module) -> bool:
    """Whether the weight of a projection is (in, out), as in transformers' Conv1D."""
    return type(projection).__name__ == "Conv1D"


def guess_role(parameter: str) -> str | None:
    """The role that a name from ``named_parameters()`` suggests: "q", "k", "v", "out" or "qkv".

    Example:
        >>> [guess_role(name) for name in ("attn.W_q", "to_qkv.weight", "linears.2.bias", "proj.b")]
        ['q', 'qkv', 'v', 'out']
        >>> guess_role("norm.weight") is None
        True
    """
    parts = [part for part in parameter.split(".") if part not in ("weight", "bias")]
    item = _LIST_ITEM.fullmatch(".".join(parts))
    if item:
        return ("q", "k", "v", "out")[int(item[1])]
    while parts and parts[-1].isdigit():
        parts.pop()
    last = parts[-1] if parts else ""
    if last in FUSED:
        return "qkv"
    words = [word for word in _words(last) if word not in NEUTRAL_WORDS]
    if not words:
        return None if "norm" in last.lower() or not last else "out"
    return next((role for role, known in WORDS.items() if words[-1] in known), None)


def _words(name: str) -> list[str]:
    """The words of snake_case and CamelCase, in lower case, without digits."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[_\d]+", spaced.lower()) if word]
    return [re.sub(r"^(?:fc|to|w|b)(?=(?:q|k|v|o|qkv)$)", "", word) for word in words]


def _fits(module: nn.Module, architecture: Architecture) -> bool:
    size = attribute(module, architecture.size)
    out = features(attribute(module, architecture.out))
    if not isinstance(size, int) or size < 1 or out is None or out[0] % size:
        return False
    if architecture.fused:
        fused = features(attribute(module, architecture.fused))
        return fused is not None and fused[1] == 3 * out[0]
    q, k, v = (_head_count(attribute(module, path), size) for path in architecture.projections)
    return bool(q and k) and q == out[0] // size and k == v and q % k == 0


def _head_count(projection: object, size: int) -> int:
    """How many heads of a size a projection gives to attention; 0 if its rows are no such heads.

    A pruned projection repeats key/value heads: its ``order`` lists them as attention reads them.
    """
    order = getattr(projection, "order", None)
    shape = features(projection)
    if shape is None or shape[1] % size:
        return 0
    return shape[1] // size if order is None else len(order)

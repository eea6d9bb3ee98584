"""Names of the query, key, value and output projections in modules of other libraries.

This is the only table of such names. `headwise.nn.weight_layouts` uses it to load weights,
`headwise.heads` to find the heads of a model, and `headwise.verify` to bind the weights of a tested
module.
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
"""The attribute names of each separate or fused projection in published modules."""

WORDS = {
    "q": ("q", "qs", "query", "queries", "wq", "qw", "toq"),
    "k": ("k", "ks", "key", "keys", "wk", "kw", "tok"),
    "v": ("v", "vs", "value", "values", "wv", "vw", "tov"),
    "qkv": ("qkv", "wqkv", "toqkv"),
    "kqv": ("kqv",),
    "out": ("o", "out", "output", "wo", "ow", "final", "combine", "unify", "unifyheads", "merge"),
}
"""Words that identify the projection in parameter names of unpublished modules."""

NEUTRAL_WORDS = frozenset(
    (
        *("w", "weight", "weights", "b", "bias", "proj", "projection", "projections", "linear"),
        *("linears", "layer", "layers", "lin", "fc", "dense", "to", "in", "net", "transform"),
        *("matrix", "mat", "map", "conv", "attn", "attention", "self", "c", "mha", "h"),
        *("head", "heads", "module"),
    )
)
"""Words that identify no projection; a name of only such words is the output projection."""

FUSED = (*NAMES["qkv"], "in_proj", "in_proj_weight", "in_proj_bias", "in_projection")
"""Names of a fused q, k, v projection, including names that contain no word of `WORDS`."""

_LIST_ITEM = re.compile(r"(?:.*\.)?(?:linears|projections|projs|layers)\.([0-3])")


@dataclass(frozen=True)
class Architecture:
    """The paths of the projections in the attention modules of one model family.

    Paths begin at the attention module.
    """

    name: str  # the family, named after its first model
    out: str  # path of the output projection; its input is the concatenated outputs of the heads
    size: str  # path of the attribute that holds the head dimension D
    projections: tuple[str, ...] = ()  # paths of q, k and v; empty if they are fused
    fused: str = ""  # path of the fused q, k, v projection; "" if they are separate
    by_head: bool = False  # fused rows: q, k, v head by head; False: all q, all k, all v
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
"""Every supported architecture. GPT-2's cross-attention is not supported: its q is separate, and
its fused projection has two parts instead of three."""


def architecture_of(module: nn.Module) -> Architecture | None:
    """Return the architecture of an attention module, or None for any other module.

    The architecture follows from the module's attributes and their sizes, not from its class name.

    Example:
        >>> import headwise as hw
        >>> architecture_of(hw.MultiheadAttention(8, 2)).name
        'BART'
        >>> architecture_of(nn.Linear(2, 2)) is None
        True
    """
    return next((known for known in ARCHITECTURES if _fits(module, known)), None)


def attribute(module: nn.Module, path: str) -> object:
    """Return the attribute at a path such as "self.query", or None."""
    value: object = module
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def features(projection: object) -> tuple[int, int] | None:
    """Return (in, out) of an `nn.Linear` or a transformers Conv1D; None for any other object."""
    weight = getattr(projection, "weight", None)
    if weight is None or getattr(weight, "ndim", 0) != 2 or not isinstance(projection, nn.Module):
        return None
    rows, columns = weight.shape
    return (rows, columns) if is_transposed(projection) else (columns, rows)


def is_transposed(projection: nn.Module) -> bool:
    """Return whether the weight of a projection is (in, out), as in transformers' Conv1D."""
    return type(projection).__name__ == "Conv1D"


def guess_role(parameter: str) -> str | None:
    """Guess the role "q", "k", "v", "out" or "qkv" from a name in ``named_parameters()``.

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
    """Split a snake_case or CamelCase name into lower-case words without digits."""
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
    """Return the number of heads of a size in a projection; 0 if the size does not divide its rows.

    A pruned projection repeats key/value heads; its ``order`` lists them in the repeated order.
    """
    order = getattr(projection, "order", None)
    shape = features(projection)
    if shape is None or shape[1] % size:
        return 0
    return shape[1] // size if order is None else len(order)

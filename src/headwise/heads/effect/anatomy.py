"""How the libraries build an attention: where its projections stand, how their rows lie.

Each way is one `Anatomy`. A module is of that build if everything stands where it says and the
sizes agree; nothing is guessed from a class's name.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Anatomy:
    """One way to build an attention.

    Attributes:
        name: what it is called here, after the first model that was built so.
        out: where the output projection stands, from the attention; its input is the outputs of
            the heads, one after the other.
        size: the attribute that says how large a head is.
        projections: where q, k and v stand; empty where they are one matrix.
        fused: where the one matrix of q, k and v stands; "" where they are three.
        by_head: whether the rows of the one matrix are q, k, v of head 0, then of head 1, and so
            on; otherwise all of q, all of k, all of v.
        beside: parameters that belong to no head, by the start of their names.
    """

    name: str
    out: str
    size: str
    projections: tuple[str, ...] = ()
    fused: str = ""
    by_head: bool = False
    beside: tuple[str, ...] = ()


ANATOMIES = (
    Anatomy("Llama", "o_proj", "head_dim", ("q_proj", "k_proj", "v_proj")),
    Anatomy("BART", "out_proj", "head_dim", ("q_proj", "k_proj", "v_proj")),
    Anatomy("T5", "o", "key_value_proj_dim", ("q", "k", "v")),
    Anatomy(
        "BERT",
        "output.dense",
        "self.attention_head_size",
        ("self.query", "self.key", "self.value"),
        beside=("output.LayerNorm",),
    ),
    Anatomy(
        "ALBERT", "dense", "attention_head_size", ("query", "key", "value"), beside=("LayerNorm",)
    ),
    Anatomy("DistilBERT", "out_lin", "attention_head_size", ("q_lin", "k_lin", "v_lin")),
    Anatomy("GPT-2", "c_proj", "head_dim", fused="c_attn"),
    Anatomy("GPT-NeoX", "dense", "head_size", fused="query_key_value", by_head=True),
    Anatomy("ModernBERT", "Wo", "head_dim", fused="Wqkv"),
)
"""Every build there is. GPT-2's attention to another text keeps q apart, which makes it no GPT-2
here: its one matrix has not three parts."""


def anatomy_of(module: nn.Module) -> Anatomy | None:
    """The build of an attention, or None for any other module.

    Example:
        >>> import headwise as hw
        >>> anatomy_of(hw.MultiheadAttention(8, 2)).name
        'BART'
        >>> anatomy_of(nn.Linear(2, 2)) is None
        True
    """
    return next((each for each in ANATOMIES if _fits(module, each)), None)


def attribute(module: nn.Module, path: str) -> object:
    """What stands at a path such as "self.query", or None."""
    found: object = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def features(projection: object) -> tuple[int, int] | None:
    """(in, out) of a projection: `nn.Linear`, or transformers' Conv1D, which is its transpose."""
    weight = getattr(projection, "weight", None)
    if weight is None or getattr(weight, "ndim", 0) != 2 or not isinstance(projection, nn.Module):
        return None
    rows, columns = weight.shape
    return (rows, columns) if transposed(projection) else (columns, rows)


def transposed(projection: nn.Module) -> bool:
    """Whether a projection keeps its weight as (in, out)."""
    return type(projection).__name__ == "Conv1D"


def _fits(module: nn.Module, anatomy: Anatomy) -> bool:
    size, out = attribute(module, anatomy.size), features(attribute(module, anatomy.out))
    if not isinstance(size, int) or size < 1 or out is None or out[0] % size:
        return False
    if anatomy.fused:
        one = features(attribute(module, anatomy.fused))
        return one is not None and one[1] == 3 * out[0]
    q, k, v = (_seen(attribute(module, path), size) for path in anatomy.projections)
    return bool(q and k) and q == out[0] // size and k == v and q % k == 0


def _seen(projection: object, size: int) -> int:
    """How many heads of a size attention sees of a projection; 0 if it has no such heads.

    A pruned model may show key/value heads several times that it has once.
    """
    several = getattr(projection, "order", None)
    found = features(projection)
    if found is None or found[1] % size:
        return 0
    return found[1] // size if several is None else len(several)

"""Load the projections of one attention module from a file, for many naming conventions.

| names | layout of the weights |
|---|---|
| ``in_proj_weight``, ``q_proj.weight`` | as in `torch.nn.MultiheadAttention` and `headwise` |
| ``…query.weight``, ``…wq.weight``, ``…to_q.weight`` | linear layers, whose rows are outputs |
| ``…qkv.weight``, ``…c_attn.weight`` | rows of q, then rows of k, then rows of v |
| ``…query_key_value.weight`` | q, k, v of head 1, then q, k, v of head 2, and so on |
| ``W_Q``, ``W^K``, ``WV``, ``b_O``, ``W_Q1`` | as in the paper, Q = X W; columns are outputs |
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.explain.array_files import InputFile, Notify, listed, read_matrix, silent
from headwise.explain.projections import Projections, check_width
from headwise.explain.weight_files import NamedArrays, open_arrays
from headwise.lang import Text
from headwise.nn.projections import NAMES, guess_role

_PAPER = re.compile(
    r"(?P<prefix>(?:[\w-]+[./])*)(?P<kind>[Wwb])[_^]?\{?(?P<role>QKV|qkv|[QKVOqkvo])\}?"
    r"[_^]?\{?(?:\(?(?P<head>\d{1,3})\)?)?\}?"
)
_TORCH = re.compile(r"(?P<prefix>.*?)(?P<role>in|[qkv])_proj_(?P<kind>weight|bias)")
_BY_HEAD = "query_key_value"  # the fused matrix whose rows are grouped by head
_UNSHOWN = ("bias_k", "bias_v")


@dataclass(frozen=True)
class _Name:
    """The parts of an array's name: the module, the role, the kind, and the layout."""

    prefix: str  # the path of the attention module
    role: str  # "q", "k", "v", "qkv" or "out"
    kind: str  # "weight" or "bias"
    paper: bool = False  # whether columns are outputs
    head: int = 0  # the number of the head in the name, or 0

    @classmethod
    def parse(cls, name: str) -> "_Name | None":
        """Parse a name such as ``layers.0.attn.q_proj.weight`` or ``W_Q``, or return None."""
        if match := _PAPER.fullmatch(name):
            role = match["role"].lower().replace("o", "out")
            kind = "bias" if match["kind"] == "b" else "weight"
            return cls(match["prefix"].rstrip("./"), role, kind, True, int(match["head"] or 0))
        if match := _TORCH.fullmatch(name):
            role = match["role"].replace("in", "qkv")
            return cls(match["prefix"].rstrip("."), role, match["kind"])
        owner, _, kind = name.rpartition(".")
        role_of = guess_role(owner) if kind in ("weight", "bias") else None
        if role_of is None:
            return None
        parts = owner.split(".")
        while len(parts) > 1 and parts[-1].isdigit():  # the index in a list, as in to_out.0
            parts.pop()
        return cls(".".join(parts[:-1]), role_of, kind)


@dataclass
class _Attention:
    """The array names of one attention module by role and kind, possibly one for each head."""

    names: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, parsed: _Name, name: str) -> None:
        self.names.setdefault((parsed.role, parsed.kind), []).append((parsed.head, name))

    @property
    def complete(self) -> bool:
        """Whether the module has query, key and value projections."""
        roles = {role for role, kind in self.names if kind == "weight"}
        return "qkv" in roles or {"q", "k", "v"} <= roles

    @property
    def used(self) -> set[str]:
        return {name for entries in self.names.values() for _, name in entries}


def load_projections(
    value: str, *, heads: int | None = None, notify: Notify = silent
) -> Projections:
    """Read projections from ``path``, ``path:prefix``, or three or four files of one matrix each.

    Args:
        value: a file with an extension in `weight_files.TYPES`, with a prefix if it contains
            several attention modules, or ``WQ.csv,WK.csv,WV.csv[,WO.csv]`` as in the paper.
        heads: H, for weights that are grouped by head or have fewer key/value heads.
        notify: a function that receives notes about assumptions.

    Raises:
        BadFile: if the prefix is missing or unknown, or a matrix is missing or does not fit.
        MissingExtra: if the package that reads the file is not installed.
    """
    files = value.split(",")
    if len(files) in (3, 4):
        matrices = (read_matrix(file, "weights", notify).values for file in files)
        given = dict(zip(("q", "k", "v", "out"), matrices, strict=False))
        return _built({role: matrix.T for role, matrix in given.items()}, {}, heads, notify)
    file = InputFile.parse("weights", value, notify)
    with file.errors(), open_arrays(file) as found:
        attention = _attention(file, found.names)
        weights = _weights(attention, found, heads)
        biases = _biases(attention, found, heads)
        return _built(weights, biases, heads, notify)


def _attention(file: InputFile, names: Iterable[str]) -> _Attention:
    """Return the attention module that the user named, or the only one in the file."""
    found: dict[str, _Attention] = {}
    outs: list[tuple[_Name, str]] = []
    for name in sorted(names):
        parsed = _Name.parse(name)
        if parsed is not None and parsed.role == "out":
            outs.append((parsed, name))
        elif parsed is not None:
            found.setdefault(parsed.prefix, _Attention()).add(parsed, name)
    whole = {prefix: attention for prefix, attention in found.items() if attention.complete}
    prefix = _prefix(file, whole, found)
    unshown = [name for name in names if name in {f"{prefix}.{n}".lstrip(".") for n in _UNSHOWN}]
    if unshown:
        raise BadFile(
            "the file contains bias_k and bias_v, a learned key and value, which explain does not "
            "support; use the weights of a module without add_bias_kv"
        )
    for parsed, name in _outputs(prefix, outs):
        whole[prefix].add(parsed, name)
    return whole[prefix]


def _prefix(file: InputFile, whole: dict[str, _Attention], found: dict[str, _Attention]) -> str:
    wanted = None if file.tensor is None else file.tensor.rstrip("./")
    inside = [p for p in whole if wanted is None or p == wanted or p.startswith(f"{wanted}.")]
    if len(inside) == 1:
        return inside[0]
    if not whole:
        missing = next(iter(found.values()), _Attention()).names
        lacking = [role for role in "qkv" if (role, "weight") not in missing]
        if missing and len(lacking) < 3:
            raise BadFile(
                "expected projections for q, k and v, but the file has only {known} and lacks "
                "{missing}",
                missing=", ".join(lacking),
                known=listed(sorted(name for (_, name), *_ in missing.values())),
            )
        raise BadFile(
            "the file contains no projections with known names; expected W_Q, W_K, W_V and W_O, or "
            "the names of a state_dict such as in_proj_weight or q_proj.weight"
        )
    raise BadFile(
        "expected the prefix of one of {count} attention modules in the file ({prefixes}), got "
        "{got!r}; write {file}:PREFIX",
        count=len(whole),
        prefixes=listed(sorted(whole)),
        got=clean(file.tensor or ""),
        file=clean(file.path.name),
    )


def _outputs(prefix: str, outs: list[tuple[_Name, str]]) -> list[tuple[_Name, str]]:
    """Return the output projection, found next to q, k and v or in the module's output block."""
    parent = prefix.rpartition(".")[0]
    block = f"{parent}.output".lstrip(".")
    beside = [out for out in outs if out[0].prefix == prefix]
    beside = beside or [out for out in outs if out[0].prefix == block and ".dense." in out[1]]
    owners = {name.rpartition(".")[0] for _, name in beside if not _PAPER.fullmatch(name)}
    if len(owners) > 1:
        known = tuple(f".{name}" for name in NAMES["out_proj"])
        beside = [out for out in beside if f".{out[1].rpartition('.')[0]}".endswith(known)]
    return beside


def _weights(attention: _Attention, found: NamedArrays, heads: int | None) -> dict[str, Tensor]:
    """Return the matrix of each role, with outputs as rows."""
    result: dict[str, Tensor] = {}
    for (role, kind), entries in attention.names.items():
        if kind == "bias":
            continue
        matrices = [_oriented(name, found.get(name, 2)) for _, name in sorted(entries)]
        result[role] = torch.cat(matrices, 1 if role == "out" else 0)
    packed = result.get("qkv")
    if packed is not None and packed.shape[1] == 3 * packed.shape[0]:  # GPT-2's: rows are inputs
        result = {role: matrix.T for role, matrix in result.items()}
    if "qkv" in result:
        names = [name for _, name in attention.names["qkv", "weight"]]
        parts = _split(result.pop("qkv"), names[0], heads)
        result |= dict(zip("qkv", parts, strict=True))
    return result


def _oriented(name: str, matrix: Tensor) -> Tensor:
    """Return the matrix with outputs as rows; matrices named as in the paper are transposed."""
    parsed = _Name.parse(name)
    return matrix.T if parsed is not None and parsed.paper else matrix


def _split(packed: Tensor, name: str, heads: int | None) -> tuple[Tensor, ...]:
    """Split a fused matrix or bias into q, k and v."""
    if len(packed) % 3:
        raise BadFile(
            "{name}: expected q, k and v stacked in 3 H D rows, got shape {got}",
            name=clean(name),
            got=tuple(packed.shape),
        )
    if _BY_HEAD not in name:
        return packed.chunk(3)
    if heads is None or len(packed) % (3 * heads):
        raise BadFile(
            "{name}: the {rows} rows are grouped by head; pass the number of heads with --heads",
            name=clean(name),
            rows=len(packed),
        )
    grouped = packed.reshape(heads, 3, -1, *packed.shape[1:])  # (H, 3, D, ...)
    return tuple(grouped[:, i].flatten(0, 1) for i in range(3))


def _biases(attention: _Attention, found: NamedArrays, heads: int | None) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    for (role, kind), entries in attention.names.items():
        if kind == "bias":
            vectors = [found.get(name, 1) for _, name in sorted(entries)]
            result[role] = torch.cat(vectors) if role != "out" else vectors[0]
    if "qkv" in result:
        name = attention.names["qkv", "bias"][0][1]
        result |= dict(zip("qkv", _split(result.pop("qkv"), name, heads), strict=True))
    return result


def _built(
    weights: dict[str, Tensor], biases: dict[str, Tensor], heads: int | None, notify: Notify
) -> Projections:
    rows = {role: len(weights[role]) for role in "qkv"}
    for role, bias in biases.items():
        if len(bias) != len(weights.get(role, bias)):
            raise BadFile(
                "{role}_bias: expected {rows} numbers, got {got}",
                role=role,
                rows=len(weights[role]),
                got=tuple(bias.shape),
            )
    if heads and rows["k"] < rows["q"] and not rows["q"] % heads:
        for role in ("k", "v"):
            weights[role] = _repeated(weights[role], rows["q"], heads)
            if role in biases:
                biases[role] = _repeated(biases[role], rows["q"], heads)
        notify(
            Text(
                "weights: the query heads ({queries} rows) share the key/value heads ({rows} rows)",
                rows=rows["k"],
                queries=rows["q"],
            )
        )
    out = weights.get("out")
    if out is None:
        notify(Text("weights: the output projection W^O is missing; the identity is used"))
        check_width(len(weights["v"]))
        out = torch.eye(len(weights["v"]), dtype=torch.float64)
    return Projections(
        weights["q"],
        weights["k"],
        weights["v"],
        out,
        *(biases.get(role) for role in ("q", "k", "v", "out")),
    )


def _repeated(rows: Tensor, queries: int, heads: int) -> Tensor:
    """Repeat the rows of G key/value heads, one copy for each of the H query heads."""
    dim = queries // heads
    if len(rows) % dim or heads % (len(rows) // dim):
        raise BadFile(
            "expected key/value heads of {dim} rows each, whose number divides {heads}, got {rows} "
            "rows; check --heads",
            heads=heads,
            dim=dim,
            rows=len(rows),
        )
    grouped = rows.reshape(-1, dim, *rows.shape[1:])  # (G, D, ...)
    return grouped.repeat_interleave(heads // len(grouped), 0).flatten(0, 1)

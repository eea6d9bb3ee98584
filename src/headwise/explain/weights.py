"""The projections that `explain` shows: drawn from a seed, or read from somebody's file.

A file is .safetensors, or .pt / .pth read with ``weights_only=True``, which makes tensors only.
Names are those of a `state_dict`, below one prefix:

    in_proj_weight (3 H D, E)                         q, k and v one below the other
    q_proj.weight, k_proj.weight, v_proj.weight       or apart
    q_proj_weight, k_proj_weight, v_proj_weight       or apart, as torch.nn.MultiheadAttention
    out_proj.weight (E, H Dv)
    in_proj_bias, q_proj.bias, …, out_proj.bias       where there are biases
"""

import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

import torch
from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadFile, BadValue, MissingExtra
from headwise.explain.inputs import Source, check_file
from headwise.explain.trace import Projections, check_width
from headwise.lang import Text

MOST_BYTES = 4 * 2**30
"""The largest weights file that is opened, and the most that a compressed one may grow to."""

MOST_NUMBERS = 2**26
"""The most numbers one projection may have."""

MARKS = ("in_proj_weight", "q_proj.weight", "q_proj_weight")
"""A tensor of one of these names stands in each set of projections."""

_Load = Callable[[str], Tensor]


def seeded(embed_dim: int, heads: int, seed: int, init: str) -> Projections:
    """The weights that ``headwise.MultiheadAttention(E, H, init=init)`` has after this seed.

    The caller's random numbers are left as they were.

    Raises:
        BadValue: if the word is unknown, the seed is negative or too large, or H does not
            divide E.
    """
    from headwise.nn import MultiheadAttention

    if not 0 <= seed < 2**63:
        raise BadValue("seed: expected a whole number from 0 to 2^63 - 1, got {seed}", seed=seed)
    check_width(embed_dim)
    if heads < 1 or embed_dim % heads:
        raise BadValue(
            "heads: {heads} heads cannot share the {embed_dim} columns of x evenly; "
            "choose a divisor of {embed_dim}",
            heads=heads,
            embed_dim=embed_dim,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = MultiheadAttention(embed_dim, heads, bias=False, init=init)
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    return Projections(*(getattr(layer, name).weight.detach().double() for name in names))


def load(word: str) -> Projections:
    """The projections in a file, ``FILE`` or ``FILE:prefix``.

    Without a prefix the file must hold one set of projections.

    Raises:
        BadFile: if the file cannot be used, a name is missing, several sets are there and no
            prefix says which, or a tensor is not what its name says.
        MissingExtra: if safetensors is not installed and the file needs it.
    """
    source = Source.of("weights", word)
    kind = source.path.suffix.lower()
    if kind not in (".safetensors", ".pt", ".pth"):
        raise source.bad(
            f"unknown file type {clean(kind) or 'without suffix'!r}; expected .safetensors, or "
            ".pt / .pth with a state_dict",
            f"未知的文件类型 {clean(kind) or '（无后缀）'!r}；应为 .safetensors，"
            "或含 state_dict 的 .pt / .pth",
        )
    check_file(source, MOST_BYTES)
    return _safetensors(source) if kind == ".safetensors" else _torch(source)


def _safetensors(source: Source) -> Projections:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra.of("safetensors", "explain") from error
    try:
        with safe_open(source.path, framework="pt") as file:

            def get(name: str) -> Tensor:
                _check_size(source, name, torch.Size(file.get_slice(name).get_shape()).numel())
                tensor: Tensor = file.get_tensor(name)
                return tensor

            return _projections(source, file.keys(), get)
    except (SafetensorError, OSError) as error:
        raise source.bad(
            Text("not a usable safetensors file: {error}", error=clean(str(error)))
        ) from error


def _torch(source: Source) -> Projections:
    _check_archive(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles it does not expect: refused below
            found = torch.load(source.path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile file makes the decoder raise is about the file
        raise source.bad(
            Text(
                "holds more than tensors, or is damaged, and is never unpickled; save only "
                "the weights: torch.save(module.state_dict(), file), or use .safetensors"
            )
        ) from error
    inner = found.get("state_dict", found) if isinstance(found, Mapping) else None
    if not isinstance(inner, Mapping):
        raise source.bad(
            Text(
                "expected a state_dict, got {found_type}; save module.state_dict()",
                found_type=type(found).__name__,
            )
        )
    tensors = {str(name): value for name, value in inner.items() if isinstance(value, Tensor)}
    return _projections(source, tensors, tensors.__getitem__)


def _check_archive(source: Source) -> None:
    """Refuse a compressed file that would grow beyond the bound."""
    if not zipfile.is_zipfile(source.path):
        return
    try:
        with closing(zipfile.ZipFile(source.path)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise source.bad(Text("is a damaged archive")) from error
    if size > MOST_BYTES:
        raise source.bad(
            Text(
                "expected at most {most_bytes:,} bytes when unpacked, got {size:,}",
                most_bytes=MOST_BYTES,
                size=size,
            )
        )


def _projections(source: Source, names: Iterable[str], load_one: _Load) -> Projections:
    known = set(names)
    prefix = _prefix(source, known)
    _refuse_extra_keys(source, known, prefix)

    def get(name: str) -> Tensor:
        if prefix + name not in known:
            raise _missing(source, prefix + name)
        return _checked(source, prefix + name, load_one(prefix + name))

    def maybe(name: str) -> Tensor | None:
        return get(name) if prefix + name in known else None

    q, k, v = _in_weights(source, known, prefix, get)
    biases = _in_biases(source, maybe, q.shape[0])
    return Projections(q, k, v, get("out_proj.weight"), *biases, maybe("out_proj.bias"))


def _prefix(source: Source, known: set[str]) -> str:
    """What stands before the names; the one the user gave, or the only one there is."""
    found = {n[: -len(mark)] for mark in MARKS for n in known if f".{n}".endswith(f".{mark}")}
    if source.part is not None:
        asked = source.part.rstrip(".") + "."
        if asked in found:
            return asked
    elif len(found) == 1:
        return found.pop()
    if not found:
        raise _missing(source, "in_proj_weight or q_proj.weight")
    listed = sorted(clean(prefix.rstrip(".")) for prefix in found)
    some = ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "")
    asked = clean(source.part or "")
    raise source.bad(
        Text(
            "expected the prefix of one of its {num_found} attentions ({some}), got "
            "{asked!r}; write {path_name}:prefix",
            num_found=len(found),
            some=some,
            asked=asked,
            path_name=clean(source.path.name),
        )
    )


def _refuse_extra_keys(source: Source, known: set[str], prefix: str) -> None:
    if prefix + "bias_k" in known or prefix + "bias_v" in known:
        raise source.bad(
            Text(
                "has bias_k and bias_v, a learned key and value that explain does not show; "
                "give the weights of a module without add_bias_kv"
            )
        )


def _in_weights(
    source: Source, known: set[str], prefix: str, get: _Load
) -> tuple[Tensor, Tensor, Tensor]:
    if prefix + "in_proj_weight" in known:
        return _thirds(source, prefix + "in_proj_weight", get("in_proj_weight"))
    link = "." if prefix + "q_proj.weight" in known else "_"
    q, k, v = (get(f"{name}_proj{link}weight") for name in "qkv")
    return q, k, v


def _in_biases(
    source: Source, maybe: Callable[[str], Tensor | None], rows: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    packed = maybe("in_proj_bias")
    if packed is None:
        return maybe("q_proj.bias"), maybe("k_proj.bias"), maybe("v_proj.bias")
    if len(packed) != 3 * rows:
        raise source.bad(
            Text(
                "in_proj_bias: expected {rows} numbers, got {packed_shape}",
                rows=3 * rows,
                packed_shape=tuple(packed.shape),
            )
        )
    return _thirds(source, "in_proj_bias", packed)


def _thirds(source: Source, name: str, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if len(packed) % 3:
        raise source.bad(
            Text(
                "{name}: expected q, k and v one below the other, 3 H D rows, got {packed_shape}",
                name=clean(name),
                packed_shape=tuple(packed.shape),
            )
        )
    q, k, v = packed.chunk(3)
    return q, k, v


def _checked(source: Source, name: str, tensor: Tensor) -> Tensor:
    axes = 2 if name.endswith("weight") else 1
    _check_size(source, name, tensor.numel())
    usable = tensor.layout == torch.strided and tensor.is_floating_point() and not tensor.is_meta
    if tensor.dim() != axes or not usable or not bool(tensor.isfinite().all()):
        raise source.bad(
            Text(
                "{name}: expected finite floating point numbers with {axes} axes, got "
                "{tensor_dtype} {tensor_shape}",
                name=clean(name),
                axes=axes,
                tensor_dtype=tensor.dtype,
                tensor_shape=tuple(tensor.shape),
            )
        )
    return tensor.to(torch.float64)


def _check_size(source: Source, name: str, count: int) -> None:
    if not 0 < count <= MOST_NUMBERS:
        raise source.bad(
            Text(
                "{name}: expected 1 to {most_numbers:,} numbers, got {count:,}",
                name=clean(name),
                most_numbers=MOST_NUMBERS,
                count=count,
            )
        )


def _missing(source: Source, name: str) -> BadFile:
    return source.bad(
        Text(
            "has no tensor {name}; expected the names of a torch.nn.MultiheadAttention's "
            "state_dict",
            name=clean(name),
        )
    )

"""The mask, the bias and the projections of a call, from options and files."""

import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue
from headwise.explain import array_files
from headwise.explain.array_files import TYPES, InputFile, check_file, listed, read_array
from headwise.explain.trace import Projections, check_width
from headwise.lang import Text, same
from headwise.masks import Mask, causal, from_tensor, full, window
from headwise.masks.patterns.from_tensor import Layout

_Shapes = tuple[tuple[int, int], tuple[int, int, int]]


def parse_mask(value: str | None, bias: str | None, heads: int, length: int) -> Mask:
    """Build the mask of ``--mask`` and ``--bias`` for H heads and L tokens.

    Args:
        value: ``full`` (or None), ``causal``, ``window:L,R``, or a file of 0 and 1 (1 may attend).
        bias: a file added to the scaled scores, (L, L) or (H, L, L); -inf blocks a pair.
        heads: H.
        length: L.

    Raises:
        BadFile: if a file cannot be used.
        BadValue: if the value is unknown.
    """
    shapes = ((length, length), (heads, length, length))
    mask = full() if value is None else _parse(value, shapes)
    if bias is None:
        return mask
    file = InputFile.parse("bias", bias)
    with file.errors():
        return mask & _bias(file, shapes)


def _parse(value: str, shapes: _Shapes) -> Mask:
    if value in ("full", "causal"):
        return full() if value == "full" else causal()
    if value.startswith("window:"):
        return _window(value.removeprefix("window:"))
    file = InputFile.parse("mask", value)
    if file.suffix in TYPES:
        with file.errors():
            return _binary(file, shapes)
    raise BadValue(
        "mask: unknown {value!r}; expected full, causal, window:LEFT,RIGHT, or a file "
        "({types}) of 0 and 1",
        value=clean(value),
        types=", ".join(TYPES),
    )


def _window(sides: str) -> Mask:
    try:
        left, right = (int(side) for side in sides.split(","))
    except ValueError as error:
        raise BadValue(
            "mask: expected two whole numbers after 'window:', got {sides!r}; window:3,0 "
            "sees three keys behind and its own",
            sides=clean(sides),
        ) from error
    return window(left, right)


def _binary(file: InputFile, shapes: _Shapes) -> Mask:
    values, layout = _read(file, shapes)
    if not bool(((values == 0) | (values == 1)).all()):
        raise BadFile(
            "expected only 0 (blocked) and 1 (may attend); numbers to be added are a --bias"
        )
    return from_tensor(values.bool(), layout)


def _bias(file: InputFile, shapes: _Shapes) -> Mask:
    values, layout = _read(file, shapes)
    if bool((values == torch.inf).any()):
        raise BadFile("expected numbers below infinity, got +inf; -inf blocks a pair")
    try:
        return from_tensor(values, layout)
    except BadValue as error:
        raise BadFile(error.text) from error


def _read(file: InputFile, shapes: _Shapes) -> tuple[Tensor, Layout]:
    values = read_array(file, (2, 3), finite=False).values
    if tuple(values.shape) not in shapes:
        raise BadFile(
            "expected shape {shape}, or {shape_per_head} with one matrix a head, got "
            "{got}; rows are queries, columns are keys",
            shape=shapes[0],
            shape_per_head=shapes[1],
            got=tuple(values.shape),
        )
    return values, "q k" if values.dim() == 2 else "h q k"


MOST_BYTES = 4 * 2**30  # the largest file that is opened, before and after decompression
MOST_NUMBERS = 2**26  # the most numbers of one projection

MARKS = ("in_proj_weight", "q_proj.weight", "q_proj_weight")
"""Every set of projections has a tensor of one of these names."""

_Load = Callable[[str], Tensor]


def seeded_projections(embed_dim: int, heads: int, seed: int, init: str) -> Projections:
    """The weights of ``headwise.MultiheadAttention(E, H, init=init)`` built after this seed.

    Raises:
        BadValue: if ``init`` is unknown, the seed is out of range, or H does not divide E.
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


def load_projections(value: str) -> Projections:
    """Read projections from ``path``, or ``path:prefix`` if the file has several sets of them.

    Raises:
        BadFile: if the prefix is missing or unknown, or a tensor is missing or not as expected.
        MissingExtra: if safetensors is not installed and the file needs it.
    """
    file = InputFile.parse("weights", value)
    with file.errors():
        if file.suffix not in (".safetensors", ".pt", ".pth"):
            raise file.unknown_type(Text(".safetensors, or .pt / .pth with a state_dict"))
        check_file(file, MOST_BYTES)
        return _safetensors(file) if file.suffix == ".safetensors" else _torch(file)


def _safetensors(file: InputFile) -> Projections:
    with array_files.open_safetensors(file) as archive:

        def get(name: str) -> Tensor:
            _check_size(name, torch.Size(archive.get_slice(name).get_shape()).numel())
            tensor: Tensor = archive.get_tensor(name)
            return tensor

        return _projections(file, archive.keys(), get)


def _torch(file: InputFile) -> Projections:
    if zipfile.is_zipfile(file.path):
        _check_archive(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles it does not expect: refused below
            content = torch.load(file.path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile file makes the decoder raise is about the file
        raise BadFile(
            "holds more than tensors, or is damaged, and is never unpickled; save only "
            "the weights: torch.save(module.state_dict(), file), or use .safetensors"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping):
        raise BadFile(
            "expected a state_dict, got {got}; save module.state_dict()", got=type(content).__name__
        )
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    return _projections(file, tensors, tensors.__getitem__)


def _check_archive(file: InputFile) -> None:
    """Raise an error where a compressed file would exceed `MOST_BYTES`."""
    try:
        with closing(zipfile.ZipFile(file.path)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise BadFile("is a damaged archive") from error
    if size > MOST_BYTES:
        raise BadFile(
            "expected at most {most:,} bytes when unpacked, got {size:,}",
            most=MOST_BYTES,
            size=size,
        )


def _projections(file: InputFile, available: Iterable[str], load: _Load) -> Projections:
    names = set(available)
    prefix = _prefix(file, names)
    if prefix + "bias_k" in names or prefix + "bias_v" in names:
        raise BadFile(
            "has bias_k and bias_v, a learned key and value that explain does not show; "
            "give the weights of a module without add_bias_kv"
        )

    def get(name: str) -> Tensor:
        if prefix + name not in names:
            raise _missing(same(clean(prefix + name)))
        return _checked(prefix + name, load(prefix + name))

    def maybe(name: str) -> Tensor | None:
        return get(name) if prefix + name in names else None

    if prefix + "in_proj_weight" in names:
        packed = get("in_proj_weight")
        if len(packed) % 3:
            raise BadFile(
                "{name}: expected q, k and v one below the other, 3 H D rows, got {got}",
                name=clean(prefix + "in_proj_weight"),
                got=tuple(packed.shape),
            )
        q, k, v = packed.chunk(3)
    else:
        link = "." if prefix + "q_proj.weight" in names else "_"
        q, k, v = (get(f"{name}_proj{link}weight") for name in "qkv")
    bias = maybe("in_proj_bias")
    if bias is not None and len(bias) != 3 * len(q):
        raise BadFile(
            "in_proj_bias: expected {rows} numbers, got {got}",
            rows=3 * len(q),
            got=tuple(bias.shape),
        )
    biases = (maybe(f"{name}_proj.bias") for name in "qkv") if bias is None else bias.chunk(3)
    q_bias, k_bias, v_bias = biases
    out, out_bias = get("out_proj.weight"), maybe("out_proj.bias")
    return Projections(q, k, v, out, q_bias, k_bias, v_bias, out_bias)


def _prefix(file: InputFile, names: set[str]) -> str:
    """The prefix that the user named, or the only one in the file."""
    prefixes = {n[: -len(mark)] for mark in MARKS for n in names if f".{n}".endswith(f".{mark}")}
    if file.tensor is not None:
        prefix = file.tensor.rstrip(".") + "."
        if prefix in prefixes:
            return prefix
    elif len(prefixes) == 1:
        return prefixes.pop()
    if not prefixes:
        raise _missing(Text("in_proj_weight or q_proj.weight"))
    raise BadFile(
        "expected the prefix of one of its {count} attentions ({prefixes}), got {got!r}; write "
        "{file}:prefix",
        count=len(prefixes),
        prefixes=listed(sorted(prefix.rstrip(".") for prefix in prefixes)),
        got=clean(file.tensor or ""),
        file=clean(file.path.name),
    )


def _checked(name: str, tensor: Tensor) -> Tensor:
    axes = 2 if name.endswith("weight") else 1
    _check_size(name, tensor.numel())
    readable = tensor.layout == torch.strided and tensor.is_floating_point() and not tensor.is_meta
    if tensor.dim() != axes or not readable or not bool(tensor.isfinite().all()):
        raise BadFile(
            "{name}: expected finite floating point numbers with {axes} axes, got {dtype} {shape}",
            name=clean(name),
            axes=axes,
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
        )
    return tensor.to(torch.float64)


def _check_size(name: str, count: int) -> None:
    if not 0 < count <= MOST_NUMBERS:
        raise BadFile(
            "{name}: expected 1 to {most:,} numbers, got {count:,}",
            name=clean(name),
            most=MOST_NUMBERS,
            count=count,
        )


def _missing(name: Text) -> BadFile:
    return BadFile(
        "has no tensor {name}; expected the names of a torch.nn.MultiheadAttention's state_dict",
        name=name,
    )

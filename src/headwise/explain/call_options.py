"""The mask, the bias and the random projections of a call, from options and files."""

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue
from headwise.explain.array_files import TYPES, InputFile, Notify, read_array, silent
from headwise.explain.trace import Projections, check_width
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

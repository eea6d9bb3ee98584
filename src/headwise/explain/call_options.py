"""Parse the mask, bias and position encoding of command-line options; draw random projections."""

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue
from headwise.explain.array_files import TYPES, InputFile, Notify, read_array, read_matrix, silent
from headwise.explain.projections import Projections, check_width
from headwise.masks import Mask, causal, from_tensor, full, window
from headwise.masks.patterns.from_tensor import Layout
from headwise.positions import ALiBi, Position, Rotary, Shaw, Sinusoidal, T5Bias

_Shapes = tuple[tuple[int, int], tuple[int, int, int]]


def parse_mask(
    value: str | None,
    bias: str | None,
    heads: int,
    length: int,
    keys: int | None = None,
    notify: Notify = silent,
) -> Mask:
    """Build the mask of ``--mask`` and ``--bias`` for H heads, Lq queries and Lk keys.

    Args:
        value: ``full`` (or None), ``causal``, ``window:L,R``, or a file with 0 (blocked) and 1.
        bias: a file with numbers (Lq, Lk) or (H, Lq, Lk) to add to the scaled scores; -inf blocks
            a pair.
        heads: H.
        length: Lq.
        keys: Lk; None means Lq.
        notify: a function that receives notes, for example that a line was read as a header.

    Raises:
        BadFile: if a file cannot be used.
        BadValue: if the value is unknown.
    """
    pairs = (length, length if keys is None else keys)
    shapes = (pairs, (heads, *pairs))
    mask = full() if value is None else _parse(value, shapes, notify)
    if bias is None:
        return mask
    file = InputFile.parse("bias", bias, notify)
    with file.errors():
        return mask & _bias(file, shapes)


def _parse(value: str, shapes: _Shapes, notify: Notify) -> Mask:
    if value in ("full", "causal"):
        return full() if value == "full" else causal()
    if value.startswith("window:"):
        return _window(value.removeprefix("window:"))
    file = InputFile.parse("mask", value, notify)
    if file.suffix in TYPES:
        with file.errors():
            return _binary(file, shapes)
    raise BadValue(
        "mask: unknown value {value!r}; expected full, causal, window:LEFT,RIGHT, or a file "
        "({types}) of numbers 0 and 1",
        value=clean(value),
        types=", ".join(TYPES),
    )


def _window(sides: str) -> Mask:
    try:
        left, right = (int(side) for side in sides.split(","))
    except ValueError as error:
        raise BadValue(
            "mask: expected two integers after 'window:', got {sides!r}; in window:3,0 a query "
            "attends to its own key and the three keys before it",
            sides=clean(sides),
        ) from error
    return window(left, right)


def _binary(file: InputFile, shapes: _Shapes) -> Mask:
    values, layout = _read(file, shapes)
    if not bool(((values == 0) | (values == 1)).all()):
        raise BadFile(
            "expected only the numbers 0 (blocked) and 1 (may attend); pass numbers to add to the "
            "scores with --bias"
        )
    return from_tensor(values.bool(), layout)


def _bias(file: InputFile, shapes: _Shapes) -> Mask:
    values, layout = _read(file, shapes)
    if bool((values == torch.inf).any()):
        raise BadFile("expected finite numbers or -inf, which blocks a pair; got +inf")
    try:
        return from_tensor(values, layout)
    except BadValue as error:
        raise BadFile(error.text) from error


def _read(file: InputFile, shapes: _Shapes) -> tuple[Tensor, Layout]:
    values = read_array(file, (2, 3), finite=False).values
    if tuple(values.shape) not in shapes:
        raise BadFile(
            "expected shape {shape}, or {shape_per_head} with one matrix per head, got "
            "{got}; rows are queries, columns are keys",
            shape=shapes[0],
            shape_per_head=shapes[1],
            got=tuple(values.shape),
        )
    return values, "q k" if values.dim() == 2 else "h q k"


POSITIONS = ("sinusoidal", "rotary", "rotary:neighbours", "alibi", "shaw:FILE", "t5:FILE")


def parse_position(value: str, heads: int, weights: Projections, notify: Notify) -> Position:
    """Build the position encoding of ``--position``, one of `POSITIONS`.

    The file of ``shaw:FILE`` contains the vectors of the distances -k to k, (2k + 1, D). The file
    of ``t5:FILE`` contains the biases of T5's buckets, (buckets, H); the buckets are bidirectional
    with a maximum distance of 128.

    Raises:
        BadFile: if a file cannot be used.
        BadValue: if the value is unknown, or the shape of the array does not fit.
    """
    kind, _, rest = value.partition(":")
    dim = len(weights.q) // max(heads, 1)
    if value in ("rotary", "rotary:halves", "rotary:neighbours"):
        return Rotary(dim, pairs=rest or "halves")
    if value == "alibi":
        return ALiBi(heads)
    if value == "sinusoidal":
        return Sinusoidal(weights.q.shape[1])
    if kind in ("shaw", "t5") and rest:
        table = read_matrix(rest, "position", notify).values
        return _shaw(table, dim) if kind == "shaw" else _t5(table, heads)
    raise BadValue(
        "position: unknown value {value!r}; expected one of {known}",
        value=clean(value),
        known=", ".join(POSITIONS),
    )


def _shaw(table: Tensor, dim: int) -> Position:
    rows, columns = table.shape
    if rows % 2 == 0 or columns != dim:
        raise BadValue(
            "position: expected an odd number of rows (one for each distance from -k to k) and "
            "{dim} columns, got shape {shape}",
            dim=dim,
            shape=(rows, columns),
        )
    position = Shaw(rows // 2, dim).double()
    position.table.data.copy_(table)
    return position


def _t5(table: Tensor, heads: int) -> Position:
    buckets, columns = table.shape
    if columns != heads:
        raise BadValue(
            "position: expected one column for each of {heads} heads, got shape {shape}",
            heads=heads,
            shape=(buckets, columns),
        )
    position = T5Bias(heads, num_buckets=buckets).double()
    position.table.data.copy_(table)
    return position


def seeded_projections(
    embed_dim: int, heads: int, seed: int, init: str, kv_dim: int | None = None
) -> Projections:
    """Return the weights of ``headwise.MultiheadAttention(E, H, init=init)`` for a seed.

    ``kv_dim`` is the number of columns of the input of the keys and values; None means E.

    Raises:
        BadValue: if ``init`` is unknown, the seed is out of range, or H does not divide E.
    """
    from headwise.nn import MultiheadAttention

    if not 0 <= seed < 2**63:
        raise BadValue("seed: expected an integer from 0 to 2^63 - 1, got {seed}", seed=seed)
    check_width(embed_dim)
    if heads < 1 or embed_dim % heads:
        raise BadValue(
            "heads: the {embed_dim} columns of x cannot be divided into {heads} equal heads; use a "
            "divisor of {embed_dim}",
            heads=heads,
            embed_dim=embed_dim,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = MultiheadAttention(
            embed_dim, heads, bias=False, init=init, kdim=kv_dim, vdim=kv_dim
        )
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    return Projections(*(getattr(layer, name).weight.detach().double() for name in names))

"""The built parts that a `MultiheadAttention` is made with: a mask, a position, an engine."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from headwise.attention import AUTO
from headwise.engines import ENGINES
from headwise.errors import BadType, BadValue, one_of
from headwise.lang import Text
from headwise.masks import Mask
from headwise.nn.head_layout import batch_first
from headwise.positions import Position, Stage


def checked_mask(mask: Mask | None) -> Mask | None:
    """The mask, if it is one of headwise's.

    Raises:
        BadType: if it is not.
    """
    if mask is None or isinstance(mask, Mask):
        return mask
    raise BadType(
        "mask: expected a headwise mask or None, got {mask_type}; for example "
        "hw.causal(), or hw.from_tensor(tensor), where True means may attend",
        mask_type=type(mask).__name__,
    )


def check_position(position: Position | None, appends: bool) -> None:
    """Refuse what is no position, and one inside attention where keys are appended.

    Raises:
        BadType, BadValue: the message names it and the way out.
    """
    if position is not None and not isinstance(position, Position):
        raise BadType(
            "position: expected a headwise position or None, got {position_type}; for "
            "example hw.Sinusoidal(embed_dim)",
            position_type=type(position).__name__,
        )
    if appends and position is not None and position.stages - {Stage.INPUT}:
        name = type(position).__name__
        raise BadValue(
            "position: {name} needs to know where each key stands, and the keys that "
            "add_bias_kv and add_zero_attn append stand nowhere; leave them out, or use "
            "a position that is added to the input, such as hw.Sinusoidal(embed_dim)",
            name=name,
        )


def check_fits(position: Position | None, inputs: Collection[int], heads: int, dim: int) -> None:
    """Refuse a position made for other sizes than the module's.

    Args:
        position: where tokens stand, or None.
        inputs: the sizes of query, key and value.
        heads: H.
        dim: D, which is Dv too.

    Raises:
        BadValue: if it could fit no call.
    """
    made_for = {} if position is None else position.expected_sizes()
    has = {"E": set(inputs), "H": {heads}, "D": {dim}, "Dv": {dim}}
    for letter, size in made_for.items():
        if has[letter] != {size}:
            name, got = type(position).__name__, ", ".join(map(str, sorted(has[letter])))
            raise BadValue(
                "position: {name} was made for {letter}={size}, the module has "
                "{letter}={got}; make it with the module's size, or, where query, key "
                "and value differ, leave it out",
                name=name,
                letter=letter,
                size=size,
                got=got,
            )


def checked_engine(engine: str) -> str:
    """The engine's name, if there is one of it.

    Raises:
        BadValue: if there is none; the message lists them.
    """
    names = (AUTO, *(known.NAME for known in ENGINES))
    if engine not in names:
        raise one_of("engine", engine, names)
    return engine


def check_alone(position: Position | None, appends: bool) -> None:
    """Refuse what has no meaning for rows that stand anywhere.

    Raises:
        BadValue: for a position inside attention, and for appended keys.
    """
    inside = position is not None and bool(position.stages - {Stage.INPUT})
    if inside or appends:
        other = type(position).__name__ if inside else "add_bias_kv or add_zero_attn"
        raise BadValue(
            "global_projections: expected no position inside attention and no appended "
            "keys, got {other}; leave one out, or use a position added to the input, "
            "such as hw.Learned(...)",
            other=other,
        )


def check_positive(sizes: Mapping[str, object]) -> None:
    """Refuse a size that is no integer of at least 1.

    Raises:
        BadType: if one is no integer.
        BadValue: if one is below 1.
    """
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise BadType("{name}: expected an integer, got {size!r}", name=name, size=size)
        if size < 1:
            raise BadValue("{name}: expected at least 1, got {size}", name=name, size=size)


def head_size(embed_dim: int, num_heads: int, head_dim: int | None) -> int:
    """D: what was asked for, or E / H.

    Raises:
        BadValue: if it was left out and H does not divide E.

    Example:
        >>> head_size(640, 4, None), head_size(640, 4, 256)
        (160, 256)
    """
    if head_dim is not None:
        return head_dim
    if embed_dim % num_heads:
        near = embed_dim // num_heads or 1
        raise BadValue(
            "embed_dim: expected a multiple of num_heads, got embed_dim={embed_dim} and "
            "num_heads={num_heads}; give the size of a head yourself, for example "
            "head_dim={near}",
            embed_dim=embed_dim,
            num_heads=num_heads,
            near=near,
        )
    return embed_dim // num_heads


def check_groups(num_heads: int, num_kv_heads: int) -> None:
    """Refuse key/value heads that the query heads cannot share evenly.

    Raises:
        BadValue: if G does not divide H.
    """
    if num_heads % num_kv_heads:
        divisors = [g for g in range(1, num_heads + 1) if num_heads % g == 0]
        raise BadValue(
            "num_kv_heads: expected a divisor of num_heads={num_heads}, got "
            "{num_kv_heads}; use one of {divisors}",
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            divisors=divisors,
        )


def check_dropout(dropout: object) -> float:
    """The dropout as a float.

    Raises:
        BadValue: if it is no probability.
    """
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise BadValue(
            "dropout: expected a probability from 0 to 1, got {dropout!r}; 0 switches it off",
            dropout=dropout,
        )
    return float(dropout)


def check_inputs(inputs: Mapping[str, Tensor], sizes: Mapping[str, int], is_first: bool) -> None:
    """Refuse inputs that do not fit the module or each other.

    Args:
        inputs: query, key and value by name.
        sizes: the last axis of each by the argument that set it: embed_dim, kdim, vdim.
        is_first: whether the module reads (B, L, E).

    Raises:
        BadType: if one is no tensor.
        BadValue: if a shape does not fit.
    """
    for (name, x), (argument, size) in zip(inputs.items(), sizes.items(), strict=True):
        _check_one(name, x, argument, size)
    if len({x.dim() for x in inputs.values()}) > 1:
        raise _disagree(Text("the number of axes"), inputs)
    query, key, value = (batch_first(x, is_first) for x in inputs.values())
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        layout = f"{'(B, L, E)' if is_first else '(L, B, E)'} with batch_first={is_first}"
        raise _disagree(Text("the batch size B, read as {layout},", layout=layout), inputs)
    if key.shape[1] != value.shape[1]:
        raise _disagree(Text("the length S of key and value"), inputs)


def check_dtypes(inputs: Mapping[str, Tensor], projections: Mapping[str, nn.Module]) -> None:
    """Refuse inputs in another dtype than the weights, unless autocast is on.

    Raises:
        BadValue: if an input's dtype is not that of its projection.
    """
    for (name, x), (owner, projection) in zip(inputs.items(), projections.items(), strict=True):
        if type(projection) is not nn.Linear or torch.is_autocast_enabled(x.device.type):
            continue
        kind = projection.weight.dtype
        if x.dtype != kind:
            raise BadValue(
                "{name}: expected {kind}, the dtype of {owner}.weight, got {x_dtype}; "
                "use {name}.to({kind}) or module.to({x_dtype})",
                name=name,
                kind=kind,
                owner=owner,
                x_dtype=x.dtype,
            )


def _check_one(name: str, x: Tensor, argument: str, size: int) -> None:
    if not isinstance(x, Tensor):
        raise BadType("{name}: expected a tensor, got {x_type}", name=name, x_type=type(x).__name__)
    if x.is_nested:
        raise BadValue(
            "{name}: expected a dense tensor, got a nested one; use "
            "x.to_padded_tensor(0.0) with key_padding_mask",
            name=name,
        )
    if x.dim() not in (2, 3):
        raise BadValue(
            "{name}: expected two axes (length, size) or three with a batch, got {x_shape}",
            name=name,
            x_shape=tuple(x.shape),
        )
    if x.shape[-1] != size:
        raise BadValue(
            "{name}: expected a last axis of size {argument}={size}, got {x_shape}; make "
            "the module with {argument}={x_shape_2} or project the input first",
            name=name,
            argument=argument,
            size=size,
            x_shape=tuple(x.shape),
            x_shape_2=x.shape[-1],
        )


def _disagree(size: Text, inputs: Mapping[str, Tensor]) -> BadValue:
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
    return BadValue(
        "query, key, value: {size} must agree, got {shapes}; a batch is either in all three or in "
        "none, and batch_first says which axis it is",
        size=size,
        shapes=shapes,
    )


def check_index(index: Tensor, batch: int, holder: Text) -> None:
    """Refuse what does not say for each sample which of those held it goes on from.

    Args:
        index: should be integers (B',), each from 0 to B - 1.
        batch: B, how many samples are held.
        holder: what holds them.

    Raises:
        BadType: if it is no row of integers.
        BadValue: if a number is not that of a sample.
    """
    integers = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if not integers or index.dim() != 1:
        got = tuple(index.shape) if isinstance(index, Tensor) else repr(index)
        raise BadType(
            "index: expected integers (B,), the sample that each goes on from, got "
            "{got}; for example torch.tensor([0, 0, 1])",
            got=got,
        )
    if bool(((index < 0) | (index >= batch)).any()):
        raise BadValue(
            "index: {holder} holds {batch} samples, numbered from 0, got {index}; "
            "reorder before reset(), with numbers of the batch that was held",
            holder=holder,
            batch=batch,
            index=index.tolist(),
        )

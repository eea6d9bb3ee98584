"""The built parts that a `MultiheadAttention` is made with: a mask, a position, an engine."""

from collections.abc import Collection

from headwise.attention import AUTO
from headwise.engines import ENGINES
from headwise.errors import BadType, BadValue, one_of
from headwise.masks import Mask
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
    made_for = {} if position is None else position.made_for()
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

"""The sizes of a module, checked once when it is made."""

from collections.abc import Mapping

from headwise.errors import BadType, BadValue


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

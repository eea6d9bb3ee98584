"""The checks that several masks make of their arguments."""

from headwise.errors import BadType, BadValue


def whole(mask: str, argument: str, value: object, least: int, way_out: tuple[str, str]) -> None:
    """Refuse what is no integer of at least ``least``; ``way_out`` says so in both languages.

    Raises:
        BadType: if it is no integer.
        BadValue: if it is too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadType(
            f"{mask}: {argument} must be an integer, got {value!r}; {way_out[0]}",
            f"{mask}：{argument} 必须是整数，收到 {value!r}；{way_out[1]}",
        )
    if value < least:
        raise BadValue(
            f"{mask}: {argument} must be >= {least}, got {value}; {way_out[0]}",
            f"{mask}：{argument} 必须 >= {least}，收到 {value}；{way_out[1]}",
        )

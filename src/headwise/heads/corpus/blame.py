"""Errors under the name that a person knows the matter by."""

from collections.abc import Iterator
from contextlib import contextmanager

from headwise.errors import BadValue


@contextmanager
def called(argument: str, inner: str) -> Iterator[None]:
    """What a function says of its own argument is said of the one that a person gave.

    Args:
        argument: the option or key that was given: "save".
        inner: the argument that it became: "output".

    Raises:
        BadValue: the same error under the other name; of its own kind.

    Example:
        >>> with called("save", "output"):
        ...     raise BadValue("output: no space; take another", "output：空间不足")
        Traceback (most recent call last):
        headwise.errors.BadValue: save: no space; take another
    """
    try:
        yield
    except BadValue as error:
        said = error.text
        if not said.en.startswith(f"{inner}: "):
            raise
        en, zh = (argument + each.removeprefix(inner) for each in (said.en, said.zh))
        raise type(error)(en, zh) from error

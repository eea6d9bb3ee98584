"""Memory that is free goes back to the system, so that a model beside has room for its own."""

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None where the C library is another."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # Windows has no library without a name
        return None
    return found


def give_back() -> None:
    """Hand back what is free between things that are not: glibc alone gives back only the end.

    A capture leaves small things behind on the heap, and the holes between them would stay with the
    process, too small for the tensors of the model.
    """
    trim = _trim()
    if trim is not None:
        trim(0)

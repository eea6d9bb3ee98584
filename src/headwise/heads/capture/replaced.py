"""Putting a function in a method's place on one object, and taking it away again.

Hooks would do for most modules, but `nn.TransformerEncoderLayer` runs another code where any hook
is attached to it.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: object, name: str, new: Callable[..., Any]) -> Iterator[None]:
    """While this is open, ``owner.name`` is ``new``, which looks like what it replaces."""
    old = getattr(owner, name)
    own = vars(owner).get(name)
    vars(owner)[name] = functools.wraps(old)(new)
    try:
        yield
    finally:
        if own is None:
            del vars(owner)[name]
        else:
            vars(owner)[name] = own

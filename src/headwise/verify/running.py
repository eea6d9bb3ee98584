"""One call of somebody's code: said before it runs, and a lack of memory kept from being caught."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Tell = Callable[[str], None]
"""Told what is called with which shapes, before it is called."""

SHORT = ("allocate memory", "std::bad_alloc", "out of memory")
"""What a library says where Python would say MemoryError."""


class Exhausted(BaseException):
    """A call ran out of memory. No check may take this for a wrong number: it ends the run."""


def silent(words: str) -> None:
    """Tells nobody."""
    del words


@contextmanager
def chance(seed: int) -> Iterator[None]:
    """PyTorch's random numbers begin at a seed, and outside go on as if nothing had been drawn.

    On the CPU, where targets are run: `torch.manual_seed` costs more than a small attention.
    """
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def guarded(run: Callable[[], T], arguments: Mapping[str, object], tell: Tell, seed: int = 0) -> T:
    """Run one call.

    Args:
        run: the call.
        arguments: what it is given, for the words of `tell`.
        tell: told of it before.
        seed: of what is random in it.

    Raises:
        Exhausted: if it runs out of memory.
    """
    tell(described(arguments))
    try:
        with chance(seed):
            return run()
    except Exception as error:
        if out_of_memory(error):
            raise Exhausted(str(error)) from error
        raise


def described(arguments: Mapping[str, object]) -> str:
    """The arguments with their shapes.

    Example:
        >>> import torch
        >>> described({"x": torch.zeros(2, 7, 15), "mask": None})
        'x (2, 7, 15), mask None'
    """
    return ", ".join(f"{name} {_shape(value)}" for name, value in arguments.items())


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that there was no memory left."""
    for _ in range(20):  # causes may run in a circle
        if error is None:
            return False
        if isinstance(error, MemoryError | Exhausted):
            return True
        if isinstance(error, RuntimeError) and any(word in str(error).lower() for word in SHORT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _shape(value: object) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return str(value) if value is None or isinstance(value, bool | int | float) else "(…)"

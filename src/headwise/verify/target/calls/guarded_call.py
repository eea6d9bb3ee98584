"""One guarded call of a target: logged, seeded, and its output found among what it returns."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import torch
from torch import Tensor

from headwise.verify.oracle.jobs import Job, Outcome, seeded_rng

T = TypeVar("T")

CallLog = Callable[[str], None]
"""Called with a description of every call of the target before it is made."""

SHORT = ("allocate memory", "std::bad_alloc", "out of memory")


class OutOfMemory(BaseException):
    """A call ran out of memory. It ends the run and is not the failure of a check."""


def no_log(words: str) -> None:
    """Ignore the description."""
    del words


def guarded(
    run: Callable[[], T], arguments: Mapping[str, object], log: CallLog, seed: int = 0
) -> T:
    """Log a call with its arguments, and run it with a seeded generator.

    Raises:
        OutOfMemory: if it runs out of memory.
    """
    log(described(arguments))
    try:
        with seeded_rng(seed):
            return run()
    except Exception as error:
        if out_of_memory(error):
            raise OutOfMemory(str(error)) from error
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
    """Whether an error or its cause is a lack of memory."""
    for _ in range(20):  # causes may run in a circle
        if error is None:
            return False
        if isinstance(error, MemoryError | OutOfMemory):
            return True
        if isinstance(error, RuntimeError) and any(word in str(error).lower() for word in SHORT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _shape(value: object) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return str(value) if value is None or isinstance(value, bool | int | float) else "(…)"


Axes = Literal["b l e", "l b e", "b e l", "l e"]
"""The axes of an input: batch first, length first, features before length, or one sample."""


def arranged(x: Tensor, axes: Axes) -> Tensor:
    """A tensor (B, L, E) with its axes in another order; applied twice, it is the tensor again."""
    if axes == "l b e":
        return x.transpose(0, 1)
    return x.transpose(1, 2) if axes == "b e l" else x


def outcome(result: object, job: Job, axes: Axes = "b l e") -> Outcome:
    """The output and weights among the returned tensors."""
    shape = tuple(job.query.shape)
    matches = [arranged(t, axes) if t.dim() == 3 else t for t in tensors_in(result)]
    output = next((t for t in matches if tuple(t.shape) == shape), None)
    if output is None:
        raise no_output(result, matches, shape)
    return Outcome(output, weights_in([t for t in matches if t is not output], job))


def weights_in(tensors: list[Tensor], job: Job) -> Tensor | None:
    """The weights of each head (B, H, Lq, Lk), where they are among what was returned."""
    shape = (job.query.shape[0], job.heads, job.query.shape[1], job.key.shape[1])
    return next((t for t in tensors if tuple(t.shape) == shape), None)


def tensors_in(result: object) -> list[Tensor]:
    """Every tensor in tuples, lists and mappings, in their order."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return [tensor for item in result for tensor in tensors_in(item)]
    return []


def no_output(result: object, tensors: list[Tensor], shape: tuple[int, ...]) -> ValueError:
    """The error for a result without an output of the expected shape."""
    got = ", ".join(str(tuple(t.shape)) for t in tensors) or _kind(result)
    return ValueError(f"returned {got}, expected an output of shape {shape}, a tensor")


def _kind(result: object) -> str:
    """The type's name as written in code, such as numpy.ndarray."""
    module, name = type(result).__module__, type(result).__qualname__
    if result is None:
        return "None"
    return name if module == "builtins" else f"{module}.{name}"


def watched(
    run: Callable[[], T], arguments: Mapping[str, object], log: CallLog, seed: int = 0
) -> tuple[T, tuple[str, ...]]:
    """Like `guarded`, with the names of the tensors that the call modified."""
    tensors = {name: t for name, t in arguments.items() if isinstance(t, Tensor)}
    before = {name: t._version for name, t in tensors.items()}
    result = guarded(run, arguments, log, seed)
    return result, tuple(name for name, t in tensors.items() if t._version != before[name])


def arrays_of(arguments: Mapping[str, object]) -> dict[str, object]:
    """Copies of the tensors among some arguments as arrays; the rest as it is.

    Raises:
        TypeError: if NumPy has no such dtype, such as bfloat16.
    """
    return {
        name: value.detach().clone().numpy() if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """The tensors whose arrays were modified."""
    return tuple(
        name
        for name, value in before.items()
        if isinstance(value, Tensor) and not torch.equal(value, torch.as_tensor(after[name]))
    )


def tensors_of(result: object, dtype: torch.dtype) -> object:
    """The result with every array as a tensor, rounded to the dtype."""
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return tuple(tensors_of(item, dtype) for item in result)
    if type(result).__module__.partition(".")[0] != "numpy":
        return result
    return torch.as_tensor(result).to(dtype)

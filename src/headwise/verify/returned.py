"""What a target is handed, and what came back: output and weights among whatever it returned."""

from collections.abc import Mapping

from torch import Tensor

from headwise.verify.jobs import Job
from headwise.verify.jobs import copied as laid_alike
from headwise.verify.subject import Outcome


def copied(job: Job) -> tuple[Tensor, Tensor, Tensor]:
    """The job's inputs for somebody who may write into them; one tensor stays one tensor."""
    query = laid_alike(job.query)
    key = query if job.key is job.query else laid_alike(job.key)
    value = key if job.value is job.key else laid_alike(job.value)
    return query, key, value


def outcome(result: object, job: Job, sequence_first: bool = False) -> Outcome:
    """Output and weights among whatever was returned."""
    found = tensors_in(result)
    shape = tuple(job.query.shape)
    if sequence_first:
        found = [t.transpose(0, 1) if t.dim() == 3 else t for t in found]
    output = next((t for t in found if tuple(t.shape) == shape), None)
    if output is None:
        raise no_output(result, found, shape)
    return Outcome(output, weights_in([t for t in found if t is not output], job))


def weights_in(found: list[Tensor], job: Job) -> Tensor | None:
    """The weights of each head (B, H, Lq, Lk), where they are among what was returned."""
    shape = (job.query.shape[0], job.heads, job.query.shape[1], job.key.shape[1])
    return next((t for t in found if tuple(t.shape) == shape), None)


def tensors_in(result: object) -> list[Tensor]:
    """Every tensor in tuples, lists and mappings, in their order."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return [tensor for each in result for tensor in tensors_in(each)]
    return []


def no_output(result: object, found: list[Tensor], shape: tuple[int, ...]) -> ValueError:
    """The error for what holds no output of the shape expected."""
    got = ", ".join(str(tuple(t.shape)) for t in found) or _kind(result)
    return ValueError(f"returned {got}, expected an output of shape {shape}, a tensor")


def _kind(result: object) -> str:
    """None, or the type as a person writes it: numpy.ndarray."""
    module, name = type(result).__module__, type(result).__qualname__
    return "None" if result is None else name if module == "builtins" else f"{module}.{name}"


def versions(arguments: Mapping[str, object]) -> dict[str, int]:
    """How often each tensor was written to."""
    return {name: t._version for name, t in arguments.items() if isinstance(t, Tensor)}


def written(arguments: Mapping[str, object], before: Mapping[str, int]) -> tuple[str, ...]:
    """The tensors that were written to since."""
    now = versions(arguments)
    return tuple(name for name in before if now[name] != before[name])

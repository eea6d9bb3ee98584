"""The conventions by which a target is called, and one guarded call of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import TypeVar

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import Mask
from headwise.masks.mask import And
from headwise.verify.checks import Subject, Ways
from headwise.verify.oracle.jobs import Job, Outcome, seeded_rng
from headwise.verify.target.signature import MaskForm, Signature, forms_for, lengths_of, pads

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


def outcome(result: object, job: Job, sequence_first: bool = False) -> Outcome:
    """The output and weights among the returned tensors."""
    matches = tensors_in(result)
    shape = tuple(job.query.shape)
    if sequence_first:
        matches = [t.transpose(0, 1) if t.dim() == 3 else t for t in matches]
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


Masks = Mapping[str, Tensor]  # the mask arguments of one call, by name


class Runner(ABC):
    """A target that can be called, by conventions that are not known yet.

    Attributes:
        signature: how it takes its tensors.
        log: called with a description of every call before it is made.
        drops: whether the target can be constructed with dropout.
    """

    signature: Signature
    log: CallLog
    drops: bool = False

    @abstractmethod
    def run(self, job: Job, masks: Masks) -> Outcome:
        """One call with the job's weights."""

    @property
    def variants(self) -> tuple["Runner", ...]:
        """The possible interpretations of the target, the likely one first."""
        return (self,)

    @property
    def forms(self) -> tuple[MaskForm, ...]:
        """Every form its mask could have, the likely ones first."""
        return forms_for(self.signature)

    @property
    def lacks(self) -> frozenset[str]:
        """The weights it does not have."""
        return frozenset()

    @property
    def groups(self) -> int | None:
        """Its key/value heads, or None for as many as heads."""
        return None

    @property
    def differentiable(self) -> bool:
        """Whether the target supports gradients."""
        return True


@dataclass(frozen=True, eq=False)
class Conventions:
    """A runner, and how to call it.

    Attributes:
        runner: the interpretation of the target that was chosen.
        base: the mask that it applies by itself, such as causal.
        forms: the forms in which its mask arguments take masks, the best one first.
        neutral: whether it requires a mask, also one that hides nothing.
        certain: whether the encoding of its masks was observed, and not guessed.
        variant: the index of the chosen interpretation in the target's variants.
        size: E and H that it was constructed for.
    """

    runner: Runner
    base: Mask
    forms: tuple[MaskForm, ...]
    neutral: bool
    certain: bool
    variant: int = 0
    size: tuple[int, int] = (15, 3)

    def masks(self, job: Job) -> Masks | None:
        """The mask arguments for a job; None where the target cannot express its mask."""
        allowed, own = job.allowed, self.base.dense(job.shape)
        if bool((allowed & ~own).any()):
            return None
        if bool((allowed == own).all()):
            if not self.neutral:
                return {}
            allowed = torch.ones_like(allowed)
        for form in sorted(self.forms, key=lambda form: not pads(form.argument)):
            encoded = form.encode(allowed)
            if encoded is not None:
                return {form.argument: encoded}
        return None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The mask arguments whose encoding is unknown."""
        understood = {form.argument for form in self.forms}
        return tuple(name for name in self.runner.signature.masks if name not in understood)

    @property
    def ways(self) -> Ways:
        """The target with masks given in one argument only, for each argument."""
        understood = (name for name in self.runner.signature.masks if name not in self.unknown)
        return tuple((name, partial(self._run_with, name)) for name in understood)

    def _run_with(self, argument: str, job: Job) -> Outcome | None:
        alone = replace(self, forms=tuple(f for f in self.forms if f.argument == argument))
        masks = alone.masks(job)
        return None if masks is None else alone.runner.run(job, masks)

    def together(self, job: Job) -> Outcome | None:
        """The target with the sides of a mask ``a & b`` in two of its arguments; None if it cannot.

        The target's own mask is in neither of them.
        """
        if not isinstance(job.mask, And):
            return None
        left, right = (replace(job, mask=side).allowed for side in (job.mask.left, job.mask.right))
        for one, other in permutations(self.forms, 2):
            first, second = one.encode(left), other.encode(right)
            if one.argument != other.argument and first is not None and second is not None:
                return self.runner.run(job, {one.argument: first, other.argument: second})
        return None

    def subject(self, name: str, embed_dim: int, heads: int) -> Subject:
        """The target as a subject of the contract."""
        roles = {role for _, role in self.runner.signature.tensors}
        pads_unknown = any(pads(argument) for argument in self.unknown)

        def refuses(what: object) -> Text | None:
            if not isinstance(what, Job):
                return Text("it has projections")
            crosses = "v" in roles or ("kv" in roles and what.key is what.value)
            if not what.alike and not crosses:
                return Text("it is self-attention only")
            if what.query.requires_grad and not self.runner.differentiable:
                return Text("it has no gradients")
            if what.dropout and not self.runner.drops:
                return Text("it has no dropout")
            masks = self.masks(what)
            padded = not what.allowed.all() and lengths_of(what.allowed) is not None
            if masks is None or (pads_unknown and padded):
                return Text("it does not take this mask")
            return None

        def module(job: Job) -> Outcome:
            return self.runner.run(job, self.masks(job) or {})

        return Subject(
            name=name,
            module=module,
            refuses=refuses,
            embed_dim=embed_dim,
            heads=heads,
            lacks=self.runner.lacks,
            ways=self.ways,
            groups=self.runner.groups,
            together=self.together,
            base=self.base,
        )

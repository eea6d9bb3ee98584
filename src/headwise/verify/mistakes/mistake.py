"""A mistake: one wrong step of attention, its description, and the check that rejects it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from typing import Any

from torch import Tensor

from headwise.lang import Text
from headwise.verify.oracle.jobs import StepContext, Weights

Replacement = Mapping[str, Callable[..., Any]]
"""The functions that replace correct steps, by step name."""

Step = Callable[[StepContext, Tensor], Tensor]


def skipped(_context: StepContext, x: Tensor) -> Tensor:
    """Return the input, as if the step were left out."""
    return x


def plain_softmax(_context: StepContext, scores: Tensor) -> Tensor:
    """Compute a softmax that gives NaN in fully masked rows."""
    return scores.softmax(-1)


@dataclass(frozen=True, eq=False)
class Mistake:
    """A known mistake in attention; it serves as a mutant for the checks and as a diagnosis.

    Attributes:
        name: the name of the mistake, in words joined by underscores.
        step: the name of the wrong step.
        says: the description of the mistake in one sentence.
        wrong: a typical wrong line of code.
        right: the correct line of code.
        check: the name of the check that must reject it.
        replacement: the functions that replace the correct steps, by step name.
        others: other replacements that make the same mistake, such as with another number.
        fit: the replacement that fits observations, or None; for mistakes with any number.
        subject: the mutant made of the correct subject, for mistakes outside the steps.
    """

    name: str
    step: str
    says: Text
    wrong: str
    right: str
    check: str
    replacement: Replacement = field(repr=False)
    others: tuple[Replacement, ...] = field(repr=False, default=())
    fit: Callable[[Sequence[Any]], "Fitted | None"] | None = field(repr=False, default=None)
    subject: Callable[[Any], Any] | None = field(repr=False, default=None)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A replacement that fits observations, and what the report says of it."""

    replacement: Replacement
    says: Text


def mistake(
    names: tuple[str, str, str],
    says: Text,
    lines: tuple[str, str],
    replacement: Replacement,
    others: tuple[Replacement, ...] = (),
) -> Mistake:
    """Build a mistake from (name, step, check), a description and the (wrong, correct) lines."""
    (name, step, check), (wrong, right) = names, lines
    return Mistake(name, step, says, wrong, right, check, replacement, others)


@dataclass(frozen=True, eq=False)
class WeightChange:
    """A correct step with changed weights; two changes of the same step can be combined."""

    step: Callable[..., Any]
    change: Callable[[Weights], Weights]

    def __call__(self, context: StepContext, *tensors: Any) -> Any:
        return self.step(replace(context, weights=self.change(context.projections)), *tensors)

    def then(self, other: "WeightChange") -> "WeightChange":
        """Return the step with this change followed by the other change."""
        return WeightChange(self.step, lambda weights: other.change(self.change(weights)))


def combine(mistakes: Sequence[Mistake]) -> Iterator[Replacement]:
    """Yield every combination of these mistakes; nothing if two exclude each other.

    Where two mistakes replace the same step, the mistake in that step takes precedence. Two
    mistakes in one step exclude each other, unless both only change its weights.
    """
    for ways in product(*((m.replacement, *m.others) for m in mistakes)):
        pairs = tuple(zip(mistakes, ways, strict=True))
        joined = {step: _at(step, pairs) for way in ways for step in way}
        if None not in joined.values():
            yield {step: function for step, function in joined.items() if function}


def _at(step: str, pairs: Sequence[tuple[Mistake, Replacement]]) -> Callable[..., Any] | None:
    replacing = [(mistake, way[step]) for mistake, way in pairs if step in way]
    functions = [function for _, function in replacing]
    changes = [function for function in functions if isinstance(function, WeightChange)]
    if len(changes) == len(functions):
        return reduce(WeightChange.then, changes)
    own = [function for mistake, function in replacing if mistake.step == step]
    return None if len(own) > 1 else next(iter((*own, *functions)))

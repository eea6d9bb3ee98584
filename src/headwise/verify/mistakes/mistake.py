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
"""The functions that replace the correct steps, by step name."""

Step = Callable[[StepContext, Tensor], Tensor]


def skipped(_context: StepContext, x: Tensor) -> Tensor:
    """A step that is left out."""
    return x


def plain_softmax(_context: StepContext, scores: Tensor) -> Tensor:
    """A softmax that gives NaN in fully masked rows."""
    return scores.softmax(-1)


@dataclass(frozen=True, eq=False)
class Mistake:
    """A known way to get attention wrong. It is a mutant for the checks, and a diagnosis.

    Attributes:
        name: its name, in words joined by underscores.
        step: the step that is wrong.
        says: its description, one sentence.
        wrong: a typical wrong line.
        right: the correct line.
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
    """A mistake, by its name, step and check, its description, and a wrong and the correct line."""
    (name, step, check), (wrong, right) = names, lines
    return Mistake(name, step, says, wrong, right, check, replacement, others)


@dataclass(frozen=True, eq=False)
class WeightChange:
    """A correct step with changed weights; two of them combine."""

    step: Callable[..., Any]
    change: Callable[[Weights], Weights]

    def __call__(self, context: StepContext, *tensors: Any) -> Any:
        return self.step(replace(context, weights=self.change(context.projections)), *tensors)

    def then(self, other: "WeightChange") -> "WeightChange":
        """The same step with both changes, the other's last."""
        return WeightChange(self.step, lambda weights: other.change(self.change(weights)))


def combine(mistakes: Sequence[Mistake]) -> Iterator[Replacement]:
    """Every combination of these mistakes; empty where two exclude each other.

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

"""A mistake: one wrong step of attention, its description, and the check that rejects it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from typing import Any

from headwise.lang import Text
from headwise.verify.oracle.jobs import Weights
from headwise.verify.oracle.steps import StepContext

Replacement = Mapping[str, Callable[..., Any]]
"""The functions that take the place of the right steps, by step name."""


@dataclass(frozen=True, eq=False)
class Mistake:
    """A known way to get attention wrong. It is a mutant for the checks, and a diagnosis.

    Attributes:
        name: its name, in words joined by underscores.
        step: the step it stands in.
        says: one sentence that tells what is wrong.
        wrong: the wrong line, as people write it.
        right: the line that mends it.
        check: the name of the check that must catch it.
        replacement: the functions that take the place of the right steps, by step name.
        others: other replacements that make the same mistake, such as with another number.
    """

    name: str
    step: str
    says: Text
    wrong: str
    right: str
    check: str
    replacement: Replacement = field(repr=False)
    others: tuple[Replacement, ...] = field(repr=False, default=())


@dataclass(frozen=True, eq=False)
class WeightChange:
    """A correct step with changed weights; two of them combine.

    Attributes:
        step: the right function of `headwise.verify.oracle.steps`.
        change: what it does to the weights.
    """

    step: Callable[..., Any]
    change: Callable[[Weights], Weights]

    def __call__(self, context: StepContext, *tensors: Any) -> Any:
        return self.step(replace(context, weights=self.change(context.projections)), *tensors)

    def then(self, other: "WeightChange") -> "WeightChange":
        """The same step with both changes, the other's last."""
        return WeightChange(self.step, lambda weights: other.change(self.change(weights)))


def combine(mistakes: Sequence[Mistake]) -> Iterator[Replacement]:
    """Every combination of these mistakes; empty where two exclude each other.

    Where two mistakes replace the same step, the one that stands in it has its way; two that stand
    in one step exclude each other, unless both only change its weights.

    Args:
        mistakes: one or more.
    """
    for ways in product(*((m.replacement, *m.others) for m in mistakes)):
        instance = tuple(zip(mistakes, ways, strict=True))
        joined = {step: _at(step, instance) for way in ways for step in way}
        if None not in joined.values():
            yield {step: function for step, function in joined.items() if function}


def _at(step: str, made: Sequence[tuple[Mistake, Replacement]]) -> Callable[..., Any] | None:
    """The function of one step with all mistakes; None where they exclude each other."""
    there = [(mistake, way[step]) for mistake, way in made if step in way]
    functions = [function for _, function in there]
    changed = [function for function in functions if isinstance(function, WeightChange)]
    if len(changed) == len(functions):
        return reduce(WeightChange.then, changed)
    if len(functions) == 1:
        return functions[0]
    own = [function for mistake, function in there if mistake.step == step]
    return None if len(own) > 1 else next(iter((*own, *functions)))

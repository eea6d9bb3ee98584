"""What a mistake is: one step of attention done wrong, with what a person needs to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwise.lang import Text


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
    replacement: Mapping[str, Callable[..., Any]] = field(repr=False)
    others: tuple[Mapping[str, Callable[..., Any]], ...] = field(repr=False, default=())

"""What every reading of a target offers, whether it is a module, a function or an adapter."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from headwise.verify.calling import Form, Signature
from headwise.verify.jobs import Job
from headwise.verify.running import Tell
from headwise.verify.subject import Outcome

Masks = Mapping[str, Tensor]
"""The mask arguments of one call, by name."""


class Runner(Protocol):
    """A target before anything is known of its conventions."""

    @property
    def signature(self) -> Signature:
        """How it takes its tensors."""
        ...

    @property
    def variants(self) -> tuple["Runner", ...]:
        """Other readings of the same target, the likely one first: itself."""
        ...

    @property
    def lacks(self) -> frozenset[str]:
        """The weights it does not have."""
        ...

    @property
    def groups(self) -> int | None:
        """Its key/value heads, or None for as many as heads."""
        ...

    @property
    def forms(self) -> tuple[Form, ...]:
        """Every form its mask could have, the likely ones first."""
        ...

    @property
    def differentiable(self) -> bool:
        """Whether gradients can be asked for."""
        ...

    @property
    def drops(self) -> bool:
        """Whether dropout can be asked for."""
        ...

    @property
    def tell(self) -> Tell:
        """Told of every call before it is made."""
        ...

    def run(self, job: Job, masks: Masks) -> Outcome:
        """One call with the job's weights."""
        ...

"""The protocol of a target, and the conventions by which it is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Protocol

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import Mask
from headwise.masks.mask import And
from headwise.verify.checks import Subject, Ways
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.target.guarded_call import CallLog
from headwise.verify.target.signature import MaskForm, Signature, lengths_of, pads

Masks = Mapping[str, Tensor]
"""The mask arguments of one call, by name."""


class Runner(Protocol):
    """A target whose conventions are not known yet."""

    @property
    def signature(self) -> Signature:
        """How it takes its tensors."""
        ...

    @property
    def variants(self) -> tuple["Runner", ...]:
        """The possible interpretations of the target, the likely one first."""
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
    def forms(self) -> tuple[MaskForm, ...]:
        """Every form its mask could have, the likely ones first."""
        ...

    @property
    def differentiable(self) -> bool:
        """Whether the target supports gradients."""
        ...

    @property
    def drops(self) -> bool:
        """Whether the target can be constructed with dropout."""
        ...

    @property
    def log(self) -> CallLog:
        """Called with a description of every call before it is made."""
        ...

    def run(self, job: Job, masks: Masks) -> Outcome:
        """One call with the job's weights."""
        ...


LENGTH = 7
"""How long the sequences are that a target is tried with."""


@dataclass(frozen=True, eq=False)
class Conventions:
    """A runner, and how to call it.

    Attributes:
        runner: the reading of the target that was chosen.
        base: what it hides when it is given no mask: nothing, or the future.
        forms: the forms in which its mask arguments take masks, the best one first.
        neutral: whether a mask that hides nothing has to be given where there is none.
        certain: whether the way it reads its mask was seen, and not guessed.
        variant: which of the target's readings was chosen.
        size: E and H that it was made for.
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
        allowed = job.mask.dense(job.shape).expand(job.shape.batch, job.heads, -1, -1)
        alone = self.base.dense(job.shape)
        if bool((allowed & ~alone).any()):
            return None
        if bool((allowed == alone).all()):
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
        known = {form.argument for form in self.forms}
        return tuple(name for name in self.runner.signature.masks if name not in known)

    @property
    def ways(self) -> Ways:
        """The target with masks given in one argument only, for each argument."""
        masks = self.runner.signature.masks
        return tuple((name, self._through(name)) for name in masks if name not in self.unknown)

    def _through(self, argument: str) -> Callable[[Job], Outcome | None]:
        alone = replace(self, forms=tuple(f for f in self.forms if f.argument == argument))

        def way(job: Job) -> Outcome | None:
            masks = alone.masks(job)
            return None if masks is None else alone.runner.run(job, masks)

        return way

    def together(self, job: Job) -> Outcome | None:
        """The target with the sides of a mask ``a & b`` in two of its arguments; None if it cannot.

        What the target hides by itself stands in none of them.
        """
        if not isinstance(job.mask, And):
            return None
        sides = [
            side.dense(job.shape).expand(job.shape.batch, job.heads, -1, -1)
            for side in (job.mask.left, job.mask.right)
        ]
        for one, other in permutations(self.forms, 2):
            if one.argument == other.argument:
                continue
            masks = {
                f.argument: f.encode(side) for f, side in zip((one, other), sides, strict=True)
            }
            arguments = {name: mask for name, mask in masks.items() if mask is not None}
            if len(arguments) == 2:
                return self.runner.run(job, arguments)
        return None

    def _pads_unknown(self, job: Job) -> bool:
        """Whether the job has padding and the target's padding argument is not understood."""
        allowed = job.mask.dense(job.shape).expand(job.shape.batch, job.heads, -1, -1)
        hides = not bool(allowed.all()) and lengths_of(allowed) is not None
        return hides and any(pads(argument) for argument in self.unknown)

    def subject(self, name: str, embed_dim: int, heads: int) -> Subject:
        """The target as a subject of the contract."""

        def refuses(what: object) -> Text | None:
            if not isinstance(what, Job):
                return Text("it has projections")
            if not what.alike and not self._crosses(what):
                return Text("it is self-attention only")
            if what.query.requires_grad and not self.runner.differentiable:
                return Text("it has no gradients")
            if what.dropout and not self.runner.drops:
                return Text("it has no dropout")
            if self.masks(what) is None or self._pads_unknown(what):
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

    def _crosses(self, job: Job) -> bool:
        roles = {role for _, role in self.runner.signature.tensors}
        return "v" in roles or ("kv" in roles and job.key is job.value)

"""The conventions by which a target is called."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import Mask
from headwise.masks.mask import And
from headwise.positions import Position
from headwise.shapes import Allowed
from headwise.verify.checks import Subject, Ways
from headwise.verify.oracle import oracle
from headwise.verify.oracle.jobs import Job, Outcome
from headwise.verify.target.calls.guarded_call import CallLog
from headwise.verify.target.calls.mask_forms import MaskForm, forms_for, lengths_of, pads
from headwise.verify.target.calls.signature import Signature
from headwise.verify.target.stated import NOTHING, MaskTrue, Stated

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
        return forms_for((*self.signature.masks, *self.signature.maybe))

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
        position: the position encoding that it applies by itself, or None.
        excused: mask arguments that are not tried, since another one hides what it should.
        stated: what a person stated.
        contradicted: mask arguments that do the opposite of what is documented, with the meaning.
        exact: whether the target was exact without a mask when it was first called.
        unexplained: whether no pair of known mistakes gives its output without a mask.
    """

    runner: Runner
    base: Mask
    forms: tuple[MaskForm, ...]
    neutral: bool
    certain: bool
    variant: int = 0
    size: tuple[int, int] = (15, 3)
    position: Position | None = None
    excused: frozenset[str] = field(default=frozenset())
    stated: Stated = NOTHING
    contradicted: tuple[tuple[str, MaskTrue], ...] = ()
    exact: bool = False
    unexplained: bool = False

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
            for wider in _beside(allowed, own):
                encoded = form.encode(wider)
                if encoded is not None:
                    return {form.argument: encoded}
        return None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The mask arguments whose encoding is unknown."""
        understood = {form.argument for form in self.forms} | self.excused
        return tuple(name for name in self.runner.signature.masks if name not in understood)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The mask arguments whose encoding is known, in the order of the signature."""
        signature, own = self.runner.signature, {form.argument for form in self.forms}
        return tuple(name for name in (*signature.masks, *signature.maybe) if name in own)

    @property
    def ways(self) -> Ways:
        """The target with masks given in one argument only, for each argument."""
        return tuple((name, partial(self._run_with, name)) for name in self.arguments)

    def _run_with(self, argument: str, job: Job) -> Outcome | None:
        alone = replace(self, forms=tuple(f for f in self.forms if f.argument == argument))
        return None if alone.masks(job) is None else alone.attempt(job)

    def run(self, job: Job) -> Outcome:
        """The outcome of a job whose mask the target can take.

        Padded queries that a mask hides as well have the exact output: nothing is asked of them.
        """
        masks = self.masks(job) or {}
        outcome = self.runner.run(job, masks)
        hiding = any(form.hides_queries and form.argument in masks for form in self.forms)
        return without_padded_queries(outcome, job) if hiding else outcome

    def continued(self, job: Job) -> Outcome | None:
        """The outcome of the last queries with a cache of the target; None without one."""
        continued = getattr(self.runner, "continued", None)
        try:
            return None if continued is None or self.neutral else continued(job)
        except Exception:
            return None

    def attempt(self, job: Job) -> Outcome | None:
        """The outcome of a job; None where the target raises."""
        try:
            return self.run(job)
        except Exception:
            return None

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
                if one.hides_queries or other.hides_queries:
                    continue
                try:
                    return self.runner.run(job, {one.argument: first, other.argument: second})
                except Exception:
                    return None
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
            if self.position is not None and what.shape.offset:
                return Text("its positions are those of self-attention")
            masks = self.masks(what)
            padded = not what.allowed.all() and lengths_of(what.allowed) is not None
            if masks is None or (pads_unknown and padded):
                return Text("it does not take this mask")
            return None

        return Subject(
            name=name,
            module=self.run,
            refuses=refuses,
            embed_dim=embed_dim,
            heads=heads,
            lacks=self.runner.lacks,
            ways=self.ways,
            groups=self.runner.groups,
            together=self.together,
            base=self.base,
            position=self.position,
            may_raise=True,
            cached=self.continued,
        )


def _beside(allowed: Allowed, own: Allowed) -> Iterator[Allowed]:
    """Masks that give `allowed` where a target also hides what its own mask hides."""
    yield allowed
    keys = allowed.any(1, keepdim=True).any(2, keepdim=True).expand_as(allowed)
    for wider in (keys, allowed | ~own):
        if bool(((wider & own) == allowed).all()):
            yield wider


def without_padded_queries(outcome: Outcome, job: Job) -> Outcome:
    """The outcome with the exact output in the rows of padded queries."""
    keys = job.allowed.any(1).any(1)  # (B, Lk)
    if keys.shape[1] != job.query.shape[1] or bool(keys.all()):
        return outcome
    dtype = outcome.output.dtype
    output = torch.where(keys[..., None], outcome.output, oracle(job, dtype)["output"].to(dtype))
    weights = outcome.weights
    if weights is not None:
        weights = torch.where(keys[:, None, :, None], weights, oracle(job, dtype)["weights"])
    return replace(outcome, output=output, weights=weights)

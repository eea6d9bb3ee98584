"""What a target's conventions are, found by trying: its axes, its own mask, how it takes masks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor, full, padding
from headwise.masks.base import And
from headwise.verify.adapter import no_function, not_recognised
from headwise.verify.budget import SLACK
from headwise.verify.calling import Form, lengths_of, pads
from headwise.verify.diagnosis import Seen, explain
from headwise.verify.functions import FunctionRunner
from headwise.verify.jobs import Job, self_job
from headwise.verify.judging import judge_job
from headwise.verify.runners import Masks, Runner
from headwise.verify.subject import Outcome, Subject, Ways

LENGTH = 7


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
    forms: tuple[Form, ...]
    neutral: bool
    certain: bool
    variant: int = 0
    size: tuple[int, int] = (15, 3)

    def masks(self, job: Job) -> Masks | None:
        """The mask arguments for a job, or None where it cannot be asked."""
        allowed = job.mask.dense(job.frame).expand(job.frame.batch, job.heads, -1, -1)
        alone = self.base.dense(job.frame)
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
        """The mask arguments in which no way of giving a mask was understood."""
        known = {form.argument for form in self.forms}
        return tuple(name for name in self.runner.signature.masks if name not in known)

    @property
    def ways(self) -> Ways:
        """The target with masks given in one of its arguments only."""
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
            side.dense(job.frame).expand(job.frame.batch, job.heads, -1, -1)
            for side in (job.mask.left, job.mask.right)
        ]
        for one, other in permutations(self.forms, 2):
            if one.argument == other.argument:
                continue
            masks = {
                f.argument: f.encode(side) for f, side in zip((one, other), sides, strict=True)
            }
            given = {name: mask for name, mask in masks.items() if mask is not None}
            if len(given) == 2:
                return self.runner.run(job, given)
        return None

    def _pads_unknown(self, job: Job) -> bool:
        """Whether the job has padding, and the argument made for it was not understood."""
        allowed = job.mask.dense(job.frame).expand(job.frame.batch, job.heads, -1, -1)
        hides = not bool(allowed.all()) and lengths_of(allowed) is not None
        return hides and any(pads(argument) for argument in self.unknown)

    def subject(self, name: str, embed_dim: int, heads: int) -> Subject:
        """The target as a subject of the contract."""

        def refuses(what: object) -> Text | None:
            if not isinstance(what, Job):
                return Text("it has projections", "它带有投影")
            if not what.alike and not self._crosses(what):
                return Text("it is self-attention only", "它只支持自注意力")
            if what.dropout and not self.runner.drops:
                return Text("it has no dropout", "它没有 dropout")
            if self.masks(what) is None or self._pads_unknown(what):
                return Text("it does not take this mask", "它不接受这种掩码")
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
        )

    def _crosses(self, job: Job) -> bool:
        roles = {role for _, role in self.runner.signature.tensors}
        return "v" in roles or ("kv" in roles and job.key is job.value)


def find_conventions(runner: Runner, embed_dim: int, heads: int, seed: int) -> Conventions:
    """Try the target and see.

    Raises:
        BadFile: if it raises however it is called.
    """
    job = self_job(embed_dim, heads, length=LENGTH, seed=seed)
    job = job.fitted(runner.lacks, runner.groups)
    neutral, forms = _callable(runner, job)
    guess = Conventions(runner, full(), forms, neutral, certain=False, size=(embed_dim, heads))
    tried = [replace(guess, runner=each, variant=i) for i, each in enumerate(runner.variants)]
    chosen = next((c for c in tried if _equals(c, job, full())), None)
    chosen = chosen or next((c for c in tried if _equals(c, job, causal())), None)
    chosen = chosen or _understood(tried, job) or guess
    chosen = replace(chosen, base=_base(chosen, job))
    return _with_forms(chosen, job)


def _callable(runner: Runner, job: Job) -> tuple[bool, tuple[Form, ...]]:
    """Whether it needs a mask, and the forms left; raises where nothing works."""
    said = ""
    if not runner.signature.needs_mask:
        try:
            runner.run(job, {})
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            return False, runner.forms
    allowed = full().dense(job.frame).expand(job.frame.batch, job.heads, -1, -1)
    working = tuple(form for form in runner.forms if _attempt(runner, job, form, allowed))
    if not working:
        function = isinstance(runner, FunctionRunner)
        given = f"q, k, v {_split(job)}" if function else f"x {tuple(job.query.shape)}"
        raise (no_function if function else not_recognised)(
            f"calling it with {given} raises {said or 'for every mask'}",
            f"以 {given} 调用时抛出 {said or '（任何掩码都出错）'}",
        )
    return True, working


def _split(job: Job) -> tuple[int, int, int, int]:
    """The shape of q, k and v: (B, H, L, D)."""
    batch, length, embed_dim = job.query.shape
    return (batch, job.heads, length, embed_dim // job.heads)


def _attempt(runner: Runner, job: Job, form: Form, allowed: Tensor) -> Outcome | None:
    encoded = form.encode(allowed)
    if encoded is None:
        return None
    try:
        return runner.run(job, {form.argument: encoded})
    except Exception:
        return None


def _equals(conventions: Conventions, job: Job, mask: Mask) -> bool:
    """Whether the target without a mask gives what the oracle gives with this one."""
    try:
        outcome = conventions.runner.run(job, conventions.masks(replace(job, mask=full())) or {})
    except Exception:
        return False
    return judge_job(outcome, replace(job, mask=mask)).accepted


def _base(conventions: Conventions, job: Job) -> Mask:
    """What the target hides by itself: seen in its output, its influences, or a known mistake."""
    for mask in (full(), causal()):
        if _equals(conventions, job, mask):
            return mask
    run = _runs(conventions, job)
    if run is None:
        return full()
    seen = influences(run, job)
    for mask in (full(), causal()):
        if bool((seen == _off_diagonal(mask, job)).all()):
            return mask
    for most in (1, 2):
        for mask in (full(), causal()):
            if explain([Seen(replace(job, mask=mask), run(job))], most=most):
                return mask
    return full() if bool(seen.sum() > seen.numel() // 2) else causal()


def _understood(tried: Sequence[Conventions], job: Job) -> Conventions | None:
    """Of several readings the one in which the fewest mistakes explain what the target gives."""
    if len(tried) == 1:
        return None
    runs = [(each, run) for each in tried if (run := _runs(each, job)) is not None]
    for most in (1, 2):
        for each, run in runs:
            for mask in (full(), causal()):
                if explain([Seen(replace(job, mask=mask), run(job))], most=most):
                    return each
    return None


def _runs(conventions: Conventions, job: Job) -> Callable[[Job], Outcome] | None:
    masks = conventions.masks(replace(job, mask=full())) or {}
    try:
        conventions.runner.run(job, masks)
    except Exception:
        return None
    return lambda each: conventions.runner.run(each, masks)


def influences(run: Callable[[Job], Outcome], job: Job) -> Tensor:
    """(B, L, L): whether another token j changes output i of its sample; the diagonal is False."""
    before = run(job).output.detach()
    told = ~before.isnan().any(-1)[..., None]  # a row that is NaN tells nothing
    rounding = SLACK[before.dtype] * before.abs().nan_to_num(0.0).max()
    columns = []
    for j in range(LENGTH):
        x = job.query.clone()
        x[:, j] = 1.0 - 2.0 * x[:, j]
        after = run(replace(job, query=x, key=x, value=x)).output.detach()
        columns.append(~((after - before).abs().amax(-1) <= rounding))  # a NaN is a change
    return torch.stack(columns, -1) & told & ~torch.eye(LENGTH, dtype=torch.bool)


def _off_diagonal(mask: Mask, job: Job) -> Tensor:
    own = torch.eye(LENGTH, dtype=torch.bool)
    return mask.dense(job.frame)[:, 0].expand(job.frame.batch, -1, -1) & ~own


def _with_forms(conventions: Conventions, job: Job) -> Conventions:
    """For each mask argument the encoding that fits best, with every shape that works so."""
    kept: list[Form] = []
    certain = True
    for argument in conventions.runner.signature.masks:
        trials = _trials(conventions, job, argument)
        exact = [trial.form for trial in trials if _exact(trial)]
        kept += [form for form in exact if form.encoding == exact[0].encoding] or _alike(
            trials, conventions.neutral
        )
        certain = certain and bool(exact or any(_influential(trial) for trial in _one_each(trials)))
    return replace(conventions, forms=tuple(kept), certain=certain)


@dataclass(frozen=True, eq=False)
class _Trial:
    """One form that did not raise: the job with its mask, what came, and the target itself."""

    form: Form
    job: Job
    outcome: Outcome
    run: Callable[[Job], Outcome]


def _trials(conventions: Conventions, job: Job, argument: str) -> list[_Trial]:
    runner, trials = conventions.runner, []
    for form in conventions.forms:
        tried = replace(job, mask=_probe(form) & conventions.base)
        allowed = tried.mask.dense(job.frame).expand(job.frame.batch, job.heads, -1, -1)
        encoded = form.encode(allowed) if form.argument == argument else None
        if encoded is None:
            continue
        found = _attempt(runner, job, form, allowed)
        run = partial(_run_with, runner, {argument: encoded})
        if found is not None:
            trials.append(_Trial(form, tried, found, run))
    return trials


def _one_each(trials: list[_Trial]) -> list[_Trial]:
    """One trial of every encoding."""
    return list({trial.form.encoding: trial for trial in reversed(trials)}.values())[::-1]


def _alike(trials: list[_Trial], must: bool) -> list[Form]:
    """Every shape of the encoding that fits best where none gives what the oracle gives.

    Where nothing fits the mask is left alone, rather than accuse the target of what was guessed;
    unless it has to be given.
    """
    for fits in (_influential, _explained, _explained_by_two, *((bool,) if must else ())):
        for trial in _one_each(trials):
            if fits(trial):
                return [t.form for t in trials if t.form.encoding == trial.form.encoding]
    return []


def _run_with(runner: Runner, masks: Masks, job: Job) -> Outcome:
    return runner.run(job, masks)


def _exact(trial: _Trial) -> bool:
    return judge_job(trial.outcome, trial.job).accepted


def _influential(trial: _Trial) -> bool:
    """Whether exactly the tokens that the mask allows have an influence."""
    seen = influences(trial.run, trial.job)
    return bool((seen == _off_diagonal(trial.job.mask, trial.job)).all())


def _explained(trial: _Trial) -> bool:
    return bool(explain([Seen(trial.job, trial.outcome)], most=1))


def _explained_by_two(trial: _Trial) -> bool:
    return bool(explain([Seen(trial.job, trial.outcome)]))


def _probe(form: Form) -> Mask:
    """A mask that this form can say: a padding, or pairs without a symmetry."""
    if "q" not in form.shape.split():
        return padding([LENGTH, LENGTH - 3])
    some = torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) > 0.4
    some.fill_diagonal_(fill_value=True)
    return from_tensor(some, "q k")

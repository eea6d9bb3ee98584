"""Find the classes, modules and functions of a file that are attention.

Every candidate is called. A candidate is an attention if its output has the shape of its input, a
token's output depends on other tokens, and it computes a number for every pair of tokens or calls a
fused attention. If one attention uses another, only one of them is kept: the attention inside a
layer instead of the layer, and the attention made of heads, or of a function of q, k and v, instead
of the head or function.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from headwise.errors import HeadwiseError
from headwise.lang import Text
from headwise.verify.checks import LENGTH
from headwise.verify.diagnosis import record
from headwise.verify.oracle.jobs import Job, self_job
from headwise.verify.process.forbidden import operator_called
from headwise.verify.process.tampering import names_in
from headwise.verify.report import both
from headwise.verify.target import NotRecognised, one_line, without_example
from headwise.verify.target.calls.guarded_call import OutOfMemory, no_log
from headwise.verify.target.conventions import Conventions
from headwise.verify.target.loading import load_file
from headwise.verify.target.stated import NOTHING, Stated
from headwise.verify.target.trials.discovery import black_box, discover

SUGGESTS_ATTENTION = re.compile(
    r"(?i)att(entio)?n|mh[as]a?\b|mha|mqa|gqa|softmax|scaled_dot_product"
)
"""Words that make a candidate that cannot be called a refused attention."""

Found = dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A class, module or function of the searched file."""

    name: str
    value: Any

    @property
    def is_class(self) -> bool:
        return isinstance(self.value, type)

    def ran_in(self, trial: "_Trial") -> bool:
        """Whether the candidate, or a module of this class, ran in a trial."""
        code = self.value.__code__ if isinstance(self.value, FunctionType) else self.value
        return code in trial.ran

    @property
    def source(self) -> str:
        """The source of the candidate; empty for a module or if it cannot be read."""
        with suppress(OSError, TypeError):
            return inspect.getsource(self.value)
        return ""

    @property
    def names_used(self) -> set[str]:
        """The names that the candidate's code reads."""
        members = vars(self.value).values() if self.is_class else (self.value,)
        return names_in([f.__code__ for f in members if isinstance(f, FunctionType)])


@dataclass(eq=False)
class _Trial:
    """What was observed in a run of a candidate.

    Attributes:
        ran: the code of every function, and the class of every module, that ran.
        whole: the classes of the modules with weights whose output had the shape of the input.
        fused: whether a fused attention ran.
    """

    ran: set[object] = field(default_factory=set)
    whole: set[type] = field(default_factory=set)
    fused: bool = False


def attentions(
    file: Path,
    size: tuple[int, int],
    seed: int = 0,
    *,
    skip: Sequence[str] = (),
    stated: Stated = NOTHING,
    progress: Callable[[str], None] = no_log,
) -> Found:
    """Find the attentions in a file. This runs its code and calls its classes and functions.

    Args:
        file: a file of Python, or a notebook.
        size: E and H to try them with.
        seed: of inputs and weights.
        skip: names that are not tried.
        stated: the conventions that a person states.
        progress: called with each name before it is tried.

    Returns:
        `found`: the names of the attentions, in the order of the file; `refused`: the `name` of
        every likely attention that cannot be called, and `why`; `others`: the same for candidates
        that are not attention.

    Raises:
        BadFile: if the file does not load.
    """
    module = load_file(file)
    candidates = [c for c in _candidates(module) if c.name not in skip]
    trials: dict[_Candidate, _Trial] = {}
    why: dict[str, Text] = {}
    refused: list[_Candidate] = []
    for candidate in candidates:
        progress(candidate.name)
        try:
            result = _tried(candidate, size, seed, stated)
        except HeadwiseError as error:
            short = without_example(error) if isinstance(error, NotRecognised) else error
            why[candidate.name] = short.text
            refused.append(candidate)
        except (Exception, SystemExit, OutOfMemory) as error:
            why[candidate.name] = Text("raises {error}", error=one_line(error))
            refused.append(candidate)
        else:
            if isinstance(result, Text):
                why[candidate.name] = result
            else:
                trials[candidate] = result
    nested = _nested(trials)
    why |= nested
    found = [candidate for candidate in trials if candidate.name not in nested]
    likely = [candidate for candidate in refused if _suggests(candidate)]
    missing = [c for c in likely if not _belongs(c, [*found, *likely], trials)]
    names, lost = [c.name for c in found], {c.name for c in missing}
    listed = {name: {"name": name, "why": both(text)} for name, text in why.items()}
    return {
        "found": names,
        "refused": [item for name, item in listed.items() if name in lost],
        "others": [item for name, item in listed.items() if name not in lost],
    }


def _candidates(module: ModuleType) -> Iterator[_Candidate]:
    """Yield the public classes and functions of a Python module, then its torch modules."""
    own = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    for name, value in own:
        defined = getattr(value, "__module__", None) == module.__name__
        cls = isinstance(value, type) and issubclass(value, nn.Module)
        if defined and (cls or isinstance(value, FunctionType)):
            yield _Candidate(name, value)
    for name, value in own:
        if isinstance(value, nn.Module):
            yield _Candidate(name, value)


def _tried(
    candidate: _Candidate, size: tuple[int, int], seed: int, stated: Stated
) -> _Trial | Text:
    """What its run shows, or why it is no attention; raises where it cannot be called."""
    target, name = candidate.value, candidate.name
    found: Conventions | None
    try:
        found = discover(target, name, size, seed, stated)
    except NotRecognised as error:
        found = black_box(target, name, size, seed, error, no_log)
        if found is None:
            raise
    job = self_job(*found.size, length=LENGTH, seed=seed)
    job = job.fitted(found.runner.lacks, found.runner.groups)
    masks = found.masks(job) or {}

    def run(own: Job) -> Tensor:
        return found.runner.run(own, masks).output.detach()

    other = job.with_input(_with_another_token(job.query))
    changed = (run(job) != run(other)).flatten(2).any(-1)[0]
    changed[LENGTH // 2] = False
    if not bool(changed.any()):
        return Text("no token depends on another")
    pairs = [_pairwise(record(partial(run, own))) for own in (job, other)]
    with _observed(job) as trial:
        run(job)
    of_pairs = any(not torch.equal(a, b) for a, b in zip(*pairs, strict=False))
    arrays = isinstance(target, FunctionType) and not pairs[0]
    if not (of_pairs or trial.fused or arrays):
        return Text("it computes no number for each pair of tokens")
    return trial


def _with_another_token(x: Tensor) -> Tensor:
    other = x.clone()
    other[0, LENGTH // 2] += 1
    return other


def _pairwise(seen: Sequence[Tensor]) -> list[Tensor]:
    """Keep the tensors with one entry for every pair of tokens."""
    return [tensor for tensor in seen if list(tensor.shape).count(LENGTH) >= 2]


@contextmanager
def _observed(job: Job) -> Iterator[_Trial]:
    """Observe everything that runs inside the ``with`` block."""
    trial = _Trial()

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            trial.ran.add(frame.f_code)
        trial.fused = trial.fused or "attention" in operator_called(frame, event, arg)

    def hook(module: nn.Module, _inputs: object, output: object) -> None:
        trial.ran.add(type(module))
        tensors = output if isinstance(output, tuple | list) else (output,)
        sizes = [tuple(t.shape) for t in tensors if isinstance(t, Tensor)]
        batch, length, embed_dim = job.query.shape
        shapes = set(permutations((batch, length, embed_dim))) | {(length, embed_dim)}
        whole = not shapes.isdisjoint(sizes)
        if whole and any(True for _ in module.parameters()):
            trial.whole.add(type(module))

    handle = register_module_forward_hook(hook)
    sys.setprofile(profile)
    try:
        yield trial
    finally:
        sys.setprofile(None)
        handle.remove()


def _nested(trials: Mapping[_Candidate, _Trial]) -> dict[str, Text]:
    """Map the name of every attention that another one replaces to the reason."""
    result = {}
    classes = {c.value: c.name for c in trials if c.is_class}
    for outer, trial in trials.items():
        own = type(outer.value)
        if own in classes:
            result[outer.name] = Text("is an instance of {name}", name=classes[own])
            continue
        for inner in trials:
            if inner is outer or not inner.ran_in(trial):
                continue
            if inner.value in trial.whole:
                result[outer.name] = Text("contains {name}", name=inner.name)
            else:
                result[inner.name] = Text("is a part of {name}", name=outer.name)
    return result


def _suggests(candidate: _Candidate) -> bool:
    """Whether the name or the source of a candidate that cannot be called suggests attention."""
    texts = [candidate.name, candidate.source if candidate.is_class else ""]
    return any(SUGGESTS_ATTENTION.search(text) for text in texts)


def _belongs(
    candidate: _Candidate, others: Sequence[_Candidate], trials: Mapping[_Candidate, _Trial]
) -> bool:
    """Whether a candidate that cannot be called ran inside another, is an instance, or uses one."""
    if any(candidate.ran_in(trials[other]) for other in others if other in trials):
        return True
    if any(type(candidate.value) is other.value for other in others):
        return True
    return bool(candidate.names_used & {c.name for c in others if c is not candidate})

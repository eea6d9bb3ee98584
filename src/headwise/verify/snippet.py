"""One call of a target as source: its weights, its input, and what it should have given."""

from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.verify import steps
from headwise.verify.conventions import Conventions
from headwise.verify.functions import AdapterRunner, FunctionRunner
from headwise.verify.jobs import Job
from headwise.verify.modules import ModuleRunner
from headwise.verify.oracle import oracle
from headwise.verify.pipeline import at_job

DIGITS = 6
"""Decimals of what is exact."""


def snippet(conventions: Conventions, job: Job, name: str, what: str = "output") -> str:
    """Source that prints how far the target is from the truth.

    Args:
        conventions: how the target is called.
        job: what it is given.
        name: the target, as it was asked for.
        what: "output" or "weights".
    """
    runner = conventions.runner
    masks = conventions.masks(job) or {}
    exact = oracle(job)[what]
    if isinstance(runner, FunctionRunner):
        lines, exact = _function(runner, job, masks, name), oracle(job)["heads"]
    elif isinstance(runner, AdapterRunner):
        lines = _adapter(job, masks, name)
    else:
        lines = _module(runner, job, masks, name) if isinstance(runner, ModuleRunner) else []
    if what == "output" and isinstance(runner, ModuleRunner) and runner.residual:
        exact = exact + job.query
    found = "result" if what == "output" else "weights of each head in result"
    return "\n".join(
        (
            "import torch",
            *lines,
            f"exact = {_literal(_rounded(exact))}",
            f"print(result, exact, sep='\\n')  # the {found}, and what is exact",
        )
    )


def _module(runner: ModuleRunner, job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    embed_dim, heads = job.query.shape[-1], job.heads
    inputs = [x.transpose(0, 1) if runner.sequence_first else x for x in (job.query, job.key)]
    arguments = runner.signature.arguments(inputs[0], inputs[0], inputs[0])
    head_dim = job.weights.q.shape[0] // heads
    angles = runner.signature.unturned(job.query, head_dim)
    shared = {key for key, value in arguments.items() if value is inputs[0]}
    given = {key: "x" if key in shared else _literal(value) for key, value in arguments.items()}
    given |= {key: _literal(value) for key, value in (angles | dict(masks)).items()}
    path = f'.get_submodule("{runner.reached}")' if runner.reached else ""
    laid = runner.binding.lay(job.weights, heads)
    return [
        "from torch.func import functional_call",
        *_loading(name),
        "from headwise.verify.making import made",
        f"module = made({_loaded(name)}, embed_dim={embed_dim}, heads={heads}){path}.eval()",
        "weights = {",
        *(f'    "{key}": {_literal(value)},' for key, value in laid.items()),
        "}",
        f"x = {_literal(inputs[0])}",
        *_called(runner, f"result = functional_call(module, weights, (), {_dict(given)})"),
    ]


def _called(runner: ModuleRunner, call: str) -> list[str]:
    """The call, with the norms around the attention set aside."""
    if not runner.norms:
        return [call]
    aside = f"with without(module, {runner.norms}):"
    return ["from headwise.verify.reach import without", aside, f"    {call}"]


def _function(
    runner: FunctionRunner, job: Job, masks: Mapping[str, Tensor], name: str
) -> list[str]:
    at = at_job(job)
    counts = (job.heads, job.groups, job.groups)
    parts = steps.project(at, job.query, job.key, job.value)
    q, k, v = (steps.split(at, x, n) for x, n in zip(parts, counts, strict=True))
    given = runner.signature.arguments(q, k, v) | dict(masks)
    end = ".numpy()" if runner.arrays else ""
    words = [
        f"    {key}={_literal(value)}{end if isinstance(value, Tensor) else ''},"
        for key, value in given.items()
    ]
    return [*_loading(name), f"result = {_loaded(name)}(", *words, ")"]


def _adapter(job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    weights = [f"    {key}={_literal(value)}," for key, value in job.weights.named().items()]
    weights += ["    out=None,"] if job.weights.out is None else []
    mask = _literal(masks.get("mask"))
    return [
        *_loading(name),
        "from headwise.verify.jobs import Weights",
        "weights = Weights(",
        *weights,
        ")",
        f"x = {_literal(job.query)}",
        f"result = {_loaded(name)}(x, weights, {job.heads}, {mask})",
    ]


def _loading(name: str) -> list[str]:
    return ["from headwise.verify.loading import load"] if _loadable(name) else []


def _loaded(name: str) -> str:
    return f"load({name!r})" if _loadable(name) else name


def _loadable(name: str) -> bool:
    return ":" in name or "." in name


def _dict(given: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in given.items()) + "}"


def _literal(value: object) -> str:
    """A value as Python writes it; what is infinite by its name in torch."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{_literal(each)}, " for each in value) + ")"
    if not isinstance(value, Tensor):
        return repr(value)
    if (
        value.numel() > 4
        and bool((value == value.flatten()[0]).all())
        and value.is_floating_point()
    ):
        return f"torch.full({tuple(value.shape)}, {value.flatten()[0].item()!r})"
    return f"torch.tensor({value.detach().tolist()})".replace("inf", "torch.inf")


def _rounded(exact: Tensor) -> Tensor:
    """What is exact, with as many decimals as a person compares; -0 is 0."""
    return torch.round(exact, decimals=DIGITS) + 0.0

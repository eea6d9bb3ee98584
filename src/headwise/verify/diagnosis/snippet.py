"""Source code of one call of a target: its weights, its input, and the exact result."""

from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.call import Call
from headwise.reference import reference
from headwise.verify.oracle import oracle, steps
from headwise.verify.oracle.jobs import Job
from headwise.verify.oracle.pipeline import job_context
from headwise.verify.target.conventions import Conventions, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.runners import AdapterRunner, FunctionRunner

GRADIENT = "gradient"
"""What is shown: the gradient of the sum of the squared output."""

DIGITS = 6
"""Decimals of what is exact."""


def snippet(conventions: Conventions, job: Job, name: str, what: str = "output") -> str:
    """Source that prints the target's result and the exact one.

    Args:
        conventions: how the target is called.
        job: what it is given.
        name: the target, as it was asked for.
        what: "output", "weights" or "gradient", that of the input.
    """
    runner = conventions.runner
    masks = conventions.masks(job) or {}
    if what == GRADIENT:
        return _of_gradient(runner, job, masks, name)
    exact = oracle(job)[what]
    if isinstance(runner, FunctionRunner):
        lines, exact = _function(runner, job, masks, name), oracle(job)["heads"]
    elif isinstance(runner, AdapterRunner):
        lines = _adapter(job, masks, name)
    else:
        lines = _module(runner, job, masks, name) if isinstance(runner, ModuleRunner) else []
    if what == "output" and isinstance(runner, ModuleRunner) and runner.residual:
        exact = exact + job.query
    result = "result" if what == "output" else "weights of each head in result"
    return "\n".join(
        (
            "import torch",
            *lines,
            f"exact = {_literal(_rounded(exact))}",
            f"print(result, exact, sep='\\n')  # the {result}, and what is exact",
        )
    )


def gradient(output: Tensor, *inputs: Tensor) -> Tensor:
    """The gradient of the sum of the squared output; 0 for an input without influence."""
    total = output.square().sum()
    result = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return torch.stack(result) if len(result) > 1 else result[0]


def differentiable(runner: Runner) -> bool:
    """Whether a snippet can show a gradient of what a runner is given."""
    if isinstance(runner, ModuleRunner):
        return not runner.residual
    return not getattr(runner, "arrays", False)


def _of_gradient(runner: Runner, job: Job, masks: Mapping[str, Tensor], name: str) -> str:
    """Source that prints the gradient of x, or of q, k and v, and what is exact."""
    if isinstance(runner, FunctionRunner):
        q, k, v = (x.detach() for x in _heads(job))
        arguments = runner.signature.arguments(q, k, v)
        lines = [f"{key} = {_literal(value)}.requires_grad_()" for key, value in arguments.items()]
        words = ", ".join([f"{key}={key}" for key in arguments])
        words += "".join(f", {key}={_literal(value)}" for key, value in masks.items())
        lines = [*_loading(name), *lines, f"result = {_loaded(name)}({words})"]
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        call = Call.of(*leaves, mask=job.mask)
        names = {role: key for key, role in runner.signature.tensors}
        exact, of = gradient(reference(call).output, *leaves), [names[r] for r in "qkv"]
    else:
        if isinstance(runner, ModuleRunner):
            lines = _module(runner, job, masks, name)
        else:
            lines = _adapter(job, masks, name)
        lines = [f"{item}.requires_grad_()" if item[:4] == "x = " else item for item in lines]
        wide = job.to(torch.float64).tracked()
        exact, of = gradient(oracle(wide)["output"], wide.query), ["x"]
        exact = exact.transpose(0, 1) if getattr(runner, "sequence_first", False) else exact
    return "\n".join(
        (
            "import torch",
            *lines,
            "from headwise.verify.target.conventions import tensors_in",
            "from headwise.verify.diagnosis.snippet import gradient",
            f"output = next(t for t in tensors_in(result) if t.shape == {of[0]}.shape)",
            f"result = gradient(output, {', '.join(of)})  # of output.square().sum()",
            f"exact = {_literal(_rounded(exact))}",
            "print(result, exact, sep='\\n')  # the gradient, and what is exact",
        )
    )


def _heads(job: Job) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of each head, (B, H, L, D)."""
    context = job_context(job)
    parts = steps.project(context, job.query, job.key, job.value)
    counts = (job.heads, job.groups, job.groups)
    q, k, v = (steps.split(context, x, n) for x, n in zip(parts, counts, strict=True))
    return q, k, v


def _module(runner: ModuleRunner, job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    embed_dim, heads = job.query.shape[-1], job.heads
    inputs = [x.transpose(0, 1) if runner.sequence_first else x for x in (job.query, job.key)]
    arguments = runner.signature.arguments(inputs[0], inputs[0], inputs[0])
    head_dim = job.weights.q.shape[0] // heads
    angles = runner.signature.zero_angles(job.query, head_dim)
    shared = {key for key, value in arguments.items() if value is inputs[0]}
    given = {key: "x" if key in shared else _literal(value) for key, value in arguments.items()}
    given |= {key: _literal(value) for key, value in (angles | dict(masks)).items()}
    path = f'.get_submodule("{runner.reached}")' if runner.reached else ""
    laid = runner.binding.lay(job.weights, heads)
    return [
        "from torch.func import functional_call",
        *_loading(name),
        "from headwise.verify.target.construct import made",
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
    aside = f"with bypassed(module, {runner.norms}):"
    return ["from headwise.verify.target.construct import bypassed", aside, f"    {call}"]


def _function(
    runner: FunctionRunner, job: Job, masks: Mapping[str, Tensor], name: str
) -> list[str]:
    q, k, v = _heads(job)
    arguments = runner.signature.arguments(q, k, v) | dict(masks)
    end = ".numpy()" if runner.arrays else ""
    words = [
        f"    {key}={_literal(value)}{end if isinstance(value, Tensor) else ''},"
        for key, value in arguments.items()
    ]
    return [*_loading(name), f"result = {_loaded(name)}(", *words, ")"]


def _adapter(job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    weights = [f"    {key}={_literal(value)}," for key, value in job.weights.named().items()]
    weights += ["    out=None,"] if job.weights.out is None else []
    mask = _literal(masks.get("mask"))
    return [
        *_loading(name),
        "from headwise.verify.oracle.jobs import Weights",
        "weights = Weights(",
        *weights,
        ")",
        f"x = {_literal(job.query)}",
        f"result = {_loaded(name)}(x, weights, {job.heads}, {mask})",
    ]


def _loading(name: str) -> list[str]:
    return ["from headwise.verify.target import load"] if _loadable(name) else []


def _loaded(name: str) -> str:
    return f"load({name!r})" if _loadable(name) else name


def _loadable(name: str) -> bool:
    return ":" in name or "." in name


def _dict(given: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in given.items()) + "}"


def _literal(value: object) -> str:
    """A value as Python writes it; what is infinite by its name in torch."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{_literal(item)}, " for item in value) + ")"
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

"""Source code of one call of a target: its weights, its input, and the exact result."""

from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.call import Call
from headwise.reference import reference
from headwise.verify.oracle import oracle, steps
from headwise.verify.oracle.jobs import Job
from headwise.verify.target.conventions import Conventions, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.runners import FunctionRunner

GRADIENT = "gradient"
"""The gradient of the sum of the squared output."""

DIGITS = 6
"""Decimals of the exact result."""


def snippet(conventions: Conventions, job: Job, name: str, what: str = "output") -> str:
    """Source that prints the target's result and the exact one.

    Args:
        conventions: how the target is called.
        job: its weights, inputs and mask.
        name: the target, as on the command line.
        what: "output", "weights" or "gradient", that of the input.
    """
    runner = conventions.runner
    masks = conventions.masks(job) or {}
    if what == GRADIENT:
        return _of_gradient(runner, job, masks, name)
    exact = oracle(job)["heads" if isinstance(runner, FunctionRunner) else what]
    if what == "output" and isinstance(runner, ModuleRunner) and runner.residual:
        exact = exact + job.query
    result = "result" if what == "output" else "weights of each head in result"
    return _source(_call(runner, job, masks, name), exact, f"the {result}, and what is exact")


def _source(lines: list[str], exact: Tensor, comment: str) -> str:
    rounded = torch.round(exact, decimals=DIGITS) + 0.0  # -0 is 0
    end = (f"exact = {_literal(rounded)}", f"print(result, exact, sep='\\n')  # {comment}")
    return "\n".join(("import torch", *lines, *end))


def _call(runner: Runner, job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    """Source that assigns what the target returns to ``result``."""
    if isinstance(runner, ModuleRunner):
        return _module(runner, job, masks, name)
    if isinstance(runner, FunctionRunner):
        return _function(runner, job, masks, name)
    return _adapter(job, masks, name)


def gradient(output: Tensor, *inputs: Tensor) -> Tensor:
    """The gradient of the sum of the squared output; 0 for an input without influence."""
    total = output.square().sum()
    result = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return torch.stack(result) if len(result) > 1 else result[0]


def differentiable(runner: Runner) -> bool:
    """Whether a snippet can show the gradient of a runner's input."""
    return runner.differentiable and not getattr(runner, "residual", False)


def _of_gradient(runner: Runner, job: Job, masks: Mapping[str, Tensor], name: str) -> str:
    """Source that prints the gradient of x, or of q, k and v, and the exact one."""
    if isinstance(runner, FunctionRunner):
        q, k, v = (x.detach() for x in steps.projected_heads(job))
        arguments = runner.signature.arguments(q, k, v)
        lines = [f"{key} = {_literal(value)}.requires_grad_()" for key, value in arguments.items()]
        words = [f"{key}={key}" for key in arguments]
        words += [f"{key}={_literal(value)}" for key, value in masks.items()]
        lines = [*_loading(name), *lines, f"result = {_loaded(name)}({', '.join(words)})"]
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        names = {role: key for key, role in runner.signature.tensors}
        output, of = reference(Call.of(*leaves, mask=job.mask)).output, [names[r] for r in "qkv"]
        exact = gradient(output, *leaves)
    else:
        lines = _call(runner, job, masks, name)
        lines = [f"{item}.requires_grad_()" if item[:4] == "x = " else item for item in lines]
        wide, of = job.to(torch.float64).tracked(), ["x"]
        exact = gradient(oracle(wide)["output"], wide.query)
        exact = exact.transpose(0, 1) if getattr(runner, "sequence_first", False) else exact
    lines += [
        "from headwise.verify.target.conventions import tensors_in",
        "from headwise.verify.diagnosis.snippet import gradient",
        f"output = next(t for t in tensors_in(result) if t.shape == {of[0]}.shape)",
        f"result = gradient(output, {', '.join(of)})  # of output.square().sum()",
    ]
    return _source(lines, exact, "the gradient, and what is exact")


def _module(runner: ModuleRunner, job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    embed_dim, heads = job.query.shape[-1], job.heads
    x = job.query.transpose(0, 1) if runner.sequence_first else job.query
    arguments = runner.signature.arguments(x, x, x)
    arguments |= runner.signature.zero_angles(job.query, job.head_dim) | dict(masks)
    given = {key: "x" if value is x else _literal(value) for key, value in arguments.items()}
    words = ", ".join(f'"{key}": {value}' for key, value in given.items())
    call = [f"result = functional_call(module, weights, (), {{{words}}})"]
    if runner.norms:
        call = [
            "from headwise.verify.target.construct import bypassed",
            f"with bypassed(module, {runner.norms}):",
            f"    {call[0]}",
        ]
    path = f'.get_submodule("{runner.reached}")' if runner.reached else ""
    parameters = runner.binding.lay(job.weights, heads)
    return [
        "from torch.func import functional_call",
        *_loading(name),
        "from headwise.verify.target.construct import made",
        f"module = made({_loaded(name)}, embed_dim={embed_dim}, heads={heads}){path}.eval()",
        "weights = {",
        *(f'    "{key}": {_literal(value)},' for key, value in parameters.items()),
        "}",
        f"x = {_literal(x)}",
        *call,
    ]


def _function(
    runner: FunctionRunner, job: Job, masks: Mapping[str, Tensor], name: str
) -> list[str]:
    arguments = runner.signature.arguments(*steps.projected_heads(job)) | dict(masks)
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


def _literal(value: object) -> str:
    """A value as Python source."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{_literal(item)}, " for item in value) + ")"
    if not isinstance(value, Tensor):
        return repr(value)
    if value.numel() > 4 and value.is_floating_point():
        first = value.flatten()[0]
        if bool((value == first).all()):
            return f"torch.full({tuple(value.shape)}, {first.item()!r})"
    return f"torch.tensor({value.detach().tolist()})".replace("inf", "torch.inf")

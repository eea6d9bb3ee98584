"""Find a minimal input on which a target fails, and write it as source to paste and run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from headwise.call import Call
from headwise.masks import Mask, causal, full, padding
from headwise.reference import reference
from headwise.verify.checks.mutation_testing import CheckResult
from headwise.verify.diagnosis.snippet_source import constructor_call, literal, loading
from headwise.verify.oracle import oracle, steps
from headwise.verify.oracle.jobs import Job, Outcome, self_job
from headwise.verify.oracle.tolerance import judge
from headwise.verify.target.calls.guarded_call import arranged
from headwise.verify.target.construction.resizing import at_size
from headwise.verify.target.conventions import Conventions, Runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.runners import FunctionRunner, in_order

GRADIENT = "gradient"  # of the sum of squares of the output

DIGITS = 6


def snippet(conventions: Conventions, job: Job, name: str, what: str = "output") -> str:
    """Write source that prints an output, weights or input gradient and the exact numbers."""
    runner = conventions.runner
    masks = conventions.masks(job) or {}
    if what == GRADIENT:
        return _of_gradient(runner, job, masks, name)
    if isinstance(runner, FunctionRunner):
        exact = in_order(oracle(job)["heads"], runner.order)
    else:
        exact = oracle(job)[what]
    if what == "output" and isinstance(runner, ModuleRunner):
        exact = _arranged(exact + job.query if runner.residual else exact, runner)
    result = "result" if what == "output" else "weights of each head in result"
    return _source(_call(runner, job, masks, name), exact, f"the {result}, and what is exact")


def _source(lines: list[str], exact: Tensor, comment: str) -> str:
    rounded = torch.round(exact, decimals=DIGITS) + 0.0  # -0 is 0
    end = (f"exact = {literal(rounded)}", f"print(result, exact, sep='\\n')  # {comment}")
    return "\n".join(("import torch", *lines, *end))


def _call(runner: Runner, job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    """Write source that assigns the return value of the target to ``result``."""
    if isinstance(runner, ModuleRunner):
        return _module(runner, job, masks, name)
    if isinstance(runner, FunctionRunner):
        return _function(runner, job, masks, name)
    return _adapter(job, masks, name)


def gradient(output: Tensor, *inputs: Tensor) -> Tensor:
    """Differentiate the sum of squares of the output; 0 for an input without influence."""
    total = output.square().sum()
    result = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return torch.stack(result) if len(result) > 1 else result[0]


def differentiable(runner: Runner) -> bool:
    """Whether a snippet can show the gradient of a runner's input."""
    return runner.differentiable and not getattr(runner, "residual", False)


def _of_gradient(runner: Runner, job: Job, masks: Mapping[str, Tensor], name: str) -> str:
    """Write source that prints the gradient for x, or for q, k and v, and the exact gradient."""
    if isinstance(runner, FunctionRunner):
        q, k, v = (x.detach() for x in steps.projected_heads(job))
        arguments = runner.signature.arguments(*(in_order(x, runner.order) for x in (q, k, v)))
        lines = [f"{key} = {literal(value)}.requires_grad_()" for key, value in arguments.items()]
        words = [f"{key}={key}" for key in arguments]
        words += [f"{key}={literal(value)}" for key, value in masks.items()]
        imports, target = _constructed(runner, name)
        lines = [*imports, *lines, f"result = {target}({', '.join(words)})"]

        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        names = {role: key for key, role in runner.signature.tensors}
        output, of = reference(Call.of(*leaves, mask=job.mask)).output, [names[r] for r in "qkv"]
        exact = gradient(output, *leaves)
        exact = torch.stack([in_order(x, runner.order) for x in exact])
    else:
        lines = _call(runner, job, masks, name)
        lines = [f"{item}.requires_grad_()" if item[:4] == "x = " else item for item in lines]
        wide, of = job.to(torch.float64).tracked(), ["x"]
        exact = gradient(oracle(wide)["output"], wide.query)
        exact = _arranged(exact, runner) if isinstance(runner, ModuleRunner) else exact
    lines += [
        "results = result if isinstance(result, (tuple, list)) else (result,)",
        f"output = next(t for t in results if t.shape == {of[0]}.shape)",
        f"of = [{', '.join(of)}]  # the gradient of the sum of squares of the output, by these",
        "gradients = torch.autograd.grad(",
        "    output.square().sum(), of, allow_unused=True, materialize_grads=True",
        ")",
        f"result = {'torch.stack(gradients)' if len(of) > 1 else 'gradients[0]'}",
    ]
    return _source(lines, exact, "the gradient, and what is exact")


def _module(runner: ModuleRunner, job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    (imports, target), heads = _constructed(runner, name), job.heads
    x = _arranged(job.query, runner)
    arguments = runner.signature.arguments(x, x, x)
    if runner.axes == "l e":
        masks = {n: m[0] if len(m) == len(job.query) else m for n, m in masks.items()}
    arguments |= runner.turned(job) | dict(masks) | dict(runner.options)
    written = {key: "x" if value is x else literal(value) for key, value in arguments.items()}
    words = ", ".join(f'"{key}": {value}' for key, value in written.items())
    call = [f"result = functional_call(module, weights, (), {{{words}}})"]
    if runner.norms:
        call = [
            f"for path in {runner.norms}:  # the norms around the attention do nothing",
            "    norm = module.get_submodule(path)",
            "    norm.register_forward_hook(lambda norm, inputs, output: inputs[0])",
            *call,
        ]
    path = f'.get_submodule("{runner.reached}")' if runner.reached else ""
    parameters = runner.binding.lay(job.weights, heads)
    return [
        "from torch.func import functional_call",
        *imports,
        "torch.manual_seed(0)",
        f"module = {target}{path}.eval()",
        "weights = {",
        *(f'    "{key}": {literal(value)},' for key, value in parameters.items()),
        "}",
        f"x = {literal(x)}",
        *call,
    ]


def _arranged(x: Tensor, runner: ModuleRunner) -> Tensor:
    """A tensor (B, L, E) in the order of a module's axes; one sample where it takes one."""
    return x[0] if runner.axes == "l e" else arranged(x, runner.axes)


def _constructed(runner: ModuleRunner | FunctionRunner, name: str) -> tuple[list[str], str]:
    """Source that imports the target, and the expression of the module or function."""
    own = runner.construction
    return loading(name) if own is None else constructor_call(own.cls, own.given(), name)


def _function(
    runner: FunctionRunner, job: Job, masks: Mapping[str, Tensor], name: str
) -> list[str]:
    imports, target = _constructed(runner, name)
    inputs = (in_order(x, runner.order) for x in steps.projected_heads(job))
    arguments = runner.signature.arguments(*inputs) | dict(masks) | dict(runner.options)
    end = ".numpy()" if runner.arrays else ""
    words = [
        f"    {key}={literal(value)}{end if isinstance(value, Tensor) else ''},"
        for key, value in arguments.items()
    ]
    return [*imports, f"result = {target}(", *words, ")"]


def _adapter(job: Job, masks: Mapping[str, Tensor], name: str) -> list[str]:
    imports, target = loading(name)
    weights = [f"    {key}={literal(value)}," for key, value in job.weights.named().items()]
    weights += ["    out=None,"] if job.weights.out is None else []
    mask = literal(masks.get("mask"))
    return [
        *imports,
        "from types import SimpleNamespace",
        "weights = SimpleNamespace(",
        *weights,
        ")",
        f"x = {literal(job.query)}",
        f"result = {target}(x, weights, {job.heads}, {mask})",
    ]


SIZES = ((1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (6, 3))

LONGEST, LARGEST_BATCH = 7, 2

MASKS: tuple[tuple[str, Callable[[int, int], Mask]], ...] = (
    ("", lambda _b, _n: full()),
    ("causal", lambda _b, _n: causal()),
    ("padding", lambda b, n: padding([n] * (b - 1) + [max(n - 1, 1)])),
    ("nothing", lambda b, n: padding([n] * (b - 1) + [0])),
)
"""Masks for any batch and length, each with the word for it in the names of trials."""

UNSHOWN = (*("large_scores", "long_sequence", "non_contiguous", "dtype_kept"), "inputs_unchanged")
"""Checks whose failure cannot be shown by a small output in float32."""

QUANTITIES = {
    **dict.fromkeys(("module_weights", "weights_sum_to_one"), "weights"),
    **dict.fromkeys(("module_gradients", "masked_gradients"), GRADIENT),
}
"""The wrong quantity for checks that do not judge the output: weights or input gradient."""


def _fails(what: str, conventions: Conventions, job: Job) -> bool:
    """Whether the output, weights or input gradient is wrong; False if the target raises."""
    job = job.tracked() if what == GRADIENT else job
    try:
        masks = conventions.masks(job)
        outcome = None if masks is None else conventions.runner.run(job, masks)
    except Exception:
        return False
    if outcome is None:
        return False
    if what == GRADIENT:
        return _wrong_gradient(conventions, job, outcome)
    result = outcome.output if what == "output" else outcome.weights
    if result is None:
        return False
    plain, exact = oracle(job, job.query.dtype)[what], oracle(job)[what]
    return not judge(result, plain, exact).accepted


def _wrong_gradient(conventions: Conventions, job: Job, outcome: Outcome) -> bool:
    """Whether the input gradient is wrong; False if a snippet cannot compute it."""
    if not differentiable(conventions.runner) or not outcome.output.requires_grad:
        return False
    result = gradient(outcome.output, job.query)
    plain, exact = (
        gradient(oracle(job, dtype)["output"], job.query)
        for dtype in (job.query.dtype, torch.float64)
    )
    return not judge(result, plain, exact.double()).accepted


def minimise(
    target: object, name: str, conventions: Conventions, findings: Sequence[CheckResult]
) -> dict[str, str]:
    """Write source with a minimal failing input for each failed check, by check name."""
    smaller = () if isinstance(target, torch.nn.Module) else SIZES
    sizes = (*smaller, conventions.size)
    instance = cache(partial(at_size, target, name, conventions))

    @cache
    def shown(what: str, word: str) -> str | None:
        for sized in filter(None, map(instance, sizes)):
            for job in _jobs(sized, dict(MASKS)[word]):
                if _fails(what, sized, job):
                    return snippet(sized, _simplified(sized, job, what), name, what)
        return None

    result: dict[str, str] = {}
    for finding in findings:
        if finding.passed or finding.raised or finding.check.name in UNSHOWN:
            continue
        what = QUANTITIES.get(finding.check.name, "output")
        code = next(filter(None, (shown(what, word) for word in _masks(finding))), None)
        if code is not None:
            result[finding.check.name] = code
    return result


def _masks(finding: CheckResult) -> list[str]:
    """Return the masks in the name of the failed trial, or else all masks."""
    words = f"{finding.check.name} {finding.failed}"
    return [word for word, _ in MASKS if word and word in words] or [word for word, _ in MASKS]


def _jobs(conventions: Conventions, masked: Callable[[int, int], Mask]) -> Iterator[Job]:
    for length in range(1, LONGEST + 1):
        for batch in range(1, LARGEST_BATCH + 1):
            mask = masked(batch, length) & conventions.base
            job = self_job(*conventions.size, batch=batch, length=length, mask=mask)
            job = job.fitted(conventions.runner.lacks, conventions.runner.groups)
            yield replace(job, position=conventions.position)


def _simplified(conventions: Conventions, job: Job, what: str) -> Job:
    """Simplify tensors to 0, the identity or few digits, as long as the job still fails."""
    for name, tensor in job.weights.named().items():
        may_vanish = name.endswith("_bias") or isinstance(conventions.runner, ModuleRunner)
        for simple in _simpler(tensor, may_vanish):
            weights = replace(job.weights, **{name: simple})
            if _fails(what, conventions, replace(job, weights=weights)):
                job = replace(job, weights=weights)
                break
    simpler = (job.with_input(x) for x in _simpler(job.query, may_vanish=True))
    return next((tried for tried in simpler if _fails(what, conventions, tried)), job)


def _simpler(tensor: Tensor, may_vanish: bool) -> Iterator[Tensor]:
    if may_vanish:
        yield torch.zeros_like(tensor)
    if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
        yield torch.eye(tensor.shape[0], dtype=tensor.dtype)
    for parts in (1, 4, 64):
        yield (tensor * parts).round() / parts + 0.0  # -0 is 0

"""Compare every engine with the oracle on one case, by the acceptance rule."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, can_run
from tests.fuzz.cases import Case, Drawn
from tests.fuzz.oracle import Expected, attention
from tests.roundings import hold, nudged

SLOW = ("flex",)  # compiled, or by a kernel without a CPU


def differences(seed: int) -> Iterator[str]:
    """Every difference between an engine and the oracle, as one line."""
    case = Drawn(seed).case()
    call = Call.of(
        *case.qkv, mask=case.mask, position=case.position, need=case.need, **case.options
    )
    for engine in ENGINES:
        if engine.NAME in SLOW or not can_run(engine, call):
            continue
        for name, error in (*_errors(case, engine.NAME), *_gradient_errors(case, engine.NAME)):
            yield f"seed {seed}, {engine.NAME}, {name}: {error}: {case.mask}, {case.position}"


def _computed(case: Case, rows: Sequence[Tensor]) -> Expected:
    """What the oracle gives for q, k and v, in their dtype, with the documented defaults."""
    q, k, v = rows
    scale, offset, sinks = (case.options.get(name) for name in ("scale", "offset", "sinks"))
    return attention(
        (q, k, v),
        case.pattern,
        case.place,
        q.shape[3] ** -0.5 if scale is None else scale,
        k.shape[2] - q.shape[2] if offset is None else offset,
        None if sinks is None else sinks.to(q.dtype),
    )


def _nudged(rows: Sequence[Tensor], run: int) -> list[Tensor]:
    return [nudged(x, run) for x in rows]


def _errors(case: Case, engine: str) -> Iterator[tuple[str, str]]:
    """The output and the statistics that the acceptance rule rejects."""
    result = hw.attend(
        *case.qkv,
        mask=case.mask,
        position=case.position,
        need=case.need,
        engine=engine,
        **case.options,
    )
    near, exact = _computed(case, case.qkv), _computed(case, [x.double() for x in case.qkv])
    for name in ("output", *case.need):

        def again(run: int, name: str = name) -> list[Tensor]:
            return [getattr(_computed(case, _nudged(case.qkv, run)), name)]

        rejection = _rejection(*(getattr(of, name) for of in (result, near, exact)), again)
        if rejection:
            yield name, rejection


def _gradient_errors(case: Case, engine: str) -> Iterator[tuple[str, str]]:
    """The gradient of a random combination of the outputs, of a call in float64."""
    if case.qkv[0].dtype != torch.float64:
        return
    rows = [x.clone().requires_grad_() for x in case.qkv]
    options = {"mask": case.mask, "position": case.position, "engine": engine, **case.options}
    output, known = hw.attend(*rows, **options), _computed(case, rows).output
    factor = torch.randn(known.shape, generator=torch.Generator().manual_seed(0), dtype=known.dtype)
    gradient = partial(_gradient, factor)

    def again(run: int) -> list[Tensor]:
        inputs = _nudged(rows, run)
        return [gradient(_computed(case, inputs).output, inputs)]

    rejection = _rejection(gradient(output, rows), again(0)[0], gradient(known, rows), again)
    if rejection:
        yield "gradient", rejection


def _gradient(factor: Tensor, output: Tensor, rows: Sequence[Tensor]) -> Tensor:
    """The gradients of q, k and v in one row; 0 where no query may attend to a key."""
    gradients: Sequence[Tensor | None] = (None,) * len(rows)
    if output.requires_grad:
        gradients = torch.autograd.grad((output * factor).sum(), rows, allow_unused=True)
    pairs = zip(rows, gradients, strict=True)
    filled = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in pairs]
    return torch.cat([gradient.flatten() for gradient in filled])


def _rejection(
    given: Tensor, near: Tensor, exact: Tensor, again: Callable[[int], list[Tensor]]
) -> str:
    """Why the acceptance rule rejects a result; empty if it does not."""
    try:
        hold([given], [near], [exact], again)
    except AssertionError as error:
        return str(error)
    return ""

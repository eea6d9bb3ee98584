"""Compare every engine with the oracle on one case."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, can_run
from headwise.reference import reference
from tests.examples import formulas, rounded_otherwise
from tests.fuzz.cases import Case, Drawn
from tests.fuzz.oracle import Expected, attention
from tests.roundings import hold

SLOW = ("flex",)  # compiled, or by a kernel without a CPU


def differences(seed: int) -> Iterator[str]:
    """Every difference between an engine and the oracle, as one line."""
    case = Drawn(seed).case()
    exact = _expected(case)
    for engine in ENGINES:
        if engine.NAME in SLOW or not can_run(engine, _call(case)):
            continue
        for name, error in _errors(case, exact, engine.NAME):
            yield f"seed {seed}, {engine.NAME}, {name}: {error}: {case.mask}, {case.position}"


def _call(case: Case) -> Call:
    return Call.of(
        *case.qkv, mask=case.mask, position=case.position, need=case.need, **case.options
    )


def _expected(case: Case, learned: Sequence[Tensor] | None = None) -> Expected:
    """What the oracle gives; scale and offset are those of the documentation."""
    q, k, v = (x.double() for x in (learned or case.qkv))
    scale, offset, sinks = (case.options.get(name) for name in ("scale", "offset", "sinks"))
    return attention(
        (q, k, v),
        case.pattern,
        case.place,
        q.shape[3] ** -0.5 if scale is None else scale,
        k.shape[2] - q.shape[2] if offset is None else offset,
        None if sinks is None else sinks.double(),
    )


def _plain(call: Call) -> dict[str, Tensor]:
    """The output and every statistic by the reference, in the dtype of the call."""
    steps = reference(call, call.q.dtype)
    named = {name: getattr(steps, name) for name in ("output", "weights", "logsumexp")}
    return {**named, **formulas(call, call.q.dtype)}


def _errors(case: Case, exact: Expected, engine: str) -> Iterator[tuple[str, str]]:
    call = _call(case)
    result = hw.attend(
        *case.qkv,
        mask=case.mask,
        position=case.position,
        need=case.need,
        engine=engine,
        **case.options,
    )
    near = _plain(call)
    for name in ("output", *case.need):
        given, known = getattr(result, name), getattr(exact, name)
        rejected = _rejection(given, near[name], known, partial(_again, call, name))
        if rejected:
            yield name, rejected
    if call.q.dtype == torch.float64:
        yield from _gradient_errors(case, engine)


def _again(call: Call, name: str, run: int) -> list[Tensor]:
    """A plain run of inputs that differ by less than their rounding."""
    return [_plain(rounded_otherwise(call, run))[name]]


def _gradient_errors(case: Case, engine: str) -> Iterator[tuple[str, str]]:
    """The gradients of q, k and v of a random combination of the outputs."""
    rows = tuple(x.clone().requires_grad_() for x in case.qkv)
    call = _call(replace(case, qkv=rows, need=()))
    known = _expected(case, rows).output
    factor = torch.randn(known.shape, generator=torch.Generator().manual_seed(0), dtype=known.dtype)
    output = hw.attend(*rows, mask=case.mask, position=case.position, engine=engine, **case.options)
    given, exact = (_gradients(run, factor, rows) for run in (output, known))
    near = _gradients(reference(call).output, factor, rows)

    def again(run: int) -> list[Tensor]:
        other = rounded_otherwise(call, run)
        inputs = (other.q, other.k, other.v)
        return [
            torch.cat([x.flatten() for x in _gradients(reference(other).output, factor, inputs)])
        ]

    one, plain, other = (torch.cat([x.flatten() for x in rows]) for rows in (given, near, exact))
    rejected = _rejection(one, plain, other, again)
    if rejected:
        yield "gradients of q, k and v", rejected


def _joined(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in gradients])


def _gradients(output: Tensor, factor: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, 0 where no query may attend to a key."""
    if not output.requires_grad:
        return [torch.zeros_like(x) for x in rows]
    gradients = torch.autograd.grad((output * factor).sum(), rows, allow_unused=True)
    pairs = zip(rows, gradients, strict=True)
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in pairs]


def _rejection(
    given: Tensor, near: Tensor, exact: Tensor, again: Callable[[int], list[Tensor]]
) -> str:
    """Why the acceptance rule rejects a result; empty if it does not."""
    try:
        hold([given], [near], [exact], again)
    except AssertionError as error:
        return str(error)
    return ""

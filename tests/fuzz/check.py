"""Compare every engine with the oracle on one case."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, can_run
from tests.fuzz.cases import Case, Drawn
from tests.fuzz.oracle import Expected, attention

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 4e-2}
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


def _expected(case: Case, learned: tuple[Tensor, ...] | None = None) -> Expected:
    q, k, v = (x.double() for x in (learned or case.qkv))
    call = _call(replace(case, need=()))
    sinks = case.options.get("sinks")
    return attention(
        (q, k, v),
        case.pattern,
        case.place,
        call.scale,
        call.shape.offset,
        None if sinks is None else sinks.double(),
    )


def _errors(case: Case, exact: Expected, engine: str) -> Iterator[tuple[str, str]]:
    dtype = case.qkv[0].dtype
    result = hw.attend(
        *case.qkv,
        mask=case.mask,
        position=case.position,
        need=case.need,
        engine=engine,
        **case.options,
    )
    for name in ("output", *case.need):
        given, known = getattr(result, name), getattr(exact, name)
        if given.shape != known.shape:
            yield name, f"shape {tuple(given.shape)}, expected {tuple(known.shape)}"
        elif not _close(given, known, TOLERANCE[dtype]):
            yield name, f"off by {_apart(given, known):.3g}"
    if dtype == torch.float64:
        yield from _gradient_errors(case, engine)


def _gradient_errors(case: Case, engine: str) -> Iterator[tuple[str, str]]:
    """The gradients of q, k and v of a random combination of the outputs."""
    rows = tuple(x.clone().requires_grad_() for x in case.qkv)
    others = tuple(x.clone().requires_grad_() for x in case.qkv)
    known = _expected(case, others).output
    factor = torch.randn(known.shape, generator=torch.Generator().manual_seed(0), dtype=known.dtype)
    output = hw.attend(*rows, mask=case.mask, position=case.position, engine=engine, **case.options)
    given = torch.autograd.grad((output * factor).sum(), rows, allow_unused=True)
    if not known.requires_grad:  # no query may attend to a key
        exact = tuple(torch.zeros_like(x) for x in others)
    else:
        exact = torch.autograd.grad((known * factor).sum(), others, allow_unused=True)
    for name, one, other in zip("qkv", given, exact, strict=True):
        zero = torch.zeros_like(rows["qkv".index(name)])
        one, other = zero if one is None else one, zero if other is None else other
        if not _close(one, other, 1e-8):
            yield f"gradient of {name}", f"off by {_apart(one, other):.3g}"


def _close(given: Tensor, known: Tensor, tolerance: float) -> bool:
    infinite = known == -math.inf
    if not torch.equal(infinite, given.double() == -math.inf):
        return False
    given, known = given.double()[~infinite], known[~infinite]
    if not known.numel():
        return True
    return bool((given - known).abs().max() <= tolerance * (1 + known.abs().max()))


def _apart(given: Tensor, known: Tensor) -> float:
    return (
        float((given.double() - known).abs().nan_to_num(math.inf).max()) if known.numel() else 0.0
    )

"""Timing: each repetition runs every implementation once, so system load affects all equally.

``python -m benchmarks.timing NUMBER`` compares one case with the reference, measures it, and prints
the row of the results as JSON.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

import headwise as hw
from benchmarks.cases import CASES
from benchmarks.work import OURS, ROOF, Case, Run, Work
from headwise.call import Call
from headwise.reference import reference
from headwise.verify.oracle.tolerance import judge

TURNS = 7


@dataclass(frozen=True)
class Timed:
    """Wall-clock time and processor time in seconds, medians over the repetitions."""

    wall: float
    cpu: float


def in_turns(
    contenders: Mapping[str, Callable[[], object]], turns: int = TURNS
) -> dict[str, Timed]:
    """Run every implementation once to warm up, then once per repetition; return the medians."""
    for run in contenders.values():
        run()
    walls: dict[str, list[float]] = {name: [] for name in contenders}
    cpus: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            cpus[name].append(time.process_time() - cpu)
            walls[name].append(time.perf_counter() - wall)
    median = statistics.median
    return {name: Timed(median(walls[name]), median(cpus[name])) for name in contenders}


def gate(case: Case) -> None:
    """Compare the implementations of a case with the reference.

    Raises:
        SystemExit: if an implementation gives a wrong result.
    """
    if case.exact is None:
        return
    parts = case.exact(case.gate)
    plain, exact = (_reference(case, *parts, dtype) for dtype in (torch.float32, torch.float64))
    for name in (OURS, *case.same):
        work = Work.drawn(case.gate, torch.float32, backward=case.backward)
        try:
            found = case.contenders[name](work)()
        except Exception as error:
            if name == OURS:
                raise
            print(f"{name} raised an error before the measurement: {error}", file=sys.stderr)
            continue
        for got, near, right in zip(found, plain, exact, strict=True):
            verdict = judge(got, near, right)
            if not verdict.accepted:
                raise SystemExit(f"{case.name}: {name} is wrong; nothing was measured")


def _reference(
    case: Case, mask: hw.Mask, position: hw.Position | None, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Compute the expected results at the length of the gate, in a dtype."""
    work = Work.drawn(case.gate, dtype, backward=case.backward)
    where = None if position is None else position.to(dtype)
    call = Call.of(work.q, work.k, work.v, mask=mask, position=where)
    found = work.done(reference(call, dtype).output)
    if position is not None:
        position.float()
    return found


def roof() -> tuple[Run, float]:
    """Return a run of a matrix product, and its FLOPs."""
    size = 1536
    a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: [torch.mm(a, b, out=out)], 2.0 * size**3


def measure(case: Case) -> dict[str, object]:
    """Measure one case; return the row of the results."""
    with torch.set_grad_enabled(case.backward):
        gate(case)
        work = Work.drawn(case.length, torch.float32, backward=case.backward)
        runs, failed = {}, {}
        for name, make in case.contenders.items():
            try:
                runs[name] = make(work)
                runs[name]()
            except Exception as error:
                runs.pop(name, None)
                failed[name] = f"{type(error).__name__}: {error}"[:200]
        multiply, its_flops = roof()
        timed = in_turns({**runs, ROOF: multiply})
    speed = its_flops / timed[ROOF].wall
    flops = case.flops(case.length)
    return {
        "case": case.name,
        "length": case.length,
        "line": case.asked.line,
        "seconds": {name: vars(each) for name, each in timed.items()},
        "times": {name: timed[name].wall / timed[OURS].wall for name in runs if name != OURS},
        "cpu_times": {name: timed[name].cpu / timed[OURS].cpu for name in runs if name != OURS},
        "share_of_roof": {name: flops / timed[name].wall / speed for name in runs},
        "asked_times": dict(case.asked.times),
        "asked_roof": case.asked.roof,
        "failed": failed,
    }


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(json.dumps(measure(CASES[int(sys.argv[1])])))

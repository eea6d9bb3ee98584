"""The growth of the time with the length, and the cost of planning.

``python -m benchmarks.growth NAME`` measures one pattern, or ``plan``, and prints the row of the
results as JSON.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

import headwise as hw
from benchmarks.timing import TURNS, in_turns
from benchmarks.work import DIM, HEADS, Work

SHORT, LONG, ASKED = 16384, 65536, 4.4
PLANNED, PLAN_ASKED = 131072, 0.05

PATTERNS = {
    "window(256, 256)": lambda _: hw.window(256, 256),
    "causal() & window(511, 0)": lambda _: hw.causal() & hw.window(511, 0),
    "dilated": lambda _: hw.dilated(64, 64, step=4),
    "block_sparse, a band and a column": lambda length: _blocks(length),
    "documents of 512 tokens": lambda length: hw.documents([512] * (length // 512)),
    "window and random blocks": lambda _: hw.window(64, 64) | hw.random_blocks(64, 2, seed=0),
    "lsh, 2 rounds": lambda _: hw.lsh(2, seed=0),
}


def _blocks(length: int) -> hw.Mask:
    count = length // 128
    band = torch.ones(count, count, dtype=torch.bool).tril(1).triu(-1)
    band[:, 0] = True
    return hw.block_sparse(band, 128)


def times(name: str) -> dict[str, object]:
    """Measure the time at `LONG` divided by the time at `SHORT` for one pattern."""
    runs: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        for length in (SHORT, LONG):
            work, mask = Work.drawn(length, torch.float32, backward=False), PATTERNS[name](length)
            runs[str(length)] = lambda work=work, mask=mask: hw.attend(
                work.q, work.k, work.v, mask=mask
            )
        timed = in_turns(runs)
    seconds = {length: each.wall for length, each in timed.items()}
    return {
        "case": name,
        "line": 8,
        "seconds": seconds,
        "asked": ASKED,
        "measured": seconds[str(LONG)] / seconds[str(SHORT)],
    }


def planning() -> dict[str, object]:
    """Measure the time to build a mask and its plan, as a share of the attention time."""
    q, k, v = torch.randn(3, 1, HEADS, PLANNED, DIM).unbind()
    plans, runs = [], []
    with torch.no_grad():
        for _ in range(TURNS):
            start = time.perf_counter()
            mask = hw.causal() & hw.window(511, 0)
            hw.plan(q, k, v, mask=mask)
            middle = time.perf_counter()
            hw.attend(q, k, v, mask=mask)
            plans.append(middle - start)
            runs.append(time.perf_counter() - middle)
    seconds = {"plan": statistics.median(plans), "attention": statistics.median(runs)}
    return {
        "case": "building the mask and the plan, window of 512",
        "line": 11,
        "seconds": seconds,
        "asked": PLAN_ASKED,
        "measured": seconds["plan"] / seconds["attention"],
    }


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(json.dumps(planning() if sys.argv[1] == "plan" else times(sys.argv[1])))

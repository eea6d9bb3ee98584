"""Timing in turns: every contender once a turn, so that a busy moment hits all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TURNS = 9


@dataclass(frozen=True)
class Timed:
    """Medians over the turns, in seconds: by the clock on the wall and of the processor."""

    wall: float
    cpu: float


def in_turns(
    contenders: Mapping[str, Callable[[], object]], turns: int = TURNS
) -> dict[str, Timed]:
    """Run every contender once to warm up, then once a turn; medians by name."""
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

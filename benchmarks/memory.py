"""The growth of the resident memory of a new process in one call.

``python -m benchmarks.memory NUMBER NAME`` measures one implementation and prints bytes.
"""

import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

import headwise as hw
from benchmarks import peers
from benchmarks.cases import (
    CHUNK,
    DENSE_BIAS,
    REFORMER,
    REFORMER_PYTORCH,
    ROUNDS,
    SHAW,
    TORCH,
    TRANSFORMER_XL,
    WINDOW,
    module,
    ours,
    ours_hashed,
    table,
    terms,
)
from benchmarks.resident import growth_of
from benchmarks.work import DIM, HEADS, OURS, Contender, Work

LIMIT = 20 << 30
"""Bytes of address space; an implementation that needs more fails."""

WARM = 1024
"""The length of an earlier call, which loads libraries and is not measured."""


@dataclass(frozen=True)
class Case:
    """One comparison of memory.

    Attributes:
        name: the name of the case on the page.
        line: the number of the requirement.
        length: L.
        contenders: the implementations by name, with `OURS` among them.
        share: the largest allowed memory of `OURS` / memory of each other implementation.
        outputs: the largest allowed memory of `OURS` / size of the output, or None.
        most: the largest allowed memory of `OURS` in bytes, or None.
        backward: whether the backward pass is also measured.
    """

    name: str
    line: int
    length: int
    contenders: Mapping[str, Contender]
    share: Mapping[str, float] = field(default_factory=dict)
    outputs: float | None = None
    most: int | None = None
    backward: bool = False


def both(name: str, position: hw.Position, dense: Contender, share: float) -> tuple[Case, ...]:
    """Return the cases of a position: compared with the dense bias at 4096, alone at 16384."""
    mine = ours(None, position)
    pair = {OURS: mine, DENSE_BIAS: dense}
    return (
        Case(f"{name}, forward", 9, 4096, pair, {DENSE_BIAS: share}),
        Case(f"{name}, forward + backward", 9, 4096, pair, {DENSE_BIAS: 1 / 8}, backward=True),
        Case(f"{name}, forward", 9, 16384, {OURS: mine}, most=600 << 20),
        Case(f"{name}, forward + backward", 9, 16384, {OURS: mine}, most=600 << 20, backward=True),
    )


CASES = (
    Case(
        "lsh, 4 rounds, chunks of 64, forward",
        7,
        16384,
        {
            OURS: ours_hashed,
            REFORMER: lambda work: peers.reformer(ROUNDS, CHUNK)(work),
            REFORMER_PYTORCH: lambda work: peers.reformer_pytorch(ROUNDS, CHUNK)(work),
        },
        {REFORMER: 1 / 4, REFORMER_PYTORCH: 1 / 4},
    ),
    Case("window(256, 256), forward", 8, 32768, {OURS: ours(WINDOW)}, outputs=2.2),
    Case(
        "window(256, 256), forward + backward",
        8,
        32768,
        {OURS: ours(WINDOW)},
        outputs=5.5,
        backward=True,
    ),
    *both("Shaw, 64 distances", SHAW, peers.shaw_gathered(table, SHAW), 1 / 8),
    *both(
        "Transformer-XL",
        TRANSFORMER_XL,
        peers.transformer_xl_shifted(terms, TRANSFORMER_XL),
        1 / 40,
    ),
    Case(
        "MultiheadAttention with entropy and column sums, forward",
        10,
        4096,
        {OURS: module("ours, statistics"), TORCH: module("theirs, weights")},
        {TORCH: 1 / 20},
    ),
    Case("window(128, 128), forward", 11, 262144, {OURS: ours(hw.window(128, 128))}, most=8 << 30),
)


def growth(case: Case, contender: str, length: int) -> int:
    """Measure by how many bytes this process grows in one call."""
    make = case.contenders[contender]
    with torch.set_grad_enabled(case.backward):
        make(Work.drawn(WARM, torch.float32, backward=case.backward))()
        return growth_of(make(Work.drawn(length, torch.float32, backward=case.backward)))


def measured(case: Case, contender: str) -> int | None:
    """Measure `growth` in a new process; None if it fails."""
    number = CASES.index(case)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", str(number), contender],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"bench:   {contender} failed: {last[:300]}")
        return None
    return int(done.stdout.splitlines()[-1])


def output_bytes(length: int) -> int:
    """Return the bytes of an output (1, H, L, D) in float32."""
    return 4 * HEADS * length * DIM


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    torch.set_num_threads(2)
    chosen = CASES[int(sys.argv[1])]
    print(growth(chosen, sys.argv[2], chosen.length))

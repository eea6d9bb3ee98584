"""The overhead of a small call of `attend` and of the module, compared with PyTorch.

python -m benchmarks.overhead

The sizes are (1, 8, 16, 64), float32, one thread. The two implementations run alternately, many
calls at a time. The result is the median difference, in microseconds per call.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import headwise as hw

TURNS, CALLS = 15, 300
BATCH, HEADS, LENGTH, DIM = 1, 8, 16, 64

Run = Callable[[], object]


@dataclass(frozen=True)
class Overhead:
    """The microseconds per call, their difference, and the limit on the difference."""

    case: str
    torch: float
    headwise: float
    difference: float
    limit: float

    def __str__(self) -> str:
        return (
            f"{self.case}: torch {self.torch:.1f}, headwise {self.headwise:.1f}, "
            f"difference {self.difference:+.1f} (limit {self.limit:+.1f})"
        )


def cases() -> Mapping[str, tuple[Run, Run, float]]:
    """Return PyTorch's call, headwise's call, and the limit in microseconds, by case."""
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM) for _ in range(3))
    learned = [rows.clone().requires_grad_() for rows in (q, k, v)]
    x, causal = torch.randn(BATCH, LENGTH, HEADS * DIM), hw.causal()
    theirs = nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True)
    ours = hw.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True)

    def without_grad(run: Run) -> Run:
        return torch.no_grad()(run)

    return {
        "attend": (
            without_grad(lambda: F.scaled_dot_product_attention(q, k, v)),
            without_grad(lambda: hw.attend(q, k, v)),
            25.0,
        ),
        "attend, causal": (
            without_grad(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
            without_grad(lambda: hw.attend(q, k, v, mask=causal)),
            25.0,
        ),
        "attend, with gradients": (
            lambda: F.scaled_dot_product_attention(*learned),
            lambda: hw.attend(*learned),
            25.0,
        ),
        "module": (
            without_grad(lambda: theirs(x, x, x, need_weights=False)),
            without_grad(lambda: ours(x, x, x, need_weights=False)),
            0.0,
        ),
        "module, with gradients": (
            lambda: theirs(x, x, x, need_weights=False),
            lambda: ours(x, x, x, need_weights=False),
            0.0,
        ),
    }


def measure(turns: int = TURNS, calls: int = CALLS) -> list[Overhead]:
    """Measure every case."""
    found = []
    for case, (theirs, ours, limit) in cases().items():
        for run in (theirs, ours):
            _microseconds(run, calls)  # warm up
        pairs = [(_microseconds(theirs, calls), _microseconds(ours, calls)) for _ in range(turns)]
        first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
        difference = statistics.median(own - other for other, own in pairs)
        found.append(Overhead(case, first, second, difference, limit))
    return found


def _microseconds(run: Run, calls: int) -> float:
    """Return the mean processor time of a call in this thread, in microseconds."""
    start = time.thread_time()
    for _ in range(calls):
        run()
    return (time.thread_time() - start) / calls * 1e6


if __name__ == "__main__":
    torch.set_num_threads(1)
    for overhead in measure():
        print(overhead)

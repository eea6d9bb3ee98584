"""The memory of `attend` with engine="auto", for every mask with every position encoding.

``python -m benchmarks.combinations [LENGTH] [NAME ...]`` prints for each combination the engine,
the growth of the resident memory of a new process in one call, forward and with the backward pass,
and the growth that `headwise.plan` predicts. The unit is the size of the output (1, 2, L, 64).
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import headwise as hw
from benchmarks.resident import growth_of

HEADS, DIM = 2, 64
WARM = 256  # the length of an earlier call, which loads libraries and is not measured

MaskMaker = Callable[[int], hw.Mask]


def _drawn(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) > 0.5


MASKS: dict[str, MaskMaker] = {
    "full": lambda _: hw.full(),
    "causal": lambda _: hw.causal(),
    "window": lambda _: hw.window(64, 64),
    "dilated": lambda _: hw.dilated(16, 16, step=4),
    "every": lambda _: hw.every(128),
    "block_sparse": lambda n: hw.block_sparse(_drawn(n // 128, n // 128), 128),
    "strided": lambda _: hw.strided(64),
    "fixed": lambda _: hw.fixed(64, 8),
    "random_blocks": lambda _: hw.random_blocks(64, 4, seed=0),
    "lsh": lambda _: hw.lsh(2, seed=0),
    "documents, two": lambda n: hw.documents([n // 2, n - n // 2]),
    "documents, interleaved": lambda n: hw.documents(torch.arange(n)[None] % 2),
    "padding at the end": lambda n: hw.padding([n - n // 8]),
    "padding at random": lambda n: hw.padding(_drawn(1, n)),
    "prefix": lambda n: hw.prefix([n // 3]),
    "per_head": lambda _: hw.per_head([hw.causal(), hw.window(64, 64)]),
    "global_tokens": lambda _: hw.global_tokens([0, 1]),
    "from_tensor, booleans": lambda n: hw.from_tensor(_drawn(n, n)),
    "from_tensor, one row of floats": lambda n: hw.from_tensor(
        torch.linspace(-1, 1, n).expand(1, 1, n, n)
    ),
    "appended": lambda _: hw.masks.appended(hw.causal(), 1),
    "window | global_tokens": lambda _: hw.window(64, 64) | hw.global_tokens([0, 1]),
    "causal | window": lambda _: hw.causal() | hw.window(64, 64),
    "~window": lambda _: ~hw.window(64, 64),
    "causal & ~window": lambda _: hw.causal() & ~hw.window(64, 64),
    "causal & padding": lambda n: hw.causal() & hw.padding([n - n // 8]),
    "~lsh": lambda _: ~hw.lsh(2, seed=0),
    "lsh | window": lambda _: hw.lsh(2, seed=0) | hw.window(64, 64),
}

POSITIONS: dict[str, Callable[[], hw.Position | None]] = {
    "no position": lambda: None,
    "Rotary": lambda: hw.Rotary(DIM, pairs="halves"),
    "ALiBi": lambda: hw.ALiBi(HEADS),
    "T5Bias": lambda: hw.T5Bias(HEADS),
    "Shaw": lambda: hw.Shaw(16, DIM),
    "TransformerXL": lambda: hw.TransformerXL(HEADS, DIM),
}


@dataclass(frozen=True)
class Growth:
    """The memory of one combination in output sizes; ``planned`` is that of the forward pass."""

    mask: str
    position: str
    engine: str
    forward: float
    backward: float
    planned: float

    def __str__(self) -> str:
        sizes = f"{self.forward:.1f} | {self.backward:.1f} | {self.planned:.1f}"
        return f"| {self.mask} | {self.position} | {self.engine} | {sizes} |"


def growth(mask: str, position: str, length: int) -> Growth:
    """Measure one combination, each pass in a new process."""
    inputs = [torch.randn(1, HEADS, length, DIM) for _ in range(3)]
    made = MASKS[mask](length)
    plan = hw.plan(*inputs, mask=made, position=POSITIONS[position]())
    unit = inputs[0].nbytes
    passes = (_in_child(mask, position, length, backward) / unit for backward in (False, True))
    return Growth(mask, position, plan.engine, *passes, planned=plan.bytes / unit)


def _in_child(mask: str, position: str, length: int, backward: bool) -> float:
    """Measure the growth in bytes in a forked process; NaN if the process fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            os.write(writing, str(_grown(mask, position, length, backward)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return float(text or "nan")


def _grown(mask: str, position: str, length: int, backward: bool) -> int:
    place = POSITIONS[position]()

    def run(size: int) -> Callable[[], object]:
        rows = [torch.randn(1, HEADS, size, DIM, requires_grad=backward) for _ in range(3)]
        made = MASKS[mask](size)

        def call() -> object:
            output = hw.attend(*rows, mask=made, position=place)
            return torch.autograd.grad(output.sum(), rows) if backward else output

        return call

    with torch.set_grad_enabled(backward):
        run(WARM)()
        return growth_of(run(length))


def table(length: int, masks: Iterator[str]) -> Iterator[Growth]:
    """Measure each mask with every position encoding."""
    for mask in masks:
        for position in POSITIONS:
            yield growth(mask, position, length)


if __name__ == "__main__":
    torch.set_num_threads(1)
    size, *names = sys.argv[1:] or ["16384"]
    print(
        "| mask | position | engine | forward | with backward | plan |\n|---|---|---|---|---|---|"
    )
    for row in table(int(size), iter(names or MASKS)):
        print(row, flush=True)

"""A corpus shared out over the processes that torchrun started."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.heads.corpus.gathered import Gathered


@dataclass(frozen=True)
class Share:
    """Which documents one process measures: every one whose number leaves its rank.

    Attributes:
        rank: the process, counted from 0.
        processes: how many there are.
    """

    rank: int = 0
    processes: int = 1

    def numbers(self, documents: int) -> range:
        """The numbers of its documents, counted from 0."""
        return range(self.rank, documents, self.processes)

    def merged(self, own: Gathered) -> Gathered:
        """What all processes gathered, by all-reduce; every process has to call this.

        The sums of several processes are added in another order than those of one: they agree to
        the rounding of float64, and two such runs agree exactly.
        """
        if self.processes == 1:
            return own
        tensors = own.tensors()
        form = {name: (list(each.shape), str(each.dtype)) for name, each in tensors.items()}
        reduced = {}
        for name, (shape, dtype) in self._forms(form).items():
            kind = torch.float64 if dtype == str(torch.float64) else torch.int64
            reduced[name] = tensors.get(name, torch.zeros(shape, dtype=kind)).clone()
            dist.all_reduce(reduced[name])
        return Gathered.from_tensors(reduced)

    def wait(self) -> None:
        """Until every process has come this far."""
        if self.processes > 1:
            dist.barrier()

    def _forms(self, own: dict[str, tuple[list[int], str]]) -> dict[str, tuple[list[int], str]]:
        """Name, shape and type of every tensor that any process has, in one order for all."""
        written = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        lengths = [torch.zeros((), dtype=torch.int64) for _ in range(self.processes)]
        dist.all_gather(lengths, torch.tensor(written.numel()))
        longest = int(max(lengths))
        given = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.processes)]
        dist.all_gather(given, torch.cat((written, written.new_zeros(longest - len(written)))))
        found: dict[str, tuple[list[int], str]] = {}
        for each, length in zip(given, lengths, strict=True):
            found |= json.loads(_bytes(each[: int(length)]))
        return found


ALONE = Share()
"""All of the corpus."""


@contextmanager
def shared() -> Iterator[Share]:
    """The share of this process: one of those that torchrun started, or all of the corpus."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield ALONE
        return
    dist.init_process_group("gloo")
    try:
        yield Share(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.tolist())

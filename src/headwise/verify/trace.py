"""Which of the oracle's quantities appear inside a target while it runs.

Nothing is asked of the target: every operation of PyTorch that it runs is seen from below, and its
result is compared with each quantity in the layouts that people use. The first step after the
last quantity that appears is where the target differs.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.verify.budget import judge
from headwise.verify.pipeline import QUANTITIES, Trace

MOST = 4000
"""How many tensors are kept of one run."""

LARGEST = 1 << 20
"""How many elements a kept tensor has at most."""

BLOCKED = -1e4
"""Scores at or below are taken as blocked: people write -1e9 where -inf is meant."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a copy of every floating point tensor that an operation gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self._keep(tensor)
        return result

    def _keep(self, tensor: Tensor) -> None:
        if len(self.seen) < MOST and 0 < tensor.numel() <= LARGEST:
            self.seen.append(tensor.detach().clone())


def record(run: Callable[[], object]) -> list[Tensor]:
    """Every tensor that operations gave while it ran, without gradients."""
    recorder = Recorder()
    with torch.no_grad(), recorder:
        run()
    return recorder.seen


def appearing(seen: Sequence[Tensor], plain: Trace, exact: Trace) -> frozenset[str]:
    """The names of the quantities that appear among the tensors seen.

    Args:
        seen: from `record`.
        plain: the oracle in the dtype of the run.
        exact: the oracle in float64.
    """
    by_size: dict[int, list[Tensor]] = {}
    for tensor in seen:
        by_size.setdefault(tensor.numel(), []).append(tensor)
    return frozenset(name for name, _ in QUANTITIES if _appears(by_size, plain[name], exact[name]))


def first_difference(appeared: frozenset[str]) -> str | None:
    """The step that makes the first quantity after the last one that appeared; None if all did."""
    last = max((i for i, (name, _) in enumerate(QUANTITIES) if name in appeared), default=-1)
    return QUANTITIES[last + 1][1] if last + 1 < len(QUANTITIES) else None


def _appears(by_size: Mapping[int, list[Tensor]], plain: Tensor, exact: Tensor) -> bool:
    """Whole in some layout, or one head at a time."""
    whole = by_size.get(exact.numel(), [])
    if any(_same(t, n, o) for n, o in _layouts(plain, exact) for t in whole):
        return True
    if exact.dim() != 4 or exact.shape[1] == 1:
        return False
    single = by_size.get(exact[:, 0].numel(), [])
    heads = range(exact.shape[1])
    return all(
        any(_same(t, n, o) for n, o in _layouts(plain[:, h], exact[:, h]) for t in single)
        for h in heads
    )


def _layouts(plain: Tensor, exact: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Every order of the axes; neighbours that a view would join are joined when compared."""
    orders = permutations(range(exact.dim()))
    return [(plain.permute(order), exact.permute(order)) for order in orders]


def _same(tensor: Tensor, plain: Tensor, exact: Tensor) -> bool:
    if not _compatible(tuple(tensor.shape), tuple(exact.shape)):
        return False
    found, n, o = (_levelled(t.reshape(exact.shape)) for t in (tensor, plain, exact))
    return judge(found, n.to(found.dtype), o).accepted


def _compatible(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a shape is the wanted one, with axes of 1 left out or neighbours joined."""
    rest = [size for size in wanted if size != 1]
    for size in (size for size in shape if size != 1):
        product = 1
        while rest and product < size:
            product *= rest.pop(0)
        if product != size:
            return False
    return not rest


def _levelled(scores: Tensor) -> Tensor:
    """Blocked scores as -inf, however they were written."""
    return scores.masked_fill(scores <= BLOCKED, -torch.inf)

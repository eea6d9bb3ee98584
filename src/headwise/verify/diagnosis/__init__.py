"""Which intermediate quantities of the oracle appear in a target while it runs.

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

from headwise.verify.oracle.pipeline import QUANTITIES, Trace
from headwise.verify.oracle.tolerance import judge

MOST = 4000
"""How many tensors are kept of one run."""

LARGEST = 1 << 20
"""How many elements a kept tensor has at most."""

INSIDE = slice(
    *(next(i for i, (_, step) in enumerate(QUANTITIES) if step == s) for s in ("score", "merge"))
)
"""The quantities between the split and the merge."""

BLOCKED = -1e4
"""Scores at or below are taken as blocked: people write -1e9 where -inf is meant."""


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a copy of every floating-point tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, since PyTorch would load its compiler otherwise."""
        return False

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
    """Every tensor that operations returned during a run, without gradients."""
    recorder = OperationRecorder()
    with torch.no_grad(), recorder:
        run()
    return recorder.seen


def matching_quantities(seen: Sequence[Tensor], plain: Trace, exact: Trace) -> frozenset[str]:
    """The names of the quantities that appear among recorded tensors.

    Args:
        seen: from `record`.
        plain: the oracle in the dtype of the run.
        exact: the oracle in float64.
    """
    by_size: dict[int, list[Tensor]] = {}
    for tensor in seen:
        by_size.setdefault(tensor.numel(), []).append(tensor)
    return frozenset(name for name, _ in QUANTITIES if _appears(by_size, plain[name], exact[name]))


def first_difference(
    appeared: frozenset[str], quantities: Sequence[tuple[str, str]] = QUANTITIES
) -> str | None:
    """The step that makes the first quantity after the last one that appeared; None if all did."""
    last = max((i for i, (name, _) in enumerate(quantities) if name in appeared), default=-1)
    return quantities[last + 1][1] if last + 1 < len(quantities) else None


def first_inside(appeared: frozenset[str]) -> str:
    """The same for a function of q, k and v, which has only the steps from scores to values."""
    inside = QUANTITIES[INSIDE]
    return first_difference(appeared, inside) or inside[-1][1]


def _appears(by_size: Mapping[int, list[Tensor]], plain: Tensor, exact: Tensor) -> bool:
    """Whether a quantity appears in some layout, whole or one head at a time."""
    whole = by_size.get(exact.numel(), [])
    if any(_same(t, plain, exact, order) for order in _orders(exact) for t in whole):
        return True
    if exact.dim() != 4 or exact.shape[1] == 1:
        return False
    single = by_size.get(exact[:, 0].numel(), [])
    return all(
        any(
            _same(t, plain[:, h], exact[:, h], order)
            for order in _orders(exact[:, h])
            for t in single
        )
        for h in range(exact.shape[1])
    )


def _orders(exact: Tensor) -> list[tuple[int, ...]]:
    return list(permutations(range(exact.dim())))


def _same(tensor: Tensor, plain: Tensor, exact: Tensor, order: tuple[int, ...]) -> bool:
    """Whether a tensor is the quantity with its axes in this order.

    The first two axes, batch and head or batch and length, may be joined in either order; the last
    axes may not, or the projection before the split would pass for the split.
    """
    n, o = plain.permute(order), exact.permute(order)
    shape, wanted = _sizes(tensor), _sizes(o)
    joined = _sizes(o.flatten(0, 1)) if set(order[:2]) == {0, 1} else wanted
    if shape not in (wanted, joined):
        return False
    result, n, o = (_levelled(t.reshape(exact.permute(order).shape)) for t in (tensor, n, o))
    return judge(result, n.to(result.dtype), o).accepted


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape without axes of size 1."""
    return tuple(size for size in tensor.shape if size != 1)


def _levelled(scores: Tensor) -> Tensor:
    """Masked scores as -inf, whatever number was filled in."""
    return scores.masked_fill(scores <= BLOCKED, -torch.inf)

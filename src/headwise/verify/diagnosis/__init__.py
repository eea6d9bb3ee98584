"""Find the intermediate quantities of the oracle that appear in a target while it runs.

The result of every PyTorch operation in the target is recorded and compared with every quantity in
its usual layouts. The target differs in the step after the last quantity that appears.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.verify.oracle.pipeline import QUANTITIES, Trace
from headwise.verify.oracle.tolerance import judge

MOST, LARGEST = 4000, 1 << 20
"""The limits on the recorded tensors of a run and on the elements of each tensor."""

STEPS = [step for _, step in QUANTITIES]
INSIDE = QUANTITIES[STEPS.index("score") : STEPS.index("merge")]
"""The quantities between the split and the merge."""

BLOCKED = -1e4  # scores up to this count as masked, since -1e9 often replaces -inf


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records a copy of every floating-point tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False; otherwise PyTorch would load its compiler."""
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            floating = isinstance(tensor, Tensor) and tensor.is_floating_point()
            if floating and len(self.seen) < MOST and 0 < tensor.numel() <= LARGEST:
                self.seen.append(tensor.detach().clone())
        return result


def record(run: Callable[[], object]) -> list[Tensor]:
    """Return every tensor that operations return during a run without gradients."""
    recorder = OperationRecorder()
    with torch.no_grad(), recorder:
        run()
    return recorder.seen


def matching_quantities(seen: Sequence[Tensor], plain: Trace, exact: Trace) -> frozenset[str]:
    """Return the names of the oracle's quantities that appear among recorded tensors.

    `plain` is the oracle in the dtype of the run, `exact` the oracle in float64.
    """
    by_size: dict[int, list[Tensor]] = {}
    for tensor in seen:
        by_size.setdefault(tensor.numel(), []).append(tensor)
    return frozenset(name for name, _ in QUANTITIES if _appears(by_size, plain[name], exact[name]))


def first_difference(
    appeared: frozenset[str], quantities: Sequence[tuple[str, str]] = QUANTITIES
) -> str | None:
    """Return the step after the last quantity that appeared; None if the last one appeared."""
    last = max((i for i, (name, _) in enumerate(quantities) if name in appeared), default=-1)
    return quantities[last + 1][1] if last + 1 < len(quantities) else None


def first_inside(appeared: frozenset[str]) -> str:
    """Like `first_difference`, for a function of q, k and v, which has no projections."""
    return first_difference(appeared, INSIDE) or INSIDE[-1][1]


def _appears(by_size: Mapping[int, list[Tensor]], plain: Tensor, exact: Tensor) -> bool:
    """Whether a quantity appears in any layout, as a whole or head by head."""

    def appears(n: Tensor, o: Tensor) -> bool:
        orders = permutations(range(o.dim()))
        tensors = by_size.get(o.numel(), [])
        return any(_same(t, n, o, order) for order in orders for t in tensors)

    if appears(plain, exact):
        return True
    if exact.dim() != 4 or exact.shape[1] == 1:
        return False
    return all(appears(plain[:, h], exact[:, h]) for h in range(exact.shape[1]))


def _same(tensor: Tensor, plain: Tensor, exact: Tensor, order: tuple[int, ...]) -> bool:
    """Whether a tensor is the quantity with its axes in this order.

    The first two axes, batch and head or batch and length, may be flattened into one axis. The last
    axes may not, or else the projection before the split would be mistaken for the split.
    """
    n, o = plain.permute(order), exact.permute(order)
    expected = _sizes(o)
    joined = _sizes(o.flatten(0, 1)) if set(order[:2]) == {0, 1} else expected
    if _sizes(tensor) not in (expected, joined):
        return False
    result, n, o = (
        t.masked_fill(t <= BLOCKED, -torch.inf) for t in (tensor.reshape(o.shape), n, o)
    )
    return judge(result, n.to(result.dtype), o).accepted


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape if size != 1)

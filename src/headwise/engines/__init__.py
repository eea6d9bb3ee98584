"""The engines: the ways to run attention. Each is one module or package; see `Engine`."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch

from headwise.call import Call, Result, is_tracing
from headwise.engines import blockwise, eager, flex, lsh, sdpa, tiled
from headwise.engines.autograd_transforms import batched_mask
from headwise.lang import Text


@runtime_checkable
class Engine(Protocol):
    """The interface of an engine's module."""

    NAME: str

    def why_not(self, call: Call) -> Iterator[Text]:
        """Every reason why this engine cannot run the call, built as it is read."""
        ...

    def worthwhile(self, call: Call) -> bool:
        """Whether this engine is faster or smaller than those after it in `ENGINES`.

        It must answer for every call, and at once for a small one.
        """
        ...

    def run(self, call: Call) -> Result:
        """Run a call for which `why_not` gives no reason."""
        ...


ENGINES: tuple[Engine, ...] = (lsh, tiled, blockwise, sdpa, eager, flex)
"""Every engine, in order of preference."""


def can_run(engine: Engine, call: Call) -> bool:
    """Whether an engine has no reason against a call."""
    return next(engine.why_not(call), None) is None


def best(call: Call) -> Engine:
    """The first engine that can run the call and is worthwhile for it."""
    if batched_mask(call):
        return eager
    return next(engine for engine in ENGINES if _suitable(engine, call))


def _suitable(engine: Engine, call: Call) -> bool:
    """Whether to choose an engine rather than those after it.

    An exported or traced program serves every length, so its engine must not depend on one. The
    logsumexp
    alone comes with the output of SDPA's kernel at no cost.
    """
    recorded = torch.compiler.is_exporting() or is_tracing()
    if recorded and engine not in (sdpa, eager):
        return False
    if engine is blockwise and call.need == {"logsumexp"} and can_run(sdpa, call):
        return False
    return engine.worthwhile(call) and can_run(engine, call)


__all__ = ["ENGINES", "Engine", "best", "can_run"]

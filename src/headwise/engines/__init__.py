"""The engines: the ways to run attention. Every engine is a module with the interface `Engine`."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch

from headwise.call import Call, Result, is_tracing
from headwise.engines import blockwise, eager, flex, lsh, sdpa, tiled
from headwise.engines.autograd_transforms import batched_mask
from headwise.lang import Text


@runtime_checkable
class Engine(Protocol):
    """The interface that an engine's module implements."""

    NAME: str

    def why_not(self, call: Call) -> Iterator[Text]:
        """Yield every reason why this engine cannot run the call."""
        ...

    def worthwhile(self, call: Call) -> bool:
        """Return whether this engine is faster or smaller than those after it in `ENGINES`.

        It must return for every call, and quickly for a small call.
        """
        ...

    def run(self, call: Call) -> Result:
        """Run a call for which `why_not` yields no reason."""
        ...


ENGINES: tuple[Engine, ...] = (lsh, tiled, blockwise, sdpa, eager, flex)
"""Every engine, in order of preference."""


def can_run(engine: Engine, call: Call) -> bool:
    """Return whether the engine can run the call."""
    return next(engine.why_not(call), None) is None


def best(call: Call) -> Engine:
    """Return the first engine that can run the call and is worthwhile for it."""
    if batched_mask(call):
        return eager
    return next(engine for engine in ENGINES if _suitable(engine, call))


def _suitable(engine: Engine, call: Call) -> bool:
    """Return whether to choose this engine over those after it in `ENGINES`.

    An exported or traced program must run for every length, so its engine must not depend on it. If
    only the logsumexp is needed, SDPA's kernel returns it with the output at no cost.
    """
    recorded = torch.compiler.is_exporting() or is_tracing()
    if recorded and engine not in (sdpa, eager):
        return False
    if engine is blockwise and call.need == {"logsumexp"} and can_run(sdpa, call):
        return False
    return engine.worthwhile(call) and can_run(engine, call)


__all__ = ["ENGINES", "Engine", "best", "can_run"]

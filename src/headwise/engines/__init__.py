"""The ways to run attention. One engine, one file, with ``why_not(call)`` and ``run(call)``."""

from typing import Protocol, runtime_checkable

import torch

from headwise.call import Call, Result
from headwise.engines import eager, flex, lsh, rows, sdpa, tiled
from headwise.lang import Text


@runtime_checkable
class Engine(Protocol):
    """What an engine's file offers."""

    NAME: str

    def why_not(self, call: Call) -> list[Text]:
        """Every reason why this engine cannot run the call, in a person's words."""
        ...

    def run(self, call: Call) -> Result:
        """Run a call that `why_not` has nothing against."""
        ...


ENGINES: tuple[Engine, ...] = (lsh, tiled, rows, sdpa, eager, flex)
"""Every engine there is, the one to prefer first."""


def best(call: Call) -> Engine:
    """The engine for a call when nobody named one: the first that can, and has something to win."""
    able = (engine for engine in ENGINES if not engine.why_not(call))
    return next(engine for engine in able if _wins(engine, call))


def _wins(engine: Engine, call: Call) -> bool:
    """Whether an engine is better than those behind it.

    The tiled engine runs any pattern, but one that is dense or short is faster elsewhere, and so is
    an LSH mask whose chunks hold most keys; rows a few at a time are for what else a large call
    needs. What is exported serves every length, so that no choice may hang on one.
    """
    if torch.compiler.is_exporting():
        return engine in (sdpa, eager)
    if engine is lsh:
        return lsh.worthwhile(call)
    if engine is tiled:
        return tiled.worthwhile(call)
    if engine is rows:  # the logsumexp alone comes with the output elsewhere
        return rows.worthwhile(call) and (call.need != {"logsumexp"} or bool(sdpa.why_not(call)))
    return True


__all__ = ["ENGINES", "Engine", "best"]

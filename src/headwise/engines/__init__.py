"""The ways to run attention. One engine, one file, with ``why_not(call)`` and ``run(call)``."""

from typing import Protocol, runtime_checkable

from headwise.call import Call, Result
from headwise.engines import eager, flex, sdpa, tiled
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


ENGINES: tuple[Engine, ...] = (tiled, sdpa, eager, flex)
"""Every engine there is, the one to prefer first."""


def best(call: Call) -> Engine:
    """The engine for a call when nobody named one: the first that can, and has something to win.

    The tiled engine runs any pattern; where the pattern is dense, or short, the next is faster.
    """
    able = (engine for engine in ENGINES if not engine.why_not(call))
    return next(engine for engine in able if engine is not tiled or tiled.pays(call))


__all__ = ["ENGINES", "Engine", "best"]

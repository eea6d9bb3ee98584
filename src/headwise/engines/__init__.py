"""The ways to run attention. One engine, one file, with ``why_not(call)`` and ``run(call)``."""

from typing import Protocol

from headwise.call import Call, Result
from headwise.engines import eager, sdpa
from headwise.lang import Text


class Engine(Protocol):
    """What an engine's file offers."""

    NAME: str

    def why_not(self, call: Call) -> list[Text]:
        """Every reason why this engine cannot run the call, in a person's words."""
        ...

    def run(self, call: Call) -> Result:
        """Run a call that `why_not` has nothing against."""
        ...


ENGINES: tuple[Engine, ...] = (sdpa, eager)
"""Every engine there is, the one to prefer first."""

__all__ = ["ENGINES", "Engine"]

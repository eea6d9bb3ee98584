"""Verification: an oracle, the one rule of acceptance, checks, mistakes, and the verdict."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.verify.verdict import Report, verify

__all__ = ["Report", "verify"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'headwise.verify' has no attribute '{name}'")
    from headwise.verify import verdict

    return getattr(verdict, name)

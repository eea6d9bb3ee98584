"""Verification: an oracle, the one rule of acceptance, checks, mistakes, and the verdict."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.verify.conforming import assert_attention, conformance
    from headwise.verify.verdict import Report, verify

_HOME = {
    "Report": "headwise.verify.verdict",
    "assert_attention": "headwise.verify.conforming",
    "conformance": "headwise.verify.conforming",
    "verify": "headwise.verify.verdict",
}

__all__ = ["Report", "assert_attention", "conformance", "verify"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise.verify' has no attribute '{name}'")
    found: object = getattr(import_module(_HOME[name]), name)
    return found

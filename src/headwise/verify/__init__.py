"""Verification: an oracle, the one rule of acceptance, checks, mistakes, and the verdict."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.verify.diagnosis.verdict import Report, verify
    from headwise.verify.report.conformance import assert_attention, conformance

_HOME = {
    "Report": "headwise.verify.diagnosis.verdict",
    "assert_attention": "headwise.verify.report.conformance",
    "conformance": "headwise.verify.report.conformance",
    "verify": "headwise.verify.diagnosis.verdict",
}

__all__ = ["Report", "assert_attention", "conformance", "verify"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise.verify' has no attribute '{name}'")
    result: object = getattr(import_module(_HOME[name]), name)
    return result

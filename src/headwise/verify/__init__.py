"""Verification: an oracle, the one rule of acceptance, checks, mistakes, and the verdict."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.verify.diagnosis.verdict import Report, verify
    from headwise.verify.process import Limits, Request
    from headwise.verify.report.conformance import assert_attention, conformance
    from headwise.verify.submissions import Results, verify_all

_HOME = {
    "Limits": "headwise.verify.process",
    "Report": "headwise.verify.diagnosis.verdict",
    "Request": "headwise.verify.process",
    "Results": "headwise.verify.submissions",
    "assert_attention": "headwise.verify.report.conformance",
    "conformance": "headwise.verify.report.conformance",
    "verify": "headwise.verify.diagnosis.verdict",
    "verify_all": "headwise.verify.submissions",
}

__all__ = ["Limits", "Report", "Request", "Results"]
__all__ += ["assert_attention", "conformance", "verify", "verify_all"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise.verify' has no attribute '{name}'")
    result: object = getattr(import_module(_HOME[name]), name)
    return result

"""The article checker: reads a worked example and names each printed number that is wrong."""

from headwise.check.check import check
from headwise.check.findings import Finding, Report, Unmatched
from headwise.check.given import Options
from headwise.check.source import read_article

__all__ = ["Finding", "Options", "Report", "Unmatched", "check", "read_article"]

"""The article checker: reads a worked example and names each printed number that is wrong."""

from headwise.explain.article.check import check
from headwise.explain.article.findings import Finding, Report, Unmatched
from headwise.explain.article.given import Options
from headwise.explain.article.source import read_article

__all__ = ["Finding", "Options", "Report", "Unmatched", "check", "read_article"]

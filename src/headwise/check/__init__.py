"""Check a worked example: recompute it and report each printed number that is wrong."""

from headwise.check.article_lines import read_article
from headwise.check.checker import check
from headwise.check.problem_setup import Options
from headwise.check.report import Finding, Report, Unmatched

__all__ = ["Finding", "Options", "Report", "Unmatched", "check", "read_article"]

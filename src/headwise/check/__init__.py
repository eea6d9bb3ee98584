"""Check a worked example: recompute it and report each printed number that is wrong."""

from headwise.check.article_lines import read_article
from headwise.check.checker import CheckReport, Finding, Unmatched, check
from headwise.check.problem_setup import CheckOptions

__all__ = ["CheckOptions", "CheckReport", "Finding", "Unmatched", "check", "read_article"]

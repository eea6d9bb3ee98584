"""Check a worked example: recompute it and report each printed number that is wrong."""

from headwise.check.article_lines import read_article
from headwise.check.checker import CheckReport, check
from headwise.check.settings.setting import CheckOptions
from headwise.check.verdicts.findings import Finding, Unmatched

__all__ = ["CheckOptions", "CheckReport", "Finding", "Unmatched", "check", "read_article"]

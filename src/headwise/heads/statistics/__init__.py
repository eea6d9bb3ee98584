"""Sums of metrics over many texts, and how certain the numbers are that come from them."""

from headwise.heads.statistics.head_statistics import Baseline, Statistics, Sums

__all__ = ["Baseline", "Statistics", "Sums"]

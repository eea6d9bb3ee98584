"""Measures of heads. One measure, one file, and one line in the tuple below."""

from headwise.heads.metrics.base import Metric, Rows, total
from headwise.heads.metrics.distance import DISTANCE
from headwise.heads.metrics.duplicate import DUPLICATE
from headwise.heads.metrics.effective_keys import EFFECTIVE_KEYS
from headwise.heads.metrics.entropy import ENTROPY
from headwise.heads.metrics.first import FIRST
from headwise.heads.metrics.following import NEXT
from headwise.heads.metrics.induction import INDUCTION
from headwise.heads.metrics.itself import SELF
from headwise.heads.metrics.largest import LARGEST
from headwise.heads.metrics.previous import PREVIOUS
from headwise.heads.metrics.separators import SEPARATORS

METRICS = (
    ENTROPY,
    EFFECTIVE_KEYS,
    DISTANCE,
    PREVIOUS,
    NEXT,
    SELF,
    FIRST,
    SEPARATORS,
    DUPLICATE,
    INDUCTION,
    LARGEST,
)
"""Every metric there is, in the order tables show them."""

__all__ = ["METRICS", "Metric", "Rows", "total"]

"""Metrics of heads. Each metric is defined in the file of its family and listed here."""

from headwise.heads.metrics.dispersion import (
    BLOCKS,
    CONFIDENCE,
    EFFECTIVE_KEYS,
    ENTROPY,
    LARGEST,
    NORMALISED_ENTROPY,
    SMOOTHED_ENTROPY,
)
from headwise.heads.metrics.distances import (
    DIAGONALITY,
    DISTANCE,
    DISTANCE_SPREAD,
    FAR,
    LOCAL,
    MOSTLY_NEXT,
    MOSTLY_PREVIOUS,
    NEXT,
    PREVIOUS,
    SELF,
    SIGNED_DISTANCE,
)
from headwise.heads.metrics.key_context import KeyContext
from headwise.heads.metrics.metric import Metric, Rows, total, totals
from headwise.heads.metrics.repetition import DETECT_HEAD, DUPLICATE, INDUCTION, STRIPE
from headwise.heads.metrics.token_kinds import (
    FIRST,
    FROM_OTHERS,
    FROM_SEPARATORS,
    PUNCTUATION,
    RAREST,
    SEGMENT,
    SEPARATORS,
    SINK,
    UNSPENT,
)

_OFFSETS, _TOKENS = (PREVIOUS, NEXT, SELF), (FIRST, SEPARATORS, DUPLICATE, INDUCTION)
METRICS = (ENTROPY, EFFECTIVE_KEYS, DISTANCE, *_OFFSETS, *_TOKENS, LARGEST)
"""The metrics that tables show, in this order."""

_SPREAD = (NORMALISED_ENTROPY, CONFIDENCE)
_DISTANCE = (SIGNED_DISTANCE, DISTANCE_SPREAD, DIAGONALITY, LOCAL, FAR)
_HEAVIEST = (PUNCTUATION, RAREST, MOSTLY_PREVIOUS, MOSTLY_NEXT)
_SINKS = (SINK, UNSPENT, FROM_SEPARATORS, FROM_OTHERS)
_PATTERNS = (BLOCKS, STRIPE, *DETECT_HEAD)

MEASURED = (*METRICS, *_SPREAD, *_DISTANCE, *_HEAVIEST, *_SINKS, *_PATTERNS)
"""The metrics that are measured by default."""

EVERY = (*MEASURED, SMOOTHED_ENTROPY, SEGMENT)
"""All metrics; the last two take an additional pass over the weights."""

__all__ = ["EVERY", "MEASURED", "METRICS", "KeyContext", "Metric", "Rows", "total", "totals"]

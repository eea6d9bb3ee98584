"""Measures of heads. One measure, one file, and one line in the tuples below."""

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
from headwise.heads.metrics.repetition import (
    DUPLICATE,
    DUPLICATE_ABS,
    DUPLICATE_MUL,
    INDUCTION,
    INDUCTION_ABS,
    INDUCTION_MUL,
    PREVIOUS_ABS,
    PREVIOUS_MUL,
    STRIPE,
)
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
"""The metrics that tables show, in their order."""

MEASURED = (
    *METRICS,
    NORMALISED_ENTROPY,
    CONFIDENCE,
    SIGNED_DISTANCE,
    DISTANCE_SPREAD,
    DIAGONALITY,
    LOCAL,
    FAR,
    PUNCTUATION,
    RAREST,
    MOSTLY_PREVIOUS,
    MOSTLY_NEXT,
    SINK,
    UNSPENT,
    FROM_SEPARATORS,
    FROM_OTHERS,
    BLOCKS,
    STRIPE,
    PREVIOUS_MUL,
    DUPLICATE_MUL,
    INDUCTION_MUL,
    PREVIOUS_ABS,
    DUPLICATE_ABS,
    INDUCTION_ABS,
)
"""What is measured unless somebody asks for less or more."""

EVERY = (*MEASURED, SMOOTHED_ENTROPY, SEGMENT)
"""Every metric there is; the last of them take a pass over the weights of their own."""

__all__ = ["EVERY", "MEASURED", "METRICS", "KeyContext", "Metric", "Rows", "total", "totals"]

"""Measures of heads. One measure, one file, and one line in the tuples below."""

from headwise.heads.metrics.base import Metric, Rows, total, totals
from headwise.heads.metrics.between_separators import FROM_OTHERS, FROM_SEPARATORS
from headwise.heads.metrics.blocks import BLOCKS
from headwise.heads.metrics.confidence import CONFIDENCE
from headwise.heads.metrics.detect_head import (
    DUPLICATE_ABS,
    DUPLICATE_MUL,
    INDUCTION_ABS,
    INDUCTION_MUL,
    PREVIOUS_ABS,
    PREVIOUS_MUL,
)
from headwise.heads.metrics.diagonality import DIAGONALITY
from headwise.heads.metrics.distance import DISTANCE
from headwise.heads.metrics.distance_spread import DISTANCE_SPREAD
from headwise.heads.metrics.duplicate import DUPLICATE
from headwise.heads.metrics.effective_keys import EFFECTIVE_KEYS
from headwise.heads.metrics.entropy import ENTROPY
from headwise.heads.metrics.far import FAR
from headwise.heads.metrics.first import FIRST
from headwise.heads.metrics.following import NEXT
from headwise.heads.metrics.induction import INDUCTION
from headwise.heads.metrics.itself import SELF
from headwise.heads.metrics.largest import LARGEST
from headwise.heads.metrics.local import LOCAL
from headwise.heads.metrics.normalised_entropy import NORMALISED_ENTROPY
from headwise.heads.metrics.offer import Offer
from headwise.heads.metrics.positional import MOSTLY_NEXT, MOSTLY_PREVIOUS
from headwise.heads.metrics.previous import PREVIOUS
from headwise.heads.metrics.punctuation import PUNCTUATION
from headwise.heads.metrics.rarest import RAREST
from headwise.heads.metrics.segment import SEGMENT
from headwise.heads.metrics.separators import SEPARATORS
from headwise.heads.metrics.signed_distance import SIGNED_DISTANCE
from headwise.heads.metrics.sink import SINK
from headwise.heads.metrics.smoothed_entropy import SMOOTHED_ENTROPY
from headwise.heads.metrics.stripe import STRIPE
from headwise.heads.metrics.unspent import UNSPENT

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

__all__ = ["EVERY", "MEASURED", "METRICS", "Metric", "Offer", "Rows", "total", "totals"]

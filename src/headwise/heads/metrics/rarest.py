"""How often a head looks at the rarest word."""

from headwise.heads.metrics.base import Metric, Rows, Sums
from headwise.lang import Text

COMMON = 500
"""Texts whose rarest word is among so many of the most frequent do not count."""


def _sums(rows: Rows) -> Sums:
    tokens, rarest = rows.offer.tokens, rows.offer.rarest  # (B, Lk), (B, H or 1, R)
    if tokens is None:
        return rows.nothing
    counted = (rarest >= COMMON) & rows.offer.queries
    key = rows.most[1].flatten(1)  # (B, H R)
    looked = tokens.gather(1, key).where(rows.offer.words(key), -1).view(rows.shape)
    return (looked == rarest) & counted, counted


RAREST = Metric(
    name="rarest",
    label=Text("rarest"),
    title=Text("how often its heaviest key is the rarest word"),
    formula=Text(
        "share of queries whose argmax_j A[i,j] has the rarest token allowed, of those "
        "whose rarest is outside the top 500; the first token and special ones are no "
        "candidates"
    ),
    source=Text(
        "Voita et al. 2019, section 4.3; the number of a token stands for its rank in frequency"
    ),
    share=False,
    reads=("most", "rarest"),
    sums=_sums,
)

"""Names of heads, each with its criterion, its evidence and its corrected p-value.

A name is suggested by one half of a corpus and tested on the other, against baselines: a uniform
head, the best fixed offset, the same network with random weights. Every name is a candidate for
every head, and p-values are corrected for all candidates (Holm), so that a model without structure
is given any name at all with the stated probability.

annotations   accuracy on dependency relations, attention to named entities
evidence      the sums that names depend on
candidates    all candidate names for all heads, with their tests
assignment    the names that hold after correction; names from texts; the random copy
"""

from headwise.heads.naming.assignment import (
    UNEXPLAINED,
    Named,
    names_of_heads,
    observe,
    random_copy,
    read,
    take,
    taxonomy,
)
from headwise.heads.naming.candidates import CRITERIA, TRIED
from headwise.heads.naming.evidence import Evidence

__all__ = [
    "CRITERIA",
    "TRIED",
    "UNEXPLAINED",
    "Evidence",
    "Named",
    "names_of_heads",
    "observe",
    "random_copy",
    "read",
    "take",
    "taxonomy",
]

"""Name heads; each name has a criterion, evidence and a corrected p-value.

One half of a corpus suggests a name, and the other half tests it against three baselines: a uniform
head, the best fixed offset, and the same model with random weights. Every name is a candidate for
every head, and the p-values are corrected for all candidates (Holm). For a model without structure,
the probability that any head gets a name is therefore at most the chosen error rate.

annotations   accuracy on dependency relations, attention to named entities
evidence      the sums that names depend on
candidates    all candidate names of all heads, with their tests
assignment    the names that remain after correction; names from texts; the random copy
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

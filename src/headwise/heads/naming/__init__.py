"""From measures to names of heads, each with its criterion, its evidence and its chance of error.

A name is suggested by one half of a corpus and tested on the other, against baselines: a head that
attends to all alike, the best fixed offset, the same network with random weights. What is tried is
every name on every head, and the chances are corrected for that, so that a model without any
structure is given a name, any name, with the stated chance.

evidence     the sums that names rest on
criteria     names that rest on one share
trying       every name that is tried
trials       one claim, and the spread of the random copy
naming       all of that corrected for how much was tried
random_copy  the same network with random weights
reading      evidence and names from texts, in one call
"""

from headwise.heads.naming.assignment import TRIED, UNEXPLAINED, Named, taxonomy
from headwise.heads.naming.candidates import CRITERIA
from headwise.heads.naming.evidence import Evidence
from headwise.heads.naming.observation import names_of_heads, observe, random_copy, read, take

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

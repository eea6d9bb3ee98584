"""What a check of an article found."""

from dataclasses import dataclass

from headwise.lang import Text


@dataclass(frozen=True)
class Finding:
    """One printed number that is wrong.

    Attributes:
        line: where it stands, from 1.
        start: its offset in the article, by which findings are told apart.
        printed: as printed.
        right: the exact value at the same precision.
        what: what it is, such as "head 1, softmax, row 0, column 2".
    """

    line: int
    start: int
    printed: str
    right: str
    what: Text


@dataclass(frozen=True)
class Unmatched:
    """A printed array of ``count`` numbers that stands for nothing clear: it was not checked."""

    line: int
    text: str
    why: Text
    count: int = 1


@dataclass(frozen=True)
class Report:
    """What was found in one article.

    Attributes:
        source: the article's name.
        checked: how many printed numbers were held against the computation.
        findings: those that are wrong, in the order of the article.
        unmatched: what was not checked.
        notes: what the computation was taken to be: input, heads, weights, mask, indices.
    """

    source: str
    checked: int
    findings: tuple[Finding, ...]
    unmatched: tuple[Unmatched, ...]
    notes: tuple[Text, ...]

    @property
    def open(self) -> int:
        """How many printed numbers could not be matched."""
        return sum(each.count for each in self.unmatched)

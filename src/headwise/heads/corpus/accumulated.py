"""What a corpus run has added up so far, in two halves."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.errors import BadFile, BadValue
from headwise.heads.analysis.alignment import Alignment
from headwise.heads.corpus.validation import check_quotients, check_sums
from headwise.heads.naming import Evidence, Named, taxonomy
from headwise.heads.statistics import Statistics
from headwise.heads.statistics.accumulator import MOST_NAMES, Accumulator

COUNTS = ("documents", "tokens", "cut")
"""How many documents and tokens were measured, and how many documents were cut."""

_TALLY = re.compile(r"[^/]+/(counts|alignment|(evidence|random)/[^/]+)(?=/)")
"""What stands before the names of one tally."""


@dataclass
class Half:
    """Sums over every second document.

    Attributes:
        counts: the numbers named in `COUNTS`.
        statistics: every metric of every head.
        alignment: heads against gold pairs, over the documents that have some.
        evidence: what names of heads rest on; empty where no names are to be given.
        random: the same of a copy of the model with random weights.
    """

    counts: Accumulator = field(default_factory=Accumulator)
    statistics: Statistics = field(default_factory=Statistics)
    alignment: Alignment = field(default_factory=Alignment)
    evidence: Evidence = field(default_factory=Evidence)
    random: Evidence = field(default_factory=Evidence)

    def count(self, *, tokens: int, cut: bool) -> None:
        """Count one document."""
        for name, number in zip(COUNTS, (1, tokens, int(cut)), strict=True):
            self.counts.add(name, torch.tensor(number))

    def merge(self, other: "Half") -> None:
        """Take in the sums of other documents."""
        self.counts.merge(other.counts)
        self.statistics.merge(other.statistics)
        self.alignment.merge(other.alignment)
        self.evidence.merge(other.evidence)
        self.random.merge(other.random)

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name, each of which adds up on its own."""
        parts = (
            ("counts", self.counts.tensors()),
            ("statistics", self.statistics.tensors()),
            ("alignment", self.alignment.sums.tensors()),
            ("evidence", self.evidence.tensors()),
            ("random", self.random.tensors()),
        )
        return {f"{part}/{name}": each for part, all_ in parts for name, each in all_.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Half":
        """The half that `tensors` wrote.

        Raises:
            BadFile: if it is none.
        """
        parts = _split(tensors, ("counts", "statistics", "alignment", "evidence", "random"))
        check_sums(tensors)
        statistics = Statistics.from_tensors(parts["statistics"])
        check_quotients(parts["statistics"])
        return cls(
            Accumulator.from_tensors(parts["counts"]),
            statistics,
            Alignment(Accumulator.from_tensors(parts["alignment"])),
            Evidence.from_tensors(parts["evidence"]),
            Evidence.from_tensors(parts["random"]),
        )

    def number(self, name: str) -> int:
        """One of the counts."""
        return int(self.counts[name]) if name in self.counts else 0


@dataclass
class Gathered:
    """Everything that was added up: the documents with even numbers, and those with odd ones.

    What one half suggests can be tested on the other.
    """

    first: Half = field(default_factory=Half)
    second: Half = field(default_factory=Half)

    def half(self, number: int) -> Half:
        """The half that the document of that number, counted from 0, belongs to."""
        return self.second if number % 2 else self.first

    def whole(self) -> Half:
        """Both halves together."""
        both = Half()
        both.merge(self.first)
        both.merge(self.second)
        return both

    def names(self) -> tuple[Named, ...]:
        """The names of heads that the first half suggests and the second confirms.

        None where no evidence was gathered, or all of it lies in one half.
        """
        halves = self.first.evidence, self.second.evidence
        if not all(half.heads() for half in halves):
            return ()
        random = Evidence()
        random.merge(self.first.random)
        random.merge(self.second.random)
        return taxonomy(*halves, random)

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name, each of which adds up on its own."""
        parts = (("first", self.first.tensors()), ("second", self.second.tensors()))
        return {f"{part}/{name}": each for part, all_ in parts for name, each in all_.items()}

    def kept(self) -> dict[str, Tensor]:
        """The same to be written into a file, where it can be read again.

        Raises:
            BadValue: if they are more sums than are read.
        """
        tensors = self.tensors()
        for part, count in Counter(each[0] for each in map(_TALLY.match, tensors) if each).items():
            if count > MOST_NAMES:
                raise BadValue(
                    "save: {count} sums under {part}, and at most {most_names} are read "
                    "again; give fewer kinds of relations, or add --no-names",
                    count=count,
                    part=part,
                    most_names=MOST_NAMES,
                )
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Gathered":
        """What `tensors` wrote.

        Raises:
            BadFile: if it is something else. The message leaves the file to the caller.
        """
        parts = _split(tensors, ("first", "second"))
        return cls(Half.from_tensors(parts["first"]), Half.from_tensors(parts["second"]))


def _split(tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> dict[str, dict[str, Tensor]]:
    """The tensors of each part, under their names in it."""
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if part not in parts:
            raise _unknown(name)
        parts[part][rest] = tensor
    return parts


def _unknown(name: str) -> BadFile:
    return BadFile("expected sums that a corpus run adds up, got {name!a}", name=name[:80])

"""The sums of a corpus run, in two halves."""

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
"""The numbers of documents and tokens measured, and of documents truncated."""

_TALLY = re.compile(r"[^/]+/(counts|alignment|(evidence|random)/[^/]+)(?=/)")
"""The prefix of the names of one tally."""


@dataclass
class Half:
    """Sums over every second document.

    Attributes:
        counts: the numbers named in `COUNTS`.
        statistics: every metric of every head.
        alignment: heads against gold pairs, over the documents that have some.
        evidence: the evidence for names of heads; empty if no names are given.
        random: the same for a copy of the model with random weights.
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
        """Add the sums of other documents."""
        self.counts.merge(other.counts)
        self.statistics.merge(other.statistics)
        self.alignment.merge(other.alignment)
        self.evidence.merge(other.evidence)
        self.random.merge(other.random)

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name; each is additive."""
        parts = (
            ("counts", self.counts.tensors()),
            ("statistics", self.statistics.tensors()),
            ("alignment", self.alignment.sums.tensors()),
            ("evidence", self.evidence.tensors()),
            ("random", self.random.tensors()),
        )
        return {f"{part}/{name}": tensor for part, all_ in parts for name, tensor in all_.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Half":
        """The inverse of `tensors`.

        Raises:
            BadFile: if the names, shapes or values are invalid.
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
    """All sums: of the documents with even numbers, and of those with odd numbers.

    A hypothesis from one half can be tested on the other.
    """

    first: Half = field(default_factory=Half)
    second: Half = field(default_factory=Half)

    def half(self, number: int) -> Half:
        """The half of the document with that number, counted from 0."""
        return self.second if number % 2 else self.first

    def whole(self) -> Half:
        """Both halves together."""
        both = Half()
        both.merge(self.first)
        both.merge(self.second)
        return both

    def names(self) -> tuple[Named, ...]:
        """The names of heads that the first half suggests and the second confirms.

        Empty without evidence, or if all of it lies in one half.
        """
        halves = self.first.evidence, self.second.evidence
        if not all(half.heads() for half in halves):
            return ()
        random = Evidence()
        random.merge(self.first.random)
        random.merge(self.second.random)
        return taxonomy(*halves, random)

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name; each is additive."""
        parts = (("first", self.first.tensors()), ("second", self.second.tensors()))
        return {f"{part}/{name}": tensor for part, all_ in parts for name, tensor in all_.items()}

    def kept(self) -> dict[str, Tensor]:
        """`tensors`, checked to be few enough to be read again.

        Raises:
            BadValue: if there are more sums than are read.
        """
        tensors = self.tensors()
        for part, count in Counter(
            match[0] for match in map(_TALLY.match, tensors) if match
        ).items():
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
        """The inverse of `tensors`.

        Raises:
            BadFile: if the names, shapes or values are invalid; the caller adds the file name.
        """
        parts = _split(tensors, ("first", "second"))
        return cls(Half.from_tensors(parts["first"]), Half.from_tensors(parts["second"]))


def _split(tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> dict[str, dict[str, Tensor]]:
    """The tensors of each part, without the prefix of their names."""
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if part not in parts:
            raise _unknown(name)
        parts[part][rest] = tensor
    return parts


def _unknown(name: str) -> BadFile:
    return BadFile("expected sums that a corpus run adds up, got {name!a}", name=name[:80])

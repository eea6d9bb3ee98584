"""The sums of a corpus run in two halves, and the validation of sums read from a file."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue
from headwise.heads.analysis.alignment import NAMES as ALIGNED
from headwise.heads.analysis.alignment import Alignment
from headwise.heads.naming import Evidence, Named, taxonomy
from headwise.heads.naming.annotations import COUNTS as ENTITIES
from headwise.heads.naming.annotations import OFFSETS
from headwise.heads.naming.annotations import SUMS as GIVEN
from headwise.heads.naming.evidence import JUDGED
from headwise.heads.statistics import Statistics
from headwise.heads.sums import MOST_NAMES, Accumulator
from headwise.heads.sums import SUMS as MOMENTS
from headwise.lang import Text

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


LARGEST = 1e60
"""An upper bound of all sums and sums of squares of texts, far from overflow."""

MOST_COUNTED = 1 << 53
"""The largest count: integers up to here are exact in float64."""

Parts = Callable[[Tensor], tuple[Tensor, ...]]
"""Selects the nonnegative parts of a tensor."""


def _all(sums: Tensor) -> tuple[Tensor, ...]:
    return (sums,)


def _none(sums: Tensor) -> tuple[Tensor, ...]:
    del sums
    return ()


def _denominators(sums: Tensor) -> tuple[Tensor, ...]:
    """The denominators of a profile (4, H, places): of the head and of a uniform head."""
    return (sums[1::2],)


def _wholes(sums: Tensor) -> tuple[Tensor, ...]:
    """The nonnegative moments (..., 6): not x, which rounding may make negative, and not xy."""
    return tuple(sums[..., MOMENTS.index(name)] for name in ("texts", "y", "xx", "yy"))


def _second(sums: Tensor) -> tuple[Tensor, ...]:
    return (sums[..., 1],)


@dataclass(frozen=True)
class Form:
    """The name, shape and sign of one kind of sums.

    Attributes:
        name: a regular expression of its names in a half; its groups are layers.
        shape: its sizes; a string is the number of heads of the layer of that group. None if
            `Statistics.from_tensors` checks it.
        counted: selects the nonnegative parts.
    """

    name: str
    shape: tuple[int | str, ...] | None
    counted: Parts = _all


_LAYER = r"(?:(?:encoder|decoder|cross)\.)?L[0-9]{1,5}"
_EVIDENCE, _AT = "(?:evidence|random)", f"(?P<at>{_LAYER})"
_DIRECTION = f"{_EVIDENCE}/syntax/[^/]+/(?:to|from)-head/{_AT}"
_M, _O = len(MOMENTS), len(OFFSETS)

FORMS = (
    Form(r"counts/(?:documents|tokens|cut)", ()),
    Form(r"statistics/.*/(?:below|uniform_below|queries)", None),
    Form(r"statistics/.*/profile\..*", None, _denominators),
    Form(r"statistics/.*", None, _none),
    Form(rf"alignment/{_AT}H[0-9]{{1,5}}", (len(ALIGNED),)),
    Form(f"{_EVIDENCE}/metrics/{_AT}", (len(JUDGED), "at", _M), _wholes),
    Form(f"{_EVIDENCE}/metrics/{_AT}/uniform", (len(JUDGED), 2), _second),
    Form(f"{_EVIDENCE}/syntax/[^/]+/offsets", (_O, _M)),
    Form(_DIRECTION, ("at", _M)),
    Form(f"{_DIRECTION}/offsets", ("at", _O)),
    Form(f"{_EVIDENCE}/entities/{ENTITIES}", (4,)),
    Form(f"{_EVIDENCE}/entities/{_AT}", ("at", len(GIVEN))),
    Form(rf"{_EVIDENCE}/similarity/(?P<one>{_LAYER})\|(?P<other>{_LAYER})", ("one", "other", _M)),
)
"""Every kind of sums in a half; the first match is the kind of a name."""

_FORMS = tuple((re.compile(form.name), form) for form in FORMS)


def check_sums(tensors: Mapping[str, Tensor]) -> None:
    """Validate the sums of one half of a corpus.

    Args:
        tensors: by name, as `headwise.heads.corpus.accumulated.Half.tensors` writes them.

    Raises:
        BadFile: if one has an unknown name, a wrong dtype or shape, is not finite, or is a negative
            count; the caller adds the file name.
    """
    above = {name: tensor for name, tensor in tensors.items() if name.endswith("/above")}
    heads = {name.split("/")[1]: tensor.shape[-1] for name, tensor in above.items() if tensor.dim()}
    for name, sums in tensors.items():
        matches = ((form.fullmatch(name), kind) for form, kind in _FORMS)
        match, form = next((tensor for tensor in matches if tensor[0]), (None, None))
        if match is None or form is None:
            raise _error(name, Text("is no sum that a run adds up"))
        _check_numbers(name, sums)
        sizes = {part: heads.get(layer, 0) for part, layer in match.groupdict().items()}
        wanted = [sizes[n] if isinstance(n, str) else n for n in form.shape or ()]
        if form.shape is not None and list(sums.shape) != wanted:
            shape = list(sums.shape)
            raise _error(name, Text("has shape {shape}, not {wanted}", shape=shape, wanted=wanted))
        if any(bool((part < 0).any()) for part in form.counted(sums)):
            raise _error(name, Text("holds a negative number"))


def check_quotients(tensors: Mapping[str, Tensor]) -> None:
    """Check that no metric or profile is divided by zero.

    Args:
        tensors: as in `check_sums`, of the shapes that `Statistics.from_tensors` takes.

    Raises:
        BadFile: if a quotient is infinite.
    """
    for name, above in tensors.items():
        if name.endswith("above"):
            quotients = above / tensors[f"{name.removesuffix('above')}below"]
        elif "/profile." in name:
            quotients = above[0::2] / above[1::2]
        else:
            continue
        if bool(quotients.isinf().any()):
            raise _error(name, Text("is divided by nothing"))


def _check_numbers(name: str, sums: Tensor) -> None:
    kind = torch.int64 if name.endswith("/queries") else torch.float64
    if sums.dtype != kind:
        raise _error(name, Text("is of {sums_dtype}, not {kind}", sums_dtype=sums.dtype, kind=kind))
    if bool(sums.isnan().any()):
        raise _error(name, Text("holds NaN"))
    if bool((sums.abs() > LARGEST).any()):
        raise _error(name, Text("holds a number beyond all sums of texts"))
    if name.startswith("counts/") and not _counts(sums):
        raise _error(name, Text("is no count"))


def _counts(sums: Tensor) -> bool:
    """Whether all are integers that are exact in float64."""
    return bool((sums == sums.round()).all()) and bool((sums <= MOST_COUNTED).all())


def _error(name: str, problem: Text) -> BadFile:
    return BadFile("{name} {problem}", name=clean(name[:80]), problem=problem)

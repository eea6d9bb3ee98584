"""The sums of a corpus run in two halves, and the validation of sums read from a file."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
from headwise.heads.sums import MOST_NAMES, Accumulator, SumsByPart
from headwise.heads.sums import SUMS as MOMENTS
from headwise.lang import Text

COUNTS = ("documents", "tokens", "cut")  # measured documents and tokens; truncated documents

_ACCUMULATOR = re.compile(r"[^/]+/(counts|alignment|(evidence|random)/[^/]+)(?=/)")
"""The common prefix of the names of an accumulator."""


@dataclass
class Half(SumsByPart):
    """Sums over one half of the documents.

    ``counts`` are named in `COUNTS`. ``evidence`` and ``random`` are the evidence for names of
    heads, from the model and from a copy with random weights; empty if heads are not named.
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

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Half":
        """Invert `tensors`; raise `BadFile` if names, shapes or values are invalid."""
        statistics = cls._split(tensors)["statistics"]
        check_sums(tensors)
        half = super().from_tensors(tensors)
        check_quotients(statistics)
        return half

    def number(self, name: str) -> int:
        """Return a count by its name in `COUNTS`."""
        return int(self.counts[name]) if name in self.counts else 0


@dataclass
class Gathered(SumsByPart):
    """The sums over documents 0, 2, 4 … (``first``) and over documents 1, 3, 5 … (``second``)."""

    first: Half = field(default_factory=Half)
    second: Half = field(default_factory=Half)

    def half(self, number: int) -> Half:
        """Return the half to which a document belongs; documents are counted from 0."""
        return self.second if number % 2 else self.first

    def whole(self) -> Half:
        """Return the sums over both halves."""
        both = Half()
        both.merge(self.first)
        both.merge(self.second)
        return both

    def names(self) -> tuple[Named, ...]:
        """Return the names that the first half suggests and the second half confirms."""
        halves = self.first.evidence, self.second.evidence
        if not all(half.heads() for half in halves):
            return ()
        random = Evidence()
        random.merge(self.first.random)
        random.merge(self.second.random)
        return taxonomy(*halves, random)

    def kept(self) -> dict[str, Tensor]:
        """Return `tensors`; raise `BadValue` if there are more than can be read back."""
        tensors = self.tensors()
        matches = map(_ACCUMULATOR.match, tensors)
        for part, count in Counter(match[0] for match in matches if match).items():
            if count > MOST_NAMES:
                raise BadValue(
                    "save: {part} has {count} sums, but at most {most_names} can be read back; "
                    "use fewer kinds of relations, or --no-names",
                    count=count,
                    part=part,
                    most_names=MOST_NAMES,
                )
        return tensors


LARGEST = 1e60  # an upper bound of all sums and sums of squares, far from overflow
MOST_COUNTED = 1 << 53  # the largest count: integers up to 2**53 are exact in float64


@dataclass(frozen=True)
class Form:
    """The rule for the names, shape and sign of one kind of sums.

    Attributes:
        name: a regular expression for the names in a half; its groups are layers.
        shape: the sizes; a string stands for the number of heads of the layer in that group. None
            if `Statistics.from_tensors` checks the shape.
        nonnegative: the index of the entries that cannot be negative; None if all can be negative.
    """

    name: str
    shape: tuple[int | str, ...] | None
    nonnegative: Any = ...


_LAYER = r"(?:(?:encoder|decoder|cross)\.)?L[0-9]{1,5}"
_EVIDENCE, _AT = "(?:evidence|random)", f"(?P<at>{_LAYER})"
_DIRECTION = f"{_EVIDENCE}/syntax/[^/]+/(?:to|from)-head/{_AT}"
_M, _O = len(MOMENTS), len(OFFSETS)

_NONNEGATIVE_MOMENTS = (..., [MOMENTS.index(name) for name in ("texts", "y", "xx", "yy")])
"""The moments that cannot be negative; rounding may make x negative, and xy has any sign."""

FORMS = (
    Form(r"counts/(?:documents|tokens|cut)", ()),
    Form(r"statistics/.*/(?:below|uniform_below|queries)", None),
    Form(r"statistics/.*/profile\..*", None, slice(1, None, 2)),  # its denominators
    Form(r"statistics/.*", None, None),
    Form(rf"alignment/{_AT}H[0-9]{{1,5}}", (len(ALIGNED),)),
    Form(f"{_EVIDENCE}/metrics/{_AT}", (len(JUDGED), "at", _M), _NONNEGATIVE_MOMENTS),
    Form(f"{_EVIDENCE}/metrics/{_AT}/uniform", (len(JUDGED), 2), (..., 1)),
    Form(f"{_EVIDENCE}/syntax/[^/]+/offsets", (_O, _M)),
    Form(_DIRECTION, ("at", _M)),
    Form(f"{_DIRECTION}/offsets", ("at", _O)),
    Form(f"{_EVIDENCE}/entities/{ENTITIES}", (4,)),
    Form(f"{_EVIDENCE}/entities/{_AT}", ("at", len(GIVEN))),
    Form(rf"{_EVIDENCE}/similarity/(?P<one>{_LAYER})\|(?P<other>{_LAYER})", ("one", "other", _M)),
)
"""Every kind of sums in a half; the first form that matches a name applies."""

_FORMS = tuple((re.compile(form.name), form) for form in FORMS)


def check_sums(tensors: Mapping[str, Tensor]) -> None:
    """Validate the sums of one half of a corpus, with names as in `Half.tensors`.

    Raises `BadFile` if a sum has an unknown name, a wrong dtype or shape, or an impossible value;
    the caller adds the file name.
    """
    above = {name: tensor for name, tensor in tensors.items() if name.endswith("/above")}
    heads = {name.split("/")[1]: tensor.shape[-1] for name, tensor in above.items() if tensor.dim()}
    for name, sums in tensors.items():
        matches = ((pattern.fullmatch(name), form) for pattern, form in _FORMS)
        match, form = next((pair for pair in matches if pair[0]), (None, None))
        if match is None or form is None:
            raise _error(name, Text("is not the name of a sum of a run"))
        _check_numbers(name, sums)
        sizes = {part: heads.get(layer, 0) for part, layer in match.groupdict().items()}
        wanted = [sizes[n] if isinstance(n, str) else n for n in form.shape or ()]
        if form.shape is not None and list(sums.shape) != wanted:
            shape = list(sums.shape)
            raise _error(name, Text("has shape {shape}, not {wanted}", shape=shape, wanted=wanted))
        if form.nonnegative is None:
            continue
        part = sums[form.nonnegative] if sums.dim() else sums  # a number has no index
        if bool((part < 0).any()):
            raise _error(name, Text("contains a negative number"))


def check_quotients(tensors: Mapping[str, Tensor]) -> None:
    """Raise `BadFile` if a metric or a profile would be infinite."""
    for name, above in tensors.items():
        if name.endswith("above"):
            quotients = above / tensors[f"{name.removesuffix('above')}below"]
        elif "/profile." in name:
            quotients = above[0::2] / above[1::2]
        else:
            continue
        if bool(quotients.isinf().any()):
            raise _error(name, Text("has a denominator of 0"))


def _check_numbers(name: str, sums: Tensor) -> None:
    kind = torch.int64 if name.endswith("/queries") else torch.float64
    if sums.dtype != kind:
        raise _error(name, Text("has {sums_dtype}, not {kind}", sums_dtype=sums.dtype, kind=kind))
    if bool(sums.isnan().any()):
        raise _error(name, Text("contains NaN"))
    if bool((sums.abs() > LARGEST).any()):
        raise _error(name, Text("contains a number that is too large"))
    counts = bool(((sums == sums.round()) & (sums <= MOST_COUNTED)).all())
    if name.startswith("counts/") and not counts:
        raise _error(name, Text("is not a count"))


def _error(name: str, problem: Text) -> BadFile:
    return BadFile("{name} {problem}", name=clean(name[:80]), problem=problem)

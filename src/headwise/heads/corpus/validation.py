"""Validation of the sums of a run that are read from a file."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.analysis.alignment import NAMES as ALIGNED
from headwise.heads.naming.entities import COUNTS as ENTITIES
from headwise.heads.naming.entities import SUMS as GIVEN
from headwise.heads.naming.evidence import JUDGED
from headwise.heads.naming.relations import OFFSETS
from headwise.heads.statistics.inference import SUMS as MOMENTS
from headwise.lang import Text

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

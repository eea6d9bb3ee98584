r"""Interpret labels: which quantity, head and row. ``\text{head}_1[0]``, "第一个词".

Labels are ambiguous: "scores" may be printed before or after scaling. A label therefore gives
alternatives in order of likelihood. Indices are kept as written; `IndexBases` says whether they
count from 0 or 1.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from headwise.check.label_patterns import (
    COLUMN,
    HEAD,
    ORDINALS,
    ROW,
    WORDS,
    called,
    composite,
    plain,
    weight_named,
)

LONGEST = 300
_LIST_MARK = re.compile(r"^\W{0,4}(?:[a-h]|[ivx]{1,4}|[0-9]{1,2})\)\s")

_SYMBOL = re.compile(
    r"(?<![A-Za-zα-ω])(?P<base>[A-Za-zα-ω]+)(?P<mark>[~'′]?)"
    r"(?P<tail>(?:_(?:<[^<>]{0,30}>|[0-9]{1,3}|[A-Za-z]{1,12})|\^(?:<[^<>]{0,30}>|[A-Za-z0-9ᵀ⊤])"
    r"|\[[0-9:, ]{1,12}\]|\([0-9]{1,3}(?:, ?[0-9]{1,3}){0,2}\)|[0-9]{1,3}|[ᵀ⊤]|[~'′])*)"
)
_TAIL = re.compile(
    r"(?P<kind>[_^\[(]?)(?:<(?P<group>[^<>]*)>|(?P<bracket>[0-9:, ]+)[\])]|"
    r"(?P<one>[A-Za-z]+|[0-9]+))"
)
_SYMBOLS = {
    "Q": ("q", "Q"), "q": ("q", "Q"), "K": ("k", "K"), "k": ("k", "K"),
    "V": ("v", "V"), "v": ("v", "V"), "X": ("x",), "x": ("x",),
    "S": ("score", "scaled", "masked"), "s": ("score", "scaled", "masked"),
    "E": ("score", "scaled", "masked"), "e": ("score", "scaled", "masked"),
    "A": ("softmax",), "a": ("softmax",), "P": ("softmax",), "p": ("softmax",),
    "α": ("softmax",), "w": ("softmax",),
    "Z": ("head", "output", "concat"), "z": ("head", "output", "concat"),
    "O": ("output", "head", "concat"), "o": ("output", "head", "concat"),
    "Y": ("output",), "y": ("output",), "H": ("head", "concat"), "C": ("concat", "head"),
    "c": ("head",), "h": ("head",),
    "head": ("head",), "Head": ("head",), "HEAD": ("head",),
}  # fmt: skip


@dataclass(frozen=True)
class IndexRef:
    """An index: "ordinal" counts from 1 ("first"), "index" and "bracket" from an index base."""

    number: int
    kind: str = "index"


@dataclass(frozen=True)
class IndexBases:
    """Whether the article counts heads, rows and bracketed indices from 0 or 1."""

    head: int = 1
    row: int = 0
    bracket: int = 0


@dataclass(frozen=True)
class Hint:
    """The meaning of a label; None where it is silent.

    Attributes:
        keys: keys of `headwise.explain.trace.KEYS`, the likeliest first.
        either: an index that may be the head's or the row's, as in Q_1.
        weight: which of "q", "k", "v", "out" it is a projection of; with ``bias``, its bias.
    """

    keys: tuple[str, ...] = ()
    head: IndexRef | None = None
    row: IndexRef | None = None
    column: IndexRef | None = None
    either: IndexRef | None = None
    transposed: bool = False
    weight: tuple[str, ...] = ()
    bias: bool = False

    def filled(self, other: "Hint") -> "Hint":
        """This hint, with missing parts taken from another."""
        names = ("keys", "head", "row", "column", "either")
        changes = {name: getattr(other, name) for name in names if not getattr(self, name)}
        if self.either is not None and other.head is not None and self.row is None:
            changes["row"] = None
        return replace(self, **changes)


def combined(hints: list[Hint]) -> Hint:
    """Combine the hints of several labels of one expression."""
    whole = Hint()
    for hint in hints:
        shared = tuple(key for key in whole.keys if key in hint.keys)
        keys = shared or tuple(dict.fromkeys(whole.keys + hint.keys))
        weight, bias = whole.weight + hint.weight, whole.bias or hint.bias
        transposed = whole.transposed or hint.transposed
        filled = whole.filled(hint)
        whole = replace(filled, keys=keys, transposed=transposed, weight=weight, bias=bias)
    return whole


@lru_cache(maxsize=4096)
def read_label(text: str, *, prose: bool = False) -> Hint:
    r"""Interpret one label; in prose single letters are no symbols.

    Example:
        >>> read_label(r"\text{head}_1[0]").head, read_label("第一个词").row
        (IndexRef(number=1, kind='index'), IndexRef(number=1, kind='ordinal'))
    """
    flat = _LIST_MARK.sub("", plain(text[-LONGEST:]))
    result, bare = called(flat)
    formula = composite(flat) or result
    return _formula(flat, formula, prose) if formula else _named(bare, prose)


def _named(flat: str, prose: bool) -> Hint:
    symbols = list(_SYMBOL.finditer(flat))
    projections = [_projection(match) for match in symbols]
    weights = [hint for hint in projections if hint is not None]
    others = [m for m, hint in zip(symbols, projections, strict=True) if hint is None]
    plain_words = all(len(m["base"]) > 1 and not m["tail"] for m in others)
    if weights and not prose and (weights[0] is projections[0] or plain_words):  # W^Q = W^K
        return combined(weights)
    hint = _words(flat)
    if hint.weight:
        return hint
    result = combined([_symbol(m, flat, prose) for m in symbols])
    shared = tuple(key for key in hint.keys if key in result.keys)
    keys = shared or result.keys or hint.keys
    return replace(replace(result, keys=keys).filled(hint), keys=keys)


def _formula(flat: str, keys: tuple[str, ...], prose: bool) -> Hint:
    hint = _words(flat)
    if hint.weight:
        return hint
    result = combined([_symbol(m, flat, prose) for m in _SYMBOL.finditer(flat)])
    whole = replace(replace(result, keys=keys).filled(hint), keys=keys)
    dots = re.findall(r"q_<?([0-9]{1,2})>?[^A-Za-z0-9]{1,6}k_<?([0-9]{1,2})>?", flat)
    if keys[0] in ("score", "scaled") and dots:
        row, column = (IndexRef(int(number)) for number in dots[0])
        whole = replace(whole, row=row, column=column, either=None)
    joined = keys[0] in ("concat", "output")
    return replace(whole, transposed=False, head=None if joined else whole.head)


@lru_cache(maxsize=4096)
def read_words(text: str) -> Hint:
    """Interpret the words of a text without its symbols, which are labels of their own."""
    return _words(plain(text[-LONGEST:]), weights=False)


def _words(flat: str, *, weights: bool = True) -> Hint:
    """Interpret words; with ``weights`` those that name a projection mean its weights."""
    head, row, column = (_index(flat, patterns) for patterns in (HEAD, ROW, COLUMN))
    name = weight_named(flat) if weights else ""
    if name:
        bias = "bias" in flat or "偏置" in flat
        return Hint(head=head, row=row, column=column, weight=(name,), bias=bias)
    keys = next((keys for pattern, keys in WORDS if pattern.search(flat)), ())
    return Hint(keys, head, row, column)


def _index(flat: str, patterns: tuple[re.Pattern[str], ...]) -> IndexRef | None:
    match = next((m for pattern in patterns if (m := pattern.search(flat))), None)
    if match is None:
        return None
    word = next(group for group in match.groups() if group)
    if word.isascii() and word.isdigit():
        ordinal = "第" in match.group() and word != "0"
        return IndexRef(int(word), "ordinal" if ordinal else "index")
    return IndexRef(ORDINALS[word.lower()], "ordinal")


def _symbol(match: re.Match[str], flat: str, prose: bool) -> Hint:
    base, tail, mark = match["base"], match["tail"], match["mark"]
    keys = _SYMBOLS.get(base, ())
    after = flat[match.end() :].strip(" *$`'\"")
    is_word = after[:1].isalpha() and base not in "QKVXSZ"  # rather than a symbol, such as "A"
    if len(base) == 1 and base.islower() and not tail and not mark:
        before = flat[: match.start()].strip(" *$`'\"(")
        is_word = is_word or before[-1:].isalpha()
    if not tail and not mark and (prose or len(base) > 1 or is_word):
        return Hint()
    if base in "Ss" and (mark or "~" in tail or "'" in tail):
        keys = ("scaled", "masked")
    transposed = bool(re.search(r"[ᵀ⊤]|\^(?:<[T⊤ᵀ]>|[Tᵀ⊤])|\^<\\?top>", tail))
    hint = Hint(keys, transposed=transposed)
    for part in _TAIL.finditer(tail):
        hint = _indexed(hint, part, base)
    return hint


def _indexed(hint: Hint, part: re.Match[str], base: str) -> Hint:
    inside = part["group"] or part["bracket"] or part["one"] or ""
    kind = part["kind"]
    numbers = re.findall(r"[0-9]{1,3}", inside)
    if len(base) <= 2 and len(numbers) == 1 and len(numbers[0]) == 2 == len(inside.strip()):
        numbers = list(numbers[0])  # s_{01} has two indices
    if not numbers or (kind == "[" and inside.strip().startswith(":")):
        return hint
    if kind == "^" or (kind == "_" and inside.startswith("(")):
        return replace(hint, head=IndexRef(int(numbers[0])))
    refs = [IndexRef(int(n), "bracket" if kind == "[" else "index") for n in numbers]
    if len(refs) >= 2:
        return replace(hint, row=refs[0], column=refs[1])
    ref, is_head = refs[0], base.lower() == "head"
    if is_head and kind != "[":
        return replace(hint, head=ref)
    if kind in ("[", "("):
        return replace(hint, column=ref) if hint.row else replace(hint, row=ref)
    return replace(hint, either=ref)


_PROJECTION = {"q": "q", "k": "k", "v": "v", "o": "out", "out": "out"}


def _projection(match: re.Match[str]) -> Hint | None:
    """W^Q, W_q, W_1^Q, W_{Q,1}, WQ, b_q: which projection, and of which head."""
    base, tail = match["base"], match["tail"]
    letters = re.findall(r"[A-Za-z]+", tail)
    if len(base) > 1 and base[0] in "Wwb" and base[1:].lower() in _PROJECTION:
        letters.insert(0, base[1:])
        base = base[0]
    which = [_PROJECTION[word.lower()] for word in letters if word.lower() in _PROJECTION]
    if base not in ("W", "w", "b") or not which:
        return None
    numbers = re.findall(r"[0-9]{1,3}", tail)
    head = IndexRef(int(numbers[0])) if numbers else None
    raised = bool(re.search(r"\^<?[T⊤ᵀ]", tail))
    return Hint(head=head, weight=(which[0],), bias=base == "b", transposed=raised)

"""What a check reports: wrong numbers, and arrays that could not be checked."""

from dataclasses import dataclass

from headwise.lang import Text

WRONG, FOLLOWS, LAST_DIGIT = "wrong", "follows", "last digit"


@dataclass(frozen=True)
class Finding:
    """One wrong number: its line (from 1) and offset, its text, the right value, and what it is.

    The right value has the printed precision; an example of ``what`` is "head 1, softmax, row 0".

    Attributes:
        verdict: "wrong"; "follows", where an earlier wrong number leads to this one; or "last
            digit", where the article computed with numbers that it had rounded.
        cause: what explains it, or None.
        root: the offset of the wrong number that a group of findings starts from.
    """

    line: int
    start: int
    printed: str
    right: str
    what: Text
    verdict: str = WRONG
    cause: Text | None = None
    root: int | None = None


@dataclass(frozen=True)
class Unmatched:
    """A printed array of ``count`` numbers that was not checked, and why.

    ``labelled`` is whether its label names a quantity of the attention.
    """

    line: int
    text: str
    why: Text
    count: int = 1
    labelled: bool = False

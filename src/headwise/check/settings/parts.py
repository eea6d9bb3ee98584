"""The parts of an article: sections, examples, variants and exercises."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

_WORDS = (
    r"example|exercise|solution|problem|case|variant|part|question|answer|scenario|experiment|"
    r"version|setting|task|beispiel|aufgabe|lösung|variante|teil|fall|ejemplo|ejercicio|solución|"
    r"variante|caso|przykład|zadanie|rozwiązanie|wariant|przypadek"
)
_CHINESE = (
    r"例|示例|例子|练习|練習|习题|習題|题目|題目|"
    "解答|解|情形|情况|情況|变体|變體|例題|問題|解答例"
)
_BOLD = r"[ \t]{0,3}(?:\*\*|__)?"
_REST = r"[^\n]{0,80}"
_PSEUDO = (
    (7, rf"{_BOLD}(?:{_WORDS})\b[ \t]?[\w.]{{0,4}}(?:\*\*|__)?[ \t]?[.:(—-]{_REST}"),
    (7, rf"{_BOLD}(?:{_CHINESE})[ \t]?[\d一二三四五]{{0,2}}(?:\*\*)?[ \t]?[:、.,(：]{_REST}"),
    (7, r"[ \t]{0,3}[=\-#*~]{3,10}[ \t][^\n=]{3,80}?[ \t]?[=\-#*~]{0,80}[ \t]*$"),
    (8, r"[ \t]{0,3}(?:\*\*|__)[^*_\n]{3,90}(?:\*\*|__)[:.]?[ \t]*$"),
    (9, r"[ \t]{0,3}\([a-h]\)[ \t][^\n]{0,80}"),
    (9, r"[ \t]{0,8}#[ \t][^\n]{3,100}$"),
)  # fmt: skip
"""How a part that is no section begins on its line: its level and its pattern."""
_PATTERN = re.compile(
    "|".join(f"(?P<p{i}>^{source})" for i, (_, source) in enumerate(_PSEUDO)),
    re.IGNORECASE | re.MULTILINE,
)

VARIANT = re.compile(
    rf"\b(?:{_WORDS})\b|^\W{{0,4}}\(?[a-h]\)|\bwith(?:out)?\b|\bnow\b|\bagain\b|multi-?head|cross-?att|"
    r"\b(?:un)?masked\b|encoder|decoder|compar|\bohne\b|\bmit\b|\bsin\b|\bcon\b|\bbez\b|"
    rf"(?:{_CHINESE})|版|不加|加上|对比|對比|另一",
    re.IGNORECASE,
)
"""A title with one of these starts another computation, rather than the next step of the last."""


@dataclass(frozen=True)
class ArticlePart:
    """One part: its title from ``start`` to ``body``, its own text up to ``end``, its parent."""

    start: int
    body: int
    end: int
    level: int
    title: str
    parent: int | None

    @property
    def is_variant(self) -> bool:
        """Whether it starts another computation."""
        return bool(VARIANT.search(self.title))


def read_parts(text: str, headings: Iterable[tuple[int, int, int]]) -> list[ArticlePart]:
    r"""The parts of an article in order; ``headings`` are (level, start, end) of its sections.

    Example:
        >>> [part.title for part in read_parts("One.\nExample 2. X = 3", [])]
        ['', 'Example 2. X = 3']
    """
    marks = sorted({(start, end, level) for level, start, end in headings})
    taken = [start for start, _, _ in marks]
    for match in _PATTERN.finditer(text):
        at = bisect_right(taken, match.end())
        if at and marks[at - 1][1] > match.start():
            continue
        level = next(level for i, (level, _) in enumerate(_PSEUDO) if match[f"p{i}"])
        marks.append((match.start(), _end_of_title(match), level))
    marks.sort()
    result = [ArticlePart(0, 0, marks[0][0] if marks else len(text), 0, "", None)]
    open_parts = [0]
    for (start, body, level), after in zip(marks, [*marks[1:], None], strict=False):
        while len(open_parts) > 1 and result[open_parts[-1]].level >= level:
            open_parts.pop()
        end = len(text) if after is None else after[0]
        title = text[start:body].strip()
        result.append(ArticlePart(start, min(body, end), end, level, title, open_parts[-1]))
        open_parts.append(len(result) - 1)
    return result


def _end_of_title(match: re.Match[str]) -> int:
    """A title ends with its first sentence."""
    stop = re.search(r"[.:。:]\s(?!\d)", match.group()[12:])
    return match.end() if stop is None else match.start() + 12 + stop.start()


def part_at(parts: list[ArticlePart], offset: int) -> int:
    """The part that an offset is in."""
    return bisect_right([part.start for part in parts], offset) - 1

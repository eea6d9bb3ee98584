"""What an article says of its mask and of its scale, and where it says it."""

import re
from bisect import bisect_right
from dataclasses import dataclass

from headwise.check.settings.parts import ArticlePart

_NOT = (
    r"(?:without|no|not|skip\w{0,4}|ignor\w{0,3}|omit\w{0,4}|leav\w{1,3}\sout|drop\w{0,4}|"
    r"remov\w{0,3}|forget\w{0,4}|don['’]t|before|prior\sto|ohne|keine?n?|nicht|sin|bez|nie)"
)
_MASK = (
    r"causal\w{0,3}|mask(?!ed[\s-]language)\w{0,4}|maskier\w{0,3}|kausal\w{0,3}|enmascar\w{0,4}|"
    r"máscar\w{0,3}|mask[aąięeo]\w{0,4}|przyczynow\w{0,3}|look-?ahead|auto-?regressi\w{0,4}|"
    r"lower[- ]triang\w{0,6}|tril\b|future\s(?:tokens?|positions?|keys?|words?)"
)
_SCALE = r"scal\w{0,4}|skalier\w{0,4}|escal\w{0,4}|skalow\w{0,4}|divi\w{0,5}"
_CJK_MASK = r"因果|掩码|掩碼|遮罩|遮蔽|自回归|自迴歸|下三角|マスク"
_CJK_NOT = r"不|没有?|沒有?|无|無|未|去掉|省略|忽略|跳过|跳過"
_FLAGS = re.IGNORECASE

MASK_OFF = re.compile(
    rf"\b{_NOT}[\s-]?(?:\w{{1,10}}\s){{0,2}}(?:{_MASK})|\b(?:un|non)-?mask\w{{0,4}}\b|"
    r"\bnon-?causal\b|bi-?directional|"
    rf"(?:{_CJK_NOT})(?:加|用|使用|做|施加)?(?:任何)?(?:{_CJK_MASK})|マスク(?:なし|を使わ|は使わ)",
    _FLAGS,
)
MASK_ON = re.compile(rf"\b(?:{_MASK})|{_CJK_MASK}", _FLAGS)
OTHER_MASK = re.compile(
    r"padd(?:ing|ed)|\[?<?\bPAD\b|sliding|local|window|block|填充|滑动|窗口|局部|パディング|relleno|wypełn",
    _FLAGS,
)
SCALE_OFF = re.compile(
    rf"\b(?:without|no|not|skip\w{{0,4}}|ignor\w{{0,3}}|omit\w{{0,4}}|leav\w{{1,3}}\sout|drop\w{{0,4}}|"
    rf"don['’]t|ohne|keine?n?|nicht|sin|bez|nie)\s(?:\w{{1,10}}\s){{0,2}}(?:{_SCALE})|"
    r"\bunscaled\s(?:dot|att|vari|vers|exam|case)|"
    r"\bunscaled\W{0,3}$|scal\w{1,4}\s(?:factor\s)?(?:is|=|of)\s1(?![.\d])|"
    rf"(?:{_CJK_NOT})(?:做|作|进行|進行|再|用|考虑|考慮)?(?:缩放|縮放|除以|スケーリング)|"
    r"スケーリング(?:なし|を行わ|は行わ|しな)",
    _FLAGS,
)
SCALE_ON = re.compile(
    rf"\b(?:{_SCALE})|√|\\sqrt|\bsqrt|缩放|縮放|除以|スケール|スケーリング", _FLAGS
)
_WEAK = re.compile(
    r"\b(?:would|could|might|later|usually|typically|in practice|real|optional\w{0,2}|"
    r"next\s(?:section|chapter|post|part|time)|gpt\S{0,3}|bert|llama|in a decoder|"
    r"decoders? (?:use|need)|if (?:we|you|a|the)|"
    r"instead of|unlike|such as|e\.g\.|för|would)\b|如果|实际|實際|通常|后面|下一|可以|例如",
    _FLAGS,
)
_STOP = re.compile(r"[.!?。!?\n](?=\s|$)|[;；]|\n")


@dataclass(frozen=True)
class Mention:
    """A choice that is made at an offset: True for on; ``weak`` where it may be another's."""

    start: int
    on: bool
    weak: bool
    other: bool = False


@dataclass(frozen=True)
class Choice:
    """What may be in force at a place: whether a mask, or the scale, may be on, and may be off."""

    on: bool
    off: bool
    stated: bool


def mentions(text: str, on: re.Pattern[str], off: re.Pattern[str]) -> list[Mention]:
    """Every mention of a choice, in order; within one sentence a negation decides.

    Example:
        >>> [m.on for m in mentions("Causal. Then without a mask.", MASK_ON, MASK_OFF)]
        [True, False]
    """
    stops = [match.end() for match in _STOP.finditer(text)]
    result: dict[int, Mention] = {}
    for match in on.finditer(text):
        at = bisect_right(stops, match.start())
        start = stops[at - 1] if at else 0
        end = stops[at] if at < len(stops) else len(text)
        if start in result:
            continue
        sentence = text[max(start, match.start() - 300) : min(end, match.end() + 300)]
        weak = bool(_WEAK.search(sentence))
        other = bool(OTHER_MASK.search(sentence))
        result[start] = Mention(match.start(), not off.search(sentence), weak, other)
    for match in off.finditer(text):
        at = bisect_right(stops, match.start())
        start = stops[at - 1] if at else 0
        result.setdefault(start, Mention(match.start(), False, False))
    return sorted(result.values(), key=lambda mention: mention.start)


class Choices:
    """The mentions of one choice, by part; a part takes over what the part before it ended with."""

    def __init__(self, parts: list[ArticlePart], found: list[Mention], *, usual: bool) -> None:
        self.parts, self.usual = parts, usual
        self.mentioned, self.open = bool(found), False
        self.by_part: dict[int, list[Mention]] = {}
        starts = [part.start for part in parts]
        for mention in found:
            self.by_part.setdefault(bisect_right(starts, mention.start) - 1, []).append(mention)
        self.inherited: list[Choice] = []
        last_child: dict[int, int] = {}
        for at, part in enumerate(parts):
            if part.parent is None:
                self.inherited.append(Choice(usual, not usual, False))
            else:
                self.inherited.append(self._inherited(at, part.parent, last_child))
                last_child[part.parent] = at
        self.last_child = last_child

    def at(self, part: int, offset: int) -> Choice:
        """What is in force at an offset of a part."""
        if self.open:
            return Choice(True, True, False)
        own = [m for m in self.by_part.get(part, ()) if m.start < offset]
        strong = [m for m in own if not m.weak]
        if strong:
            on = strong[-1].on
            both = any(m.on != on for m in strong) and self.usual
            return Choice(on or both, not on or both, True)
        return Choice(True, True, False) if own else self.inherited[part]

    def _inherited(self, part: int, parent: int, last_child: dict[int, int]) -> Choice:
        """The choice that the text before a part leaves in force."""
        above = self.at(parent, self.parts[part].start)
        before = last_child.get(parent)
        if before is None:
            return above
        last = before
        while last in last_child:
            last = last_child[last]
        end = self.at(last, self.parts[last].end)
        body = self.parts[before].body
        titled = any(m.start < body and not m.weak for m in self.by_part.get(before, ()))
        if end != above and (self.parts[part].is_variant or titled):
            return Choice(end.on or above.on, end.off or above.off, False)
        return end

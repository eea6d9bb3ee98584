"""Sizes that an article states: d_model, d_k and the number of heads."""

import re
from dataclasses import dataclass, replace
from itertools import islice

from headwise.errors import BadFile

_COUNTS = {
    "one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8,
    "ein": 1, "eine": 1, "einem": 1, "einen": 1, "einer": 1, "zwei": 2, "drei": 3, "vier": 4,
    "un": 1, "una": 1, "dos": 2, "tres": 3, "cuatro": 4,
    "jedna": 1, "dwie": 2, "trzy": 3, "cztery": 4,
    "一": 1, "单": 1, "單": 1, "两": 2, "兩": 2, "二": 2, "双": 2, "雙": 2,
    "三": 3, "四": 4, "八": 8,
}  # fmt: skip
_IS = r"[\s}$`*)]{0,6}(?:=|:|为|是|is|of)[\s$`*{]{0,4}"
_MODEL = re.compile(
    rf"(?:d_?\{{?(?:\\(?:text|mathrm)\{{)?(?:model|emb\w*)|embed_dim|embedding dim\w*|"
    rf"d_?m|模型维度|嵌入维度){_IS}([0-9]{{1,4}})(?!\.?[0-9])"
)
_KEY = re.compile(
    rf"(?:(?<![A-Za-z])d_?\{{?k|head_dim|head dim\w*|每个?头的?维度){_IS}([0-9]{{1,4}})(?!\.?[0-9])"
)
_HEADS = (
    re.compile(
        r"(?:(?<![A-Za-z])(?:[hH]|n_?\{?heads?|num_?heads?|nheads?|n_h|heads|number of heads)|"
        rf"头数|头的数量|头的个数){_IS}([0-9]{{1,3}}|two|three|four|eight)(?!\.?[0-9])"
    ),
    re.compile(
        r"(?<![A-Za-z0-9.])([0-9]{1,3}|one|single|two|three|four|eight|ein(?:e[mnr]?)?|zwei|drei|vier|"
        r"una?|dos|tres|cuatro|jedna|dwie|trzy|cztery)[\s-]+(?:attention\s+)?"
        r"(?:heads?|Köpfen?|Kopf|cabezas?|głow\w|głów)\b(?!\s[0-9])",
        re.I,
    ),
    re.compile(r"(?<![0-9.])([0-9]{1,3}|[一二三四八])\s?(?:つの)?ヘッド"),
    re.compile(
        r"(?<!第)(?<![0-9.])([0-9]{1,3}\s?[个個]|[一两兩二三四八]\s?[个個]|[单單双雙])\s?(?:注意力)?[头頭]"
    ),
)


@dataclass(frozen=True)
class StatedSize:
    """A stated size and its place; ``rank`` is 2 where it is another model's."""

    value: int
    line: int
    start: int
    text: str
    rank: int = 0


@dataclass(frozen=True)
class StatedSizes:
    """Stated sizes, the likeliest first."""

    model: tuple[StatedSize, ...]
    key: tuple[StatedSize, ...]
    count: tuple[StatedSize, ...]

    def heads(self, width: int | None, near: int = 0) -> int | None:
        """The stated number of heads for an input of this width; None for any width.

        A count that fits the width and stands nearest to an offset comes first; without a count
        it follows from d_model and d_k.
        """
        if self.count:
            fitting = [s for s in self.count if width is not None and width % s.value == 0]
            own = [s for s in fitting if s.rank == fitting[0].rank]
            if own:
                before = [s for s in own if s.start <= near]
                return max(before, key=lambda s: s.start, default=own[0]).value
            return self.count[0].value if self.count[0].rank < 2 else None
        if self.model and self.key and self.key[0].value:
            whole, rest = divmod(self.model[0].value, self.key[0].value)
            return whole if not rest else None
        return None


def read_sizes(text: str) -> StatedSizes:
    """Find the sizes that an article states.

    Raises:
        BadFile: if it states two numbers of heads that differ, or 0 heads.

    Example:
        >>> read_sizes("GPT-3 has 96 heads; here we use 2 heads, W^Q = I").heads(4)
        2
    """
    counts = [number for pattern in _HEADS for number in _all(pattern, text)]
    counts = [replace(number, rank=_foreignness(number, text)) for number in counts]
    counts.sort(key=lambda number: number.rank)
    if counts and counts[0].value < 1:
        raise BadFile(
            "heads: line {line} states {value}; expected at least 1; give --heads N",
            line=counts[0].line,
            value=counts[0].value,
        )
    return StatedSizes(
        model=tuple(number for number in _all(_MODEL, text) if _foreignness(number, text) < 2),
        key=tuple(number for number in _all(_KEY, text) if _foreignness(number, text) < 2),
        count=tuple(number for number in counts if number.value >= 1),
    )


_MOST_STATED = 50

_FOREIGN = re.compile(
    r"\b(?:GPT|BERT|RoBERTa|T5|LLaMA|Llama|ViT|CLIP|Mistral|Qwen|Gemma|DeepSeek|PaLM|Falcon|"
    r"BLOOM|OPT|Claude|Whisper)(?![a-z])|\bVaswani|Transformer[- ](?:base|big)|"
    r"\b(?:original|real|large|production|typical|actual)\b|\bthe paper\b|in practice|"
    r"\w*(?:BERT|GPT)\w*|BETO|\bmodels?\s(?:like|such|use|with|has|have)|\bmodelos?\b|modelu\b|"
    r"\bModelle?n?\b|\blayers?\b|\bwould\b|\busually\b|\bparameters\b|"
    r"原(?:始)?论文|论文中|实际(?:中|模型|应用)|實際|大模型|真实|真實|层|層|参数|參數"
)
_OURS = re.compile(
    r"\b(?:we|our|us|here|toy|this example|let)\b|我们|本例|本文|这里|此处|示例|例子|例如", re.I
)


def _all(pattern: re.Pattern[str], text: str) -> list[StatedSize]:
    result = []
    for match in islice(pattern.finditer(text), _MOST_STATED):
        word = match[1].strip("个個 ").lower()
        value = int(word) if word.isascii() and word.isdigit() else _COUNTS[word]
        line = text.count("\n", 0, match.start(1)) + 1
        result.append(StatedSize(value, line, match.start(1), match[1].strip()))
    return result


def _clause(stated: StatedSize, text: str) -> str:
    ends = r"[.!?;:()。！？；\n](?![0-9])|, (?:but|while|and)\b"
    before = re.split(ends, text[max(0, stated.start - 200) : stated.start])
    after = re.split(r"[.!?;,()。！？；\n](?![0-9])", text[stated.start : stated.start + 100])
    return before[-1] + after[0]


def _foreignness(stated: StatedSize, text: str) -> int:
    """0 for a size of this example, 2 for one of another model, else 1."""
    clause = _clause(stated, text)
    if _OURS.search(clause):
        return 0
    return 2 if _FOREIGN.search(clause) else 1

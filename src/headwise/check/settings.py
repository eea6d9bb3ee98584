"""The sizes and choices that an article states in passing: d_model, d_k, heads, mask, scale."""

import re
from dataclasses import dataclass
from itertools import islice

from headwise.errors import BadFile

_COUNTS = {
    "one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8,
    "一": 1, "单": 1, "两": 2, "二": 2, "双": 2, "三": 3, "四": 4, "八": 8,
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
        r"(?<![A-Za-z0-9.])([0-9]{1,3}|one|single|two|three|four|eight)[\s-]+(?:attention\s+)?heads?\b(?!\s[0-9])",
        re.I,
    ),
    re.compile(r"(?<!第)(?<![0-9.])([0-9]{1,3}\s?个|[一两二三四八]\s?个|[单双])\s?(?:注意力)?头"),
)
_IDENTITY = re.compile(
    r"\bidentity\b|单位(?:矩)?阵|恒等|W[^=\n]{0,60}=\s?\$?(?:\\math\w{1,3}\{)?I(?![A-Za-z])|eye\(",
    re.I,
)
_MASKED = re.compile(r"causal|\bmask|因果|掩码|自回归|下三角|look-ahead|autoregressive", re.I)
_UNSCALED = re.compile(
    r"(?:without|no|not|skip\w{0,4}|ignor\w{0,3}|omit\w{0,4}|leave out)\s(?:the\s|any\s)?"
    r"(?:\w{1,12}\s)?scal|(?:不|未|省略|忽略|没有)(?:做|作|进行)?缩放",
    re.I,
)


@dataclass(frozen=True)
class Stated:
    """A size and where it is stated."""

    value: int
    line: int
    start: int
    text: str


@dataclass(frozen=True)
class Settings:
    """What is stated, the likeliest of the example first; () or False where nothing is."""

    model: tuple[Stated, ...]
    key: tuple[Stated, ...]
    count: tuple[Stated, ...]
    identity: bool
    masked: bool
    unscaled: bool

    def heads(self, width: int | None) -> int | None:
        """How many heads there are said to be for an input of this width, None for any.

        A count that fits the width comes before one that does not; without one it follows from
        d_model and d_k.
        """
        if self.count:
            fitting = (s.value for s in self.count if width is not None and width % s.value == 0)
            return next(fitting, self.count[0].value)
        if self.model and self.key and self.key[0].value:
            whole, rest = divmod(self.model[0].value, self.key[0].value)
            return whole if not rest else None
        return None


def read_settings(text: str) -> Settings:
    """What an article states about sizes.

    Raises:
        BadFile: if it states two numbers of heads that differ, or 0 heads.

    Example:
        >>> read_settings("GPT-3 has 96 heads; here we use 2 heads, W^Q = I").heads(4)
        2
    """
    found = [each for pattern in _HEADS for each in _all(pattern, text)]
    counts = sorted(found, key=lambda each: _likely(each, text))
    count = counts[0] if counts else None
    if count is not None and count.value < 1:
        raise BadFile(
            "heads: line {line} states {value}; expected at least 1; give --heads N",
            line=count.line,
            value=count.value,
        )
    return Settings(
        model=tuple(each for each in _all(_MODEL, text) if not _foreign(each, text)),
        key=tuple(each for each in _all(_KEY, text) if not _foreign(each, text)),
        count=tuple(each for each in counts if each.value >= 1),
        identity=bool(_IDENTITY.search(text)),
        masked=bool(_MASKED.search(text)),
        unscaled=bool(_UNSCALED.search(text)),
    )


_MOST_STATED = 50

_FOREIGN = re.compile(
    r"\b(?:GPT|BERT|RoBERTa|T5|LLaMA|Llama|ViT|CLIP|Mistral|Qwen|Gemma|DeepSeek|PaLM|Falcon|"
    r"BLOOM|OPT|Claude|Whisper)(?![a-z])|\bVaswani|Transformer[- ](?:base|big)|"
    r"\b(?:original|real|large|production|typical|actual)\b|\bthe paper\b|in practice|"
    r"原(?:始)?论文|论文中|实际(?:中|模型|应用)|大模型|真实"
)
_OURS = re.compile(
    r"\b(?:we|our|us|here|toy|this example|let)\b|我们|本例|本文|这里|此处|示例|例子|例如", re.I
)


def _all(pattern: re.Pattern[str], text: str) -> list[Stated]:
    found = []
    for match in islice(pattern.finditer(text), _MOST_STATED):
        word = match[1].replace("个", "").strip().lower()
        value = int(word) if word.isascii() and word.isdigit() else _COUNTS[word]
        line = text.count("\n", 0, match.start(1)) + 1
        found.append(Stated(value, line, match.start(1), match[1].strip()))
    return found


def _clause(stated: Stated, text: str) -> str:
    """What stands before a size in its clause, and up to the clause's end after it."""
    before = re.split(
        r"[.!?;:。！？；\n](?![0-9])|, (?:but|while|and)\b", text[: stated.start][-200:]
    )
    after = re.split(r"[.!?;,。！？；\n](?![0-9])", text[stated.start :][:100])
    return before[-1] + after[0]


def _foreign(stated: Stated, text: str) -> bool:
    """Whether a size is that of another model, named in the same clause."""
    clause = _clause(stated, text)
    return bool(_FOREIGN.search(clause)) and not _OURS.search(clause)


def _likely(stated: Stated, text: str) -> int:
    """0 where the clause says it is of this example, 2 where it is of another model, else 1."""
    if _foreign(stated, text):
        return 2
    return 0 if _OURS.search(_clause(stated, text)) else 1

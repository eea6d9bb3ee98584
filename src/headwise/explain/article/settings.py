"""The sizes and choices that an article states in passing: d_model, d_k, heads, mask, scale."""

import re
from dataclasses import dataclass

from headwise.errors import BadFile

_COUNTS = {
    "one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8,
    "一": 1, "单": 1, "两": 2, "二": 2, "双": 2, "三": 3, "四": 4, "八": 8,
}  # fmt: skip
_IS = r"[\s}$`*)]{0,6}(?:=|:|为|是|is|of)[\s$`*{]{0,4}"
_MODEL = re.compile(
    rf"(?:d_?\{{?(?:\\(?:text|mathrm)\{{)?(?:model|emb\w*)|embed_dim|embedding dim\w*|"
    rf"d_?m|模型维度|嵌入维度){_IS}([0-9]{{1,4}})(?![.0-9])"
)
_KEY = re.compile(
    rf"(?:(?<![A-Za-z])d_?\{{?k|head_dim|head dim\w*|每个?头的?维度){_IS}([0-9]{{1,4}})(?![.0-9])"
)
_HEADS = (
    re.compile(
        r"(?:(?<![A-Za-z])(?:[hH]|n_?\{?heads?|num_?heads?|nheads?|n_h|heads|number of heads)|"
        rf"头数|头的数量|头的个数){_IS}([0-9]{{1,3}}|two|three|four|eight)(?![.0-9])"
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
    """What is stated; None or False where nothing is."""

    model: Stated | None
    key: Stated | None
    count: Stated | None
    identity: bool
    masked: bool
    unscaled: bool

    @property
    def heads(self) -> int | None:
        """How many heads there are said to be, or follow from d_model and d_k."""
        if self.count is not None:
            return self.count.value
        if self.model is not None and self.key is not None and self.key.value:
            whole, rest = divmod(self.model.value, self.key.value)
            return whole if not rest else None
        return None


def read_settings(text: str) -> Settings:
    """What an article states about sizes.

    Raises:
        BadFile: if it states two numbers of heads that differ, or 0 heads.

    Example:
        >>> read_settings("d_model = 4 with 2 heads, W^Q = I").heads
        2
    """
    found = (first for pattern in _HEADS if (first := _first(pattern, text)) is not None)
    count = next(found, None)
    if count is not None and count.value < 1:
        raise BadFile(
            f"heads: line {count.line} states {count.value}; expected at least 1; give --heads N",
            f"heads：第 {count.line} 行为 {count.value}；应至少为 1；请用 --heads N 给出",
        )
    return Settings(
        model=_first(_MODEL, text),
        key=_first(_KEY, text),
        count=count,
        identity=bool(_IDENTITY.search(text)),
        masked=bool(_MASKED.search(text)),
        unscaled=bool(_UNSCALED.search(text)),
    )


def _first(pattern: re.Pattern[str], text: str) -> Stated | None:
    match = pattern.search(text)
    if match is None:
        return None
    word = match[1].replace("个", "").strip().lower()
    value = int(word) if word.isascii() and word.isdigit() else _COUNTS[word]
    return Stated(value, text.count("\n", 0, match.start(1)) + 1, match.start(1), match[1].strip())

"""What a text says of its projections: the identity, weights to come, tokens as columns."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class StatedFacts:
    """What the text says of its projections: the identity, weights to come, tokens as columns."""

    identity: bool
    announced: bool
    named: frozenset[str]
    output_announced: bool
    columns: bool

    @classmethod
    def of(cls, text: str) -> "StatedFacts":
        """Read them from an article."""
        return cls(
            identity=bool(_IDENTITY.search(text)),
            announced=bool(_ANNOUNCED.search(text)),
            named=frozenset(name.lower() for name in _NAMED.findall(text)),
            output_announced=bool(_OUTPUT.search(text)),
            columns=bool(_COLUMNS.search(text)),
        )


_IDENTITY = re.compile(
    r"\bidentity\b|单位(?:矩)?阵|單位矩陣|恒等|恆等|W[^=\n]{0,60}=\s?\$?(?:\\math\w{1,3}\{)?I(?![A-Za-z])|"
    r"eye\(|\b(?:no|without|skip\w{0,4})\s(?:(?:the|any|learned|trainable)\s)?(?:linear\s)?"
    r"(?:projections?|weights?\b|weight matri)|Q\s?=\s?K\s?=\s?V\s?=\s?X|"
    r"不做投影|没有投影|不使用投影|省略投影|Einheitsmatri|identidad|jednostkow|単位行列",
    re.IGNORECASE,
)
_W = (
    r"(?<![A-Za-z])W(?:\s?[_^]\s?\{?\(?[\dhi,]{1,3}\)?\}?)?\s?(?:[_^]\s?)?"
    r"(?:\{|\\[a-z]{4,6}\{)?\s?\(?"
)
"""The letter of a weight matrix, with the index of a head, up to the letter that says which."""
_NAMED = re.compile(_W + r"([QKVqkv])(?![a-z])")
_ANNOUNCED = re.compile(
    _W + r"[QKVqkv](?![a-z])|\bweight matri|(?<!no )\bprojection matri|"
    r"nn\.Linear|"
    r"\b(?:learned|trained|random\w{0,2})\s(?:projections?|weights?)|权重矩阵|權重矩陣|投影矩阵|投影矩陣|"
    r"Gewichtsmatri|matri\w{1,4} de pesos|macierz\w{0,2} wag|重み行列",
    re.IGNORECASE,
)
_OUTPUT = re.compile(_W + r"(?:O|o|out)(?![a-z])|output projection|输出投影")
_COLUMNS = re.compile(
    r"\bcolumns?\b|Spalte|columna|kolumn|列向量|每一?列|按列|列ベクトル|W_?\w?\s?(?:·|@)?\s?X\b",
    re.IGNORECASE,
)

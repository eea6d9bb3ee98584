"""The articles in `tests/data/articles`, and functions that insert an error into them.

All articles are correct: their numbers were computed in float64 by plain NumPy formulas and rounded
to the printed precision.
"""

import re
from pathlib import Path

from headwise.check import read_article
from headwise.check.article_lines import normalized

FOLDER = Path(__file__).parents[1] / "data" / "articles"
ARTICLES = sorted(path for path in FOLDER.iterdir() if path.is_file())
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "worked_example.zh.md"

INPUTS = {
    "aligned.zh.md": ((3, 7),),
    "causal_mask.zh.md": ((6, 11),),
    "exponentials.en.md": ((3, 6),),
    "from_scratch.en.md": ((5, 9), (13, 38)),
    "given_qkv.en.md": ((5, 7),),
    "html_tables.en.html": ((5, 9),),
    "in_words.en.md": ((3, 3),),
    "latex_document.en.tex": ((5, 9),),
    "linear_layers.en.txt": ((3, 7),),
    "no_scaling.en.md": ((5, 5),),
    "numpy_prints.en.md": ((5, 12),),
    "one_table.zh.md": ((3, 3),),
    "per_head_weights.zh.md": ((5, 10), (17, 34), (84, 101), (163, 170)),
    "percent_table.en.md": ((11, 11),),
    "row_by_row.zh.md": ((5, 11),),
    "script_output.zh.md": ((3, 7),),
    "three_words.en.txt": ((3, 7),),
    "tiny_numbers.en.md": ((3, 5),),
    "token_rows.zh.md": ((3, 7),),
    "two_heads_weights.en.md": ((5, 43),),
}
"""The lines of each article in which the input and the weights are given, first and last."""

_DECIMAL = re.compile(r"(?<![\d.])\d*\.\d+")


def text_of(path: Path) -> str:
    """An article with full-width marks made plain, so that offsets are those of the report."""
    return normalized(read_article(path))


def computed(path: Path) -> list[re.Match[str]]:
    """Every decimal of an article that is not given but computed."""
    text = text_of(path)
    given = INPUTS[path.name]
    return [
        match
        for match in _DECIMAL.finditer(text)
        if not any(first <= line_of(text, match) <= last for first, last in given)
    ]


def line_of(text: str, match: re.Match[str]) -> int:
    """The line a match is in, from 1."""
    return text.count("\n", 0, match.start()) + 1


def planted(text: str, match: re.Match[str]) -> str:
    """The article with the last digit of one number one off."""
    last = match.end() - 1
    digit = int(text[last])
    return text[:last] + str(digit + 1 if digit < 9 else 8) + text[last + 1 :]

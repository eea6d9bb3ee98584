"""The code of docs/migration.md runs, and `before` and `after` of each example agree."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.verify.oracle.tolerance import accept

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
BLOCKS = re.findall(r"```python ?(\w*)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
START = BLOCKS[0][1]
PAIRS = list(zip(BLOCKS[1::2], BLOCKS[2::2], strict=True))


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102 - our own text


def test_there_are_five_pairs_in_both_languages() -> None:
    assert [kind for kind, _ in BLOCKS] == ["", *["before", "after"] * 5]
    sections = PAGE.read_text("utf-8").split("\n## ")[1:]
    assert len(sections) == 5
    assert all(re.search(r"[\u4e00-\u9fff]", section) for section in sections)


@pytest.mark.parametrize("number", range(5))
def test_after_gives_what_before_gave(number: int) -> None:
    (_, first), (_, second) = PAIRS[number]
    names: dict[str, Any] = {}
    run(START, names)
    run(first, names)
    x: Tensor = names["x"]
    with torch.no_grad():
        for weight in names["model"].parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)  # fresh biases are all 0
        exact = copy.deepcopy(names["model"]).double()
        plain = names["before"](names["model"], x)
        right = names["before"](exact, x.double() if x.is_floating_point() else x)
        run(second, names)
        accept(names["after"](x), plain, right)
    if "done" in names:
        assert names["done"].changed
        assert not names["done"].left

"""The pictures of the decision records are up to date, and the tests that they name exist."""

import ast
import re

import pytest
import torch

import headwise as hw
from docs.draw import BLOCK, RECORDS, drawn
from docs.pictures import PICTURES

FILES = sorted(RECORDS.glob("0*.md"))
ROOT = RECORDS.parent.parent
HELD = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize(("stem", "draw"), PICTURES, ids=[stem for stem, _ in PICTURES])
def test_the_picture_is_what_the_code_draws(stem, draw):
    text = (RECORDS / f"{stem}.md").read_text(encoding="utf-8")
    assert text == drawn(text, draw()), f"{stem} shows an old picture: run `make docs`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_record_has_its_parts_and_its_test(path):
    text = path.read_text(encoding="utf-8")
    for part in ("## Context", "## Decision", "## Consequences", "## Tests", "## 中文"):
        assert part in text
    assert bool(BLOCK.search(text)) == (path.stem in dict(PICTURES))
    named = HELD.search(text)
    if named is None:
        assert "Nothing yet" in text
        return
    tree = ast.parse((ROOT / named[1]).read_text(encoding="utf-8"))
    assert named[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_index_lists_every_record():
    index = (RECORDS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\((0\d+[\w-]+\.md)\)", index) == [path.name for path in FILES]


@pytest.mark.parametrize("chunks", [(3, 2), (1, 1, 1, 1, 1), (4, 1)])
def test_chunks_see_what_the_whole_sees(chunks):
    """Case 20: a cache, then chunks of new tokens, equals the whole pass."""
    q, k, v = (torch.randn(1, 2, 5, 3) for _ in range(3))
    mask = hw.causal() & hw.window(2, 0)
    whole = hw.attend(q, k, v, mask=mask, need=["weights"]).weights
    seen = 0
    for size in chunks:
        rows = slice(seen, seen + size)
        seen += size
        part = hw.attend(q[:, :, rows], k[:, :, :seen], v[:, :, :seen], mask=mask, need=["weights"])
        assert torch.equal(part.weights > 0, whole[:, :, rows, :seen] > 0)
        assert not whole[:, :, rows, seen:].any()

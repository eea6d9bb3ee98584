"""The commands and the code of the page on explain run, and print what the page shows."""

import re
import shlex
from pathlib import Path

import pytest

from headwise.cli import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)```", re.S)


@pytest.mark.parametrize("page", ["explain.md", "explain.zh.md"])
def test_every_example_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWISE_LANG", "en")
    printed, counts = "", {"file": 0, "command": 0, "text": 0, "python": 0}
    for block in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["body"], encoding="utf-8")
            counts["file"] += 1
        elif block["kind"] == "text":
            assert block["body"] in printed
            counts["text"] += 1
        elif block["kind"] == "python":
            exec(compile(block["body"], page, "exec"), {})  # noqa: S102 - our own text
            assert "tensor" in capsys.readouterr().out
            counts["python"] += 1
        else:
            for line in block["body"].splitlines():
                name, *words = shlex.split(line)
                assert name == "headwise"
                assert main(words) == 0
                counts["command"] += 1
            printed = capsys.readouterr().out
    assert counts == {"file": 3, "command": 5, "text": 3, "python": 1}


def test_both_pages_show_the_same_examples():
    english, chinese = (
        [b.group() for b in BLOCK.finditer((DOCS / name).read_text(encoding="utf-8"))]
        for name in ("explain.md", "explain.zh.md")
    )
    assert english == chinese

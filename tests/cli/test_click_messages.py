"""The Chinese translations of click's messages."""

import re
from pathlib import Path

import click
import pytest

from headwise.cli import BAD_INPUT, commands, main
from headwise.cli.commands import COMMANDS

ENGLISH = re.compile(r"[A-Za-z]{3,} [a-z]{2,} ")
OWN_FORMS = {
    "Missing option {names}.": "Missing option",
    "Missing argument {names}.": "Missing argument",
    "Choose from: {choices}": "Choose from:",
    "Got unexpected extra argument ({args})": "Got unexpected extra argument (",
}
"""Templates that click puts together from pieces, and the piece to look for."""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nope"], "错误：没有命令 'nope'。"),
        (["show", "--nope"], "错误：没有选项 '--nope'。"),
        (["explain", "--hed", "1"], "是否要用以下之一："),
        (["plan"], "错误：缺少选项 '--length'。"),
        (["check"], "错误：缺少参数 'FILE'。"),
        (["plan", "--length", "0"], "'--length' 的值无效：0 不在范围 1<=x<=262144 内。"),
        (["plan", "--length", "a"], "'--length' 的值无效：'a' 不是有效的范围内的整数。"),
        (["show", "--format", "pdf"], "'--format' 的值无效：'pdf' 不是以下之一：'text', "),
        (["show", "causal()", "x"], "错误：多余的参数：x"),
        (["explain", "--heads"], "错误：选项 '--heads' 需要一个值。"),
        (["models", "list", "--help=1"], "错误：选项 '--help' 不带值。"),
    ],
)
def test_usage_errors_are_chinese(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--lang", "zh", *words]) == BAD_INPUT
    error = capsys.readouterr().err
    assert expected in error
    assert not ENGLISH.search(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_parts_of_the_help_are_chinese(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--lang", "zh", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("用法：")
    assert "选项：" in text
    assert not re.search(r"default:|required|Options|Usage|Show this message", text)


def test_a_message_that_is_not_clicks_stays_as_it_is() -> None:
    assert commands.chinese("a sentence of somebody else") == "a sentence of somebody else"


def test_every_template_is_one_of_click() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(click.__file__).parent.glob("*.py"))
    source = re.sub(r"\{(\w+)![rs]\}", r"{\1}", re.sub(r'"\n\s*"', "", source))
    for text in commands._MESSAGES:
        first = OWN_FORMS.get(text.source, text.source).split(" Did you")[0].split(" (Did you")[0]
        known = first in source or OWN_FORMS.get(first.split(" {reason}")[0], "\0") in source
        assert known, f"click no longer says {text.source!r}; see its exceptions.py and types.py"

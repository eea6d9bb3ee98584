"""The report: its content, its order, and the smallest failing input."""

import re
from pathlib import Path

import pytest
import torch

from headwise.document import Code, Paragraph
from headwise.errors import BadFile
from headwise.lang import Translated
from headwise.verify import verify
from headwise.verify.oracle.tolerance import judge
from headwise.verify.report import data, unusable
from headwise.verify.report.formats import faults, schema
from headwise.verify.report.report_document import document, verdict
from headwise.verify.target import NotRecognised, load
from headwise.verify.target.calls.guarded_call import OutOfMemory, guarded, no_log, out_of_memory

TARGETS = Path(__file__).parent / "targets"


def reported(name: str, **given):
    target = f"{TARGETS / 'wrong.py'}:{name}"
    return verify(load(target), target, **given)


def ran(code: str) -> dict:
    names: dict = {}
    exec(compile(code, "snippet", "exec"), names)  # noqa: S102 (it is ours)
    return names


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("no_scale", (1, 2, 2)),
        ("causal_without_self", (1, 1, 1)),
        ("heads_interleaved", (1, 1, 4)),
        ("no_scale_function", (1, 1, 2, 2)),
    ],
)
def test_the_smallest_input_is_small_and_still_fails(capsys, name: str, largest) -> None:
    report = reported(name)
    assert report.smallest
    shapes = []
    for code in set(report.smallest.values()):
        names = ran(code)
        result, exact = names["result"], names["exact"]
        result = result[0] if isinstance(result, tuple) else result
        assert not judge(result.float(), exact.float(), exact.double()).accepted
        shapes.append(tuple(exact.shape))
    assert largest in shapes
    assert "tensor" in capsys.readouterr().out


def test_an_instance_keeps_its_size_in_the_snippet() -> None:
    module = load(f"{TARGETS / 'wrong.py'}:no_scale")(6, 2)
    report = verify(module, "mine", embed_dim=6, heads=2)
    code = report.smallest["module_forward"]
    assert "module = mine.eval()" in code
    assert "headwise" not in code


def test_a_right_target_has_nothing_to_show() -> None:
    report = verify(torch.nn.MultiheadAttention)
    assert (report.smallest, report.lines) == ({}, {})


def test_the_line_stands_beside_the_mistake() -> None:
    found = data(reported("no_scale_function"))
    line = found["mistakes"][0][0]["line"]
    text = (TARGETS / "wrong.py").read_text().splitlines()[line["line"] - 1]
    assert text.strip() == line["text"]
    assert "softmax" in text
    said = [block.text for block in document(found).blocks if isinstance(block, Paragraph)]
    assert any(text.en.startswith("Most likely on this line, ") for text in said)
    assert any(text.zh.startswith("最可能在这一行") for text in said)
    codes = [block.source for block in document(found).blocks if isinstance(block, Code)]
    assert line["text"] in codes


def test_errors_are_told_in_units_of_rounding() -> None:
    found = data(reported("no_scale_function"))
    checks = {check["check"]: check for check in found["checks"]}
    failed, passed = checks["module_forward"], checks["output_projection"]
    assert failed["roundings"] > failed["times"] > 1
    assert passed["roundings"] < failed["roundings"]
    assert 0 < passed["times"] <= 1


def test_what_is_unusable_says_why_in_both_languages() -> None:
    found = unusable("x.py:f", BadFile(Translated("target: no", "目标：无")))
    assert faults(found) == []
    assert (verdict(found).en, verdict(found).zh) == (
        "not verified: target: no",
        "未能验证：目标：无",
    )
    (notice,) = document(found).blocks
    assert notice.good is False


PAGE = Path(__file__).parents[2] / "docs" / "verify_report.md"


def test_the_page_runs_and_has_every_key() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        ran(block)
    layout = schema()
    keys = {*layout["properties"], *layout["$defs"]["check"]["properties"]}
    keys |= set(layout["$defs"]["mistake"]["properties"])
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def hungry(q, k, v):
    raise MemoryError("no more")


def broken_allocator(q, k, v):
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")


@pytest.mark.parametrize("target", [hungry, broken_allocator])
def test_a_lack_of_memory_is_never_taken_for_a_wrong_number(target) -> None:
    with pytest.raises(BadFile, match=r"ran out of memory: .*; expected a few MiB") as caught:
        verify(target, "mine")
    assert not isinstance(caught.value, NotRecognised)
    with pytest.raises(OutOfMemory, match=r"no more|allocate"):
        guarded(lambda: target(1, 2, 3), {}, no_log)


def test_other_errors_are_themselves() -> None:
    with pytest.raises(RuntimeError, match="bang"):
        guarded(lambda: (_ for _ in ()).throw(RuntimeError("bang")), {}, no_log)
    circle = ValueError("round")
    circle.__cause__ = circle
    assert not out_of_memory(circle)

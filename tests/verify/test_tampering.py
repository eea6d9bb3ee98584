"""A target that replaces what it is judged with gets no verdict; other changes do not matter."""

from pathlib import Path

import pytest

from headwise.errors import BadFile
from headwise.verify.process import Request, isolated, search
from headwise.verify.process.tampering import changed, snapshot
from tests.verify.submissions.sixty import FUNCTION

REPLACED = {
    "torch.softmax": "torch.softmax = torch.sigmoid",
    "torch.Tensor.softmax": "torch.Tensor.softmax = lambda x, dim: x",
    "torch.Tensor.__matmul__": "torch.Tensor.__matmul__ = lambda a, b: a",
    "builtins.all": "import builtins; builtins.all = lambda _: True",
    "math.isfinite": "import math; math.isfinite = lambda _: True",
    "torch.nn.functional.linear": "torch.nn.functional.linear = lambda x, w, b=None: x",
    "torch.nn.modules.activation.MultiheadAttention.forward": (
        "torch.nn.MultiheadAttention.forward = lambda self, q, k, v, **_: (v, None)"
    ),
    "headwise.verify.oracle.tolerance.judge": (
        "import headwise.verify.oracle.tolerance as t; t.judge = t.judge_job"
    ),
    "headwise.verify.oracle.tolerance.Verdict.times": (
        "import headwise.verify.oracle.tolerance as t; t.Verdict.times = 0.5"
    ),
    "headwise.verify.oracle.oracle": (
        "import headwise.verify.oracle as o; o.oracle.__code__ = (lambda *a, **k: 1).__code__"
    ),
    "headwise.verify.oracle.tolerance.SLACK": (
        "import headwise.verify.oracle.tolerance as t; t.SLACK = {**t.SLACK, torch.float32: 1e9}"
    ),
}
HARMLESS = (
    "torch.Tensor.__repr__ = lambda x: 'tensor'",
    "torch.nn.Module.__str__ = lambda x: 'module'",
    "torch.Tensor.cuda = lambda x: x",
    "torch.hann_window = None",
    "torch.an_addition = torch.softmax",
    "torch.nn.Module.an_addition = lambda x: x",
    "import builtins; builtins.input = lambda *_: ''",
)


def applied(line: str) -> list[str]:
    """What is noticed after a line was run; everything is as before afterwards."""
    import builtins

    import torch

    import headwise.verify.diagnosis.verdict
    from headwise.verify import oracle
    from headwise.verify.oracle import tolerance

    owners = [builtins, __import__("math"), torch, torch.Tensor, torch.nn.functional, oracle]
    owners += [torch.nn.Module, torch.nn.MultiheadAttention, tolerance, tolerance.Verdict]
    before = snapshot()
    kept = [(owner, dict(vars(owner))) for owner in owners]
    code = oracle.oracle.__code__
    try:
        exec(line, {"torch": torch})  # noqa: S102 (our own)
        return changed(before)
    finally:
        oracle.oracle.__code__ = code
        for owner, content in kept:
            for name in [n for n in vars(owner) if n not in content]:
                delattr(owner, name)
            for name, value in content.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)
        assert changed(before) == []
        assert headwise.verify.diagnosis.verdict


@pytest.mark.parametrize(("name", "line"), REPLACED.items(), ids=REPLACED)
def test_a_replaced_function_is_noticed(name: str, line: str) -> None:
    assert name in applied(line)


@pytest.mark.parametrize("line", HARMLESS)
def test_what_the_verification_does_not_use_may_be_replaced(line: str) -> None:
    assert applied(line) == []


def test_a_changed_entry_is_noticed() -> None:
    import torch

    from headwise.verify.oracle.tolerance import SLACK

    before, slack = snapshot(), SLACK[torch.float32]
    SLACK[torch.float32] = 1.0
    try:
        assert "headwise.verify.oracle.tolerance.SLACK" in changed(before)
    finally:
        SLACK[torch.float32] = slack


def test_a_whole_verification_changes_nothing() -> None:
    import torch

    from headwise.verify import verify

    before = snapshot()
    assert verify(torch.nn.MultiheadAttention).accepted
    assert changed(before) == []


@pytest.mark.slow
def test_the_compiler_of_torch_is_no_tampering() -> None:
    import torch

    from headwise.verify import verify

    before = snapshot()
    assert verify(torch.nn.MultiheadAttention, compiled=True).accepted
    assert changed(before) == []


@pytest.mark.parametrize("line", [REPLACED["torch.Tensor.softmax"]])
def test_a_target_that_replaces_something_has_no_verdict(tmp_path: Path, line: str) -> None:
    file = tmp_path / "cheats.py"
    file.write_text(f"{FUNCTION.format(scale='', dim=-1)}\n{line}\n")
    with pytest.raises(
        BadFile, match=r"cheats\.py:attend replaces torch\.Tensor\.softmax, which"
    ) as e:
        isolated(Request(f"{file}:attend"))
    assert "替换了 torch.Tensor.softmax" in e.value.text.zh
    with pytest.raises(BadFile, match=r"cheats\.py replaces torch\.Tensor\.softmax"):
        search(file, Request(""))

"""The checks as tests of another project."""

import subprocess
import sys

import pytest
from torch import nn

from headwise.errors import BadValue, MissingExtra
from headwise.verify import assert_attention, conformance
from headwise.verify.checks.contract import CONTRACT

THEIRS = """
from headwise.verify import conformance
from torch import nn


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v


def unscaled(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@conformance(attention, unscaled)
def test_theirs(check):
    check()


@conformance(unscaled, expected_failures={"module_forward": "no scale", "as_torch": "no scale"})
def test_known(check):
    check()


@conformance(attention, expected_failures={"module_forward": "it passes, in truth"})
def test_outdated(check):
    check()
"""


def attention(q, k, v):
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v


def unscaled(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@conformance(attention)
def test_a_right_function_conforms(check) -> None:
    check()


def test_another_projects_run(tmp_path) -> None:
    file = tmp_path / "test_theirs.py"
    file.write_text(THEIRS)
    words = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-q", file.name]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    passed = [line for line in said.splitlines() if line.startswith("PASSED")]
    assert "PASSED test_theirs.py::test_theirs[attention-module_forward]" in passed
    assert "PASSED test_theirs.py::test_theirs[unscaled-output_projection]" in passed
    assert "FAILED test_theirs.py::test_theirs[unscaled-module_forward]" in said
    assert "XFAIL test_theirs.py::test_known[unscaled-module_forward] - no scale" in said
    assert "FAILED test_theirs.py::test_outdated[attention-module_forward]" in said
    assert "fails at no mask; error / tolerance" in said
    assert "does not support what the check needs" in said
    outcomes = ("PASSED", "FAILED", "XFAIL")
    run = [line for line in said.splitlines() if line.startswith(outcomes)]
    assert len({line.split()[1] for line in run}) <= 4 * len(CONTRACT)


def test_the_assertion_carries_the_report() -> None:
    assert_attention(nn.MultiheadAttention)
    with pytest.raises(AssertionError, match="no_scale: The scores are not divided") as caught:
        assert_attention(unscaled)
    assert "The smallest failing input" in str(caught.value)
    with pytest.raises(AssertionError, match="不一致"):
        assert_attention(unscaled, lang="zh")


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(BadValue, match="expected_failures: unknown 'speed'; expected one of"):
        conformance(attention, expected_failures={"speed": "slow"})


def test_without_pytest_it_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(MissingExtra, match="needs the package 'pytest'"):
        conformance(attention)


def test_verify_is_light_and_pytest_stays_out() -> None:
    script = (
        "import sys, headwise.verify as v\n"
        "assert 'torch' not in sys.modules\n"
        "for _ in range(2):\n"
        "    assert all(callable(f) for f in (v.conformance, v.assert_attention, v.verify))\n"
        "assert 'pytest' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_is_said() -> None:
    import headwise.verify

    with pytest.raises(AttributeError, match=r"module 'headwise\.verify' has no attribute 'none'"):
        headwise.verify.none  # noqa: B018

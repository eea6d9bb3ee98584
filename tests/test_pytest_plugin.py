"""The pytest plugin in another project: one test a check, the diagnosis as its failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TARGETS = """
import os
import torch
from torch import nn


def right(q, k, v):
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v


def unscaled(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def leaves(q, k, v):
    os._exit(7)
"""
THEIRS = """
import pytest
from targets_of_theirs import right, unscaled


def test_right(headwise_verify):
    headwise_verify(right, embed_dim=6, heads=2)


def test_wrong(headwise_verify):
    with pytest.raises(AssertionError, match="no_scale: The scores are not divided"):
        headwise_verify(unscaled)
"""
UNUSED = """
import sys


def test_nothing():
    loaded = [name for name in sys.modules if name.startswith(("headwise.", "torch", "numpy"))]
    assert loaded == ["headwise.renamed", "headwise.pytest_plugin"]
"""


def run(folder: Path, *words: str, test: str = "") -> tuple[int, str]:
    (folder / "targets_of_theirs.py").write_text(TARGETS)
    if test:
        (folder / "test_theirs.py").write_text(test)
    plugin = ("-p", "headwise.pytest_plugin", "-p", "no:cacheprovider")
    names = [sys.executable, "-m", "pytest", "-q", "-rA", *plugin, *words]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(names, cwd=folder, capture_output=True, text=True, env=alone)
    return done.returncode, done.stdout + done.stderr


def outcomes(output: str) -> dict[str, str]:
    """The outcome of each test by its name."""
    words = (line.split() for line in output.splitlines())
    kinds = ("PASSED", "FAILED", "ERROR")
    return {w[1]: w[0] for w in words if w and w[0] in kinds and len(w) > 1}


def test_a_check_is_a_test_and_its_failure_the_diagnosis(tmp_path: Path) -> None:
    names = ("targets_of_theirs:right", "targets_of_theirs.py:unscaled")
    status, said = run(tmp_path, *(f"--headwise-verify={name}" for name in names))
    assert status == 1, said
    result = outcomes(said)
    assert result["targets_of_theirs.right::module_forward"] == "PASSED"
    assert result["targets_of_theirs.right::verdict"] == "PASSED"
    assert result["targets_of_theirs.py:unscaled::module_forward"] == "FAILED"
    assert result["targets_of_theirs.py:unscaled::output_projection"] == "PASSED"
    assert result["targets_of_theirs.py:unscaled::verdict"] == "FAILED"
    assert {name.partition("::")[0] for name, kind in result.items() if kind == "FAILED"} == {
        "targets_of_theirs.py:unscaled"
    }
    assert "no_scale: The scores are not divided by sqrt(head_dim)." in said
    assert "Traceback" not in said
    assert "runtest" not in said
    assert "the target does not support what the check needs" in said


@pytest.mark.slow
def test_a_target_without_a_report_fails_once(tmp_path: Path) -> None:
    status, said = run(tmp_path, "--headwise-verify=targets_of_theirs.py:leaves")
    assert status == 1, said
    assert outcomes(said) == {"targets_of_theirs.py:leaves::verdict": "FAILED"}
    assert "ended the process itself, with status 7" in said


@pytest.mark.slow
def test_the_fixture_asserts(tmp_path: Path) -> None:
    status, said = run(tmp_path, test=THEIRS)
    assert status == 0, said
    assert list(outcomes(said).values()) == ["PASSED", "PASSED"]


def test_unused_it_loads_nothing(tmp_path: Path) -> None:
    status, said = run(tmp_path, test=UNUSED)
    assert status == 0, said


@pytest.mark.slow
def test_a_forbidden_use_fails_the_verdict_alone(tmp_path: Path) -> None:
    words = ("--headwise-verify=targets_of_theirs.py:right", "--headwise-forbid=torch.softmax")
    status, said = run(tmp_path, *words)
    assert status == 1, said
    failed = [name for name, kind in outcomes(said).items() if kind == "FAILED"]
    assert failed == ["targets_of_theirs.py:right::verdict"]
    assert "uses torch.softmax, which is forbidden" in said

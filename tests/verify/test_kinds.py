"""Fused layouts are determined by trial calls; functions get the notes for functions."""

from pathlib import Path

import pytest

from headwise.errors import BadFile
from headwise.verify import verify
from headwise.verify.target import NotRecognised, load

KINDS = Path(__file__).parent / "targets" / "kinds.py"


def report(name: str):
    return verify(load(f"{KINDS}:{name}"), name)


@pytest.mark.parametrize(
    ("name", "how"),
    [("FusedByHead", "grouped by head"), ("FusedByNumber", "alternate within each head")],
)
def test_a_fused_layout_is_found_and_said(name: str, how: str) -> None:
    found = report(name)
    assert found.accepted
    assert any(note.en.startswith("qkv_proj: ") and how in note.en for note in found.notes)


@pytest.mark.parametrize(
    ("name", "mistake", "check"),
    [
        ("in_place", "inputs_overwritten", "inputs_unchanged"),
        ("InPlace", "inputs_overwritten", "inputs_unchanged"),
        ("overflowing", "softmax_without_max", "large_scores"),
    ],
)
def test_what_right_outputs_hide_is_named(name: str, mistake: str, check: str) -> None:
    found = report(name)
    assert [finding.check.name for finding in found.findings if not finding.passed] == [check]
    assert [m.name for group in found.mistakes for m in group] == [mistake]


def test_a_function_has_no_step_behind_the_mix() -> None:
    found = report("squashed")
    assert (found.accepted, found.mistakes, found.step) == (False, (), "mix")


@pytest.mark.parametrize(("name", "got"), [("in_numpy", "numpy.ndarray"), ("nothing", "None")])
def test_a_function_that_returns_no_tensor(name: str, got: str) -> None:
    said = rf"q, k, v \(2, 3, 7, 5\) raises .*returned {got}, expected .*a tensor"
    with pytest.raises(BadFile, match=said) as caught:
        report(name)
    assert not isinstance(caught.value, NotRecognised)


def test_a_file_without_a_name_says_which_it_has(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"write .*kinds\.py:FusedByHead; it has FusedByHead, Fused"):
        load(str(KINDS))
    with pytest.raises(BadFile, match=r"write .*none\.py:Name; it has -"):
        load(str(tmp_path / "none.py"))

"""Functions on NumPy arrays are called with arrays, and changes of their inputs are detected."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.verify import verify
from headwise.verify.target import load
from headwise.verify.target.calls.guarded_call import arrays_of, changed, tensors_of

STYLES = Path(__file__).parent / "targets" / "corpus" / "numpy_styles.py"


def test_a_function_on_arrays_is_said_to_be_one() -> None:
    report = verify(load(f"{STYLES}:by_loops"), "f")
    assert report.accepted
    assert "it works on NumPy's arrays: it has no gradients to verify" in [
        note.en for note in report.notes
    ]


def test_tensors_handed_to_numpy_are_no_false_alarm_about_gradients() -> None:
    def mixed(q, k, v):
        scores = np.asarray(q) @ np.asarray(k).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ np.asarray(v)

    assert verify(mixed, "mixed").accepted


def test_an_array_that_is_written_into_fails() -> None:
    def writes(q, k, v):
        q *= q.shape[-1] ** -0.5
        scores = q @ k.swapaxes(-1, -2)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return (e / e.sum(axis=-1, keepdims=True)) @ v

    report = verify(writes, "writes")
    assert [f.check.name for f in report.findings if not f.passed] == ["inputs_unchanged"]


def test_the_snippet_of_a_wrong_one_runs(capsys) -> None:
    name = f"{STYLES}:no_scale"
    code = verify(load(name), name).smallest["module_forward"]
    assert ".numpy()" in code
    exec(code, {})  # noqa: S102 - what a person would paste
    assert "tensor" in capsys.readouterr().out


def test_arrays_and_back() -> None:
    x = torch.arange(3.0)
    given = arrays_of({"x": x, "n": 2})
    assert isinstance(given["x"], np.ndarray)
    assert given["n"] == 2
    assert changed({"x": x}, given) == ()
    given["x"][0] = 5.0
    assert changed({"x": x}, given) == ("x",)
    assert x[0] == 0
    wide = tensors_of({"y": np.ones(2), "t": (x, None)}, torch.float32)
    assert wide[0].dtype == torch.float32
    assert wide[1][0] is x
    with pytest.raises(TypeError, match="BFloat16"):
        arrays_of({"x": x.bfloat16()})

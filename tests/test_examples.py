"""The examples and the code in the READMEs run as they stand."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.verify.oracle.tolerance import accept

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_warning(path):
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not done.stderr


def test_the_swapped_encoder_trains_as_pytorchs_does():
    example = runpy.run_path(str(ROOT / "examples" / "swap_into_an_encoder.py"))
    train, encoder = example["train"], example["encoder"]
    theirs, ours = (torch.tensor(train(encoder(swap=swap))) for swap in (False, True))
    exact = torch.tensor(train(encoder(swap=False).double()), dtype=torch.float64)
    accept(ours, theirs, exact)
    assert ours[-1] < ours[0]


@pytest.mark.parametrize("name", ["masks.md", "masks.zh.md"])
def test_the_code_of_the_guide_to_masks_runs(name, capsys):
    text, names = (ROOT / "docs" / name).read_text("utf-8"), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, name, "exec"), names)  # noqa: S102 - our own text
    assert "engine: tiled" in capsys.readouterr().out
    assert names["output"].isfinite().all()


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_code_of_the_readme_runs(name, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})  # noqa: S102 - our own text
    assert "engine: " in capsys.readouterr().out

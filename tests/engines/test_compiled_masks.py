"""Whatever a mask holds, `torch.compile` carries it whole."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_every_mask_compiles_whole(marked):
    """In a process of its own: the checks of shapes under pytest cannot be compiled."""
    script = Path(__file__).with_name("compiled_masks.py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--noconftest", "-m", marked, str(script)),
            *("--show-capture=no", "--tb=short", "-p", "no:cacheprovider"),
        ],
        capture_output=True,
        text=True,
        cwd=script.parents[2],
    )
    assert done.returncode == 0, done.stdout[-4000:]

"""Runs `toolchain.py` and `compiled_paths.py`, each in a separate process."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)], ids=["fast", "slow"]
)
@pytest.mark.parametrize("name", ["toolchain", "compiled_paths"])
def test_compile_export_and_onnx(name: str, marked: str) -> None:
    script = Path(__file__).with_name(f"{name}.py")
    command = [sys.executable, "-m", "pytest", "--noconftest", "-m", marked, str(script)]
    done = subprocess.run(
        [*command, "--show-capture=no", "--tb=short", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]

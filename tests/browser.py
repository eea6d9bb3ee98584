"""Open a page in headless chromium; return the page after its script has run, and its errors.

Mark a test that uses it with ``@pytest.mark.browser``; the test is skipped without chromium.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60


def open_page(path: Path, fragment: str = "") -> tuple[str, list[str]]:
    """The page's elements after its script ran, and every line on its console.

    Args:
        path: an HTML file.
        fragment: what stands after ``#`` in the address, such as "zh".
    """
    done = _chromium(path, fragment, ["--dump-dom"])
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def screenshot(
    path: Path, fragment: str, target: Path, size: tuple[int, int] = (1200, 2000)
) -> None:
    """A picture of the page as a PNG file."""
    _chromium(path, fragment, [f"--screenshot={target}", f"--window-size={size[0]},{size[1]}"])


def _chromium(path: Path, fragment: str, what: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no headless browser on this machine: none of {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        return subprocess.run(
            [
                found,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-extensions",
                "--enable-logging=stderr",
                "--v=0",
                f"--user-data-dir={profile}",
                *what,
                f"{path.resolve().as_uri()}#{fragment}",
            ],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=True,
        )

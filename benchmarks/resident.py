"""Memory of one call: how much the resident size of this process grows."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path


def growth_of(call: Callable[[], object]) -> int:
    """Return by how many bytes the peak of a call exceeds the resident size before it."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    held = call()
    grown = _status("VmHWM") - before
    del held
    return grown


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

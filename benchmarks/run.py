"""Measure every case and write results.json and docs/benchmarks.md: ``make bench``.

``--only WORD`` measures the cases whose name contains the word, and keeps the other results. Each
case runs in a separate process; if a case fails, its error is printed and the others continue.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import cases, growth, memory, page

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"
PACKAGES = ("torch", "transformers", "local-attention", "reformer-pytorch")

Row = dict[str, Any]


def timed(only: str) -> Iterator[Row]:
    """Measure the comparisons of time."""
    for number, case in enumerate(cases.CASES):
        if only in case.name:
            yield _child(f"time: {case.name}", "benchmarks.timing", str(number))


def grown(only: str) -> Iterator[Row]:
    """Measure the growth of the time with the length, and the cost of planning."""
    for name in (*growth.PATTERNS, "plan"):
        if only in name:
            yield _child(f"growth: {name}", "benchmarks.growth", name)


def held(only: str) -> Iterator[Row]:
    """Measure the comparisons of memory."""
    for case in memory.CASES:
        if only not in case.name:
            continue
        key = f"memory: {case.name}, L={case.length}"
        print(f"bench: {key} ...", flush=True)
        yield {
            "key": key,
            "case": case.name,
            "length": case.length,
            "line": case.line,
            "bytes": {name: memory.measured(case, name) for name in case.contenders},
            "output_bytes": memory.output_bytes(case.length),
            "asked_share": dict(case.share),
            "asked_outputs": case.outputs,
            "asked_bytes": case.most,
        }


def _child(key: str, module: str, argument: str) -> Row:
    """Measure one row of the results in a new process."""
    print(f"bench: {key} ...", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", module, argument], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"bench: {key} failed: {last}")
        return {"key": key, "error": last[:300]}
    return {"key": key, **json.loads(done.stdout.splitlines()[-1])}


def machine() -> dict[str, str]:
    """Return the processor, the number of threads and the versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "threads": "2",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def main() -> None:
    """Measure every case, print its results, and write both files after each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only cases whose name contains WORD"
    )
    only = parser.parse_args().only
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if only and RESULTS.exists() else {}
    rows: dict[str, Row] = {row["key"]: row for row in known.get("results", [])}
    for measure in (timed, held, grown):
        for row in measure(only):
            rows[row["key"]] = row
            for line in page.verdicts(row):
                print(f"bench:   {line.told()}")
            found = {"machine": machine(), "results": list(rows.values())}
            text = json.dumps(found, indent=2, ensure_ascii=False)
            RESULTS.write_text(text + "\n", encoding="utf-8")
            PAGE.write_text(page.written(machine(), list(rows.values())), encoding="utf-8")
    print(f"bench: wrote {PAGE.relative_to(HERE.parent)} and benchmarks/results.json")


if __name__ == "__main__":
    main()

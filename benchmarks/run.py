"""Measure every case and write results.json and docs/benchmarks.md: ``make bench``.

A case whose contenders disagree with each other at a small length is not measured.
"""

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.cases import CASES, OURS, PEER, ROOF, Case
from benchmarks.timing import TURNS, Timed, in_turns
from headwise.verify.budget import judge

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
GATE_LENGTH = 127


def gate(case: Case) -> None:
    """Refuse a case in which ours is not as right as the rule of acceptance asks.

    Raises:
        SystemExit: if it is not; nothing is measured then.
    """
    single, exact = _outputs(case, torch.float32), _outputs(case, torch.float64)
    if not judge(single[OURS], single[PEER], exact[PEER]).accepted:
        raise SystemExit(f"bench: {case.name}: the result is wrong; nothing was measured")


def _outputs(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return {name: run() for name, run in case.build(GATE_LENGTH, dtype).items()}


def roof() -> tuple[Callable[[], torch.Tensor], int]:
    """The machine's own matrix product, and its FLOPs."""
    size = 1280
    a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: torch.mm(a, b, out=out), 2 * size**3


def measure(case: Case) -> dict[str, object]:
    """One case as a row of the results."""
    gate(case)
    multiply, its_flops = roof()
    with torch.no_grad():
        timed = in_turns({**case.build(case.length, torch.float32), ROOF: multiply})
    speed = its_flops / timed[ROOF].wall
    return {
        "case": case.name,
        "length": case.length,
        "seconds": {name: vars(each) for name, each in timed.items()},
        "times_faster_than_torch": timed[PEER].wall / timed[OURS].wall,
        "share_of_roof": {name: _share(case, timed[name], speed) for name in (OURS, PEER)},
    }


def _share(case: Case, timed: Timed, speed: float) -> float:
    return case.flops(case.length) / timed.wall / speed


def machine() -> dict[str, str]:
    """What the figures hold for."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def page(results: dict[str, object], rows: list[dict[str, object]]) -> str:
    """The results as a page in both languages."""
    head = (
        "# Benchmarks\n\n基准测试\n\n"
        "Made by `make bench`; float32, B=1, H=8, D=64, forward, medians of "
        f"{TURNS} turns in one process.\n由 `make bench` 生成；float32，B=1，H=8，D=64，前向，"
        f"同一进程中轮流 {TURNS} 次取中位数。\n\n"
    )
    facts = "".join(f"- {key}: {value}\n" for key, value in results.items())
    table = (
        "\n| case 项目 | L | headwise, ms | torch, ms | times torch 倍数 | share of roof 占峰值 |\n"
        "|---|---|---|---|---|---|\n"
    )
    return head + facts + table + "".join(map(_line, rows))


def _line(row: dict[str, object]) -> str:
    seconds, share = row["seconds"], row["share_of_roof"]
    ours, theirs = (1000 * seconds[name]["wall"] for name in (OURS, PEER))
    return (
        f"| {row['case']} | {row['length']} | {ours:.1f} | {theirs:.1f} | "
        f"{row['times_faster_than_torch']:.2f} | {share[OURS]:.0%} |\n"
    )


def main() -> None:
    """Measure, print, and write both files."""
    rows = []
    for case in CASES:
        print(f"bench: {case.name}, L={case.length} ...", flush=True)
        rows.append(measure(case))
        print(f"bench: {rows[-1]['times_faster_than_torch']:.2f} x torch")
    facts = machine()
    text = json.dumps({"machine": facts, "results": rows}, indent=2, ensure_ascii=False)
    (HERE / "results.json").write_text(text + "\n", encoding="utf-8")
    PAGE.write_text(page(facts, rows), encoding="utf-8")
    print(f"bench: wrote {PAGE.relative_to(HERE.parent)} and benchmarks/results.json")


if __name__ == "__main__":
    main()

"""The cost of a capture: SmolLM2 on a long text, with all statistics of all heads and without.

``python -m benchmarks.capture`` runs both alternately, each in a new process, and writes the
results into docs/capture.md and docs/capture.zh.md. ``--layers N`` uses only the first N layers.
"""

import argparse
import ctypes
import gc
import importlib.metadata
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
PAGES = (HERE.parent / "docs" / "capture.md", HERE.parent / "docs" / "capture.zh.md")
MARKS = ("<!-- figures -->", "<!-- end of figures -->")

PLAIN, CAPTURE, EAGER = "plain", "capture", "output_attentions=True"
KINDS = (PLAIN, CAPTURE, EAGER)
LIMIT = 12 << 30
"""Bytes of address space; a run that needs more fails."""

WARM = 256
ASKED = {"time": 2.5, "memory": 1.3}
"""The largest allowed ratios of a capture to a forward pass without capture."""


def measured(kind: str, tokens: int, layers: int) -> dict[str, float]:
    """Measure the seconds, the processor seconds and the memory growth of one forward pass."""
    from transformers import AutoModel, logging

    from headwise.heads.models import model_folder, model_named

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    attention = "eager" if kind == EAGER else "sdpa"
    place = model_folder(model_named("smollm2"))
    model = AutoModel.from_pretrained(place, attn_implementation=attention).eval()
    if layers:
        model.layers = model.layers[:layers]
    torch.manual_seed(0)
    text = torch.randint(5, model.config.vocab_size, (1, tokens))
    _forward(kind, model, text[:, :WARM])
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, clock, processor = _status("VmRSS"), time.perf_counter(), time.process_time()
    _forward(kind, model, text)
    return {
        "seconds": time.perf_counter() - clock,
        "processor": time.process_time() - processor,
        "bytes": _status("VmHWM") - before,
    }


@torch.no_grad()
def _forward(kind: str, model: Any, text: torch.Tensor) -> None:
    import headwise as hw

    if kind == CAPTURE:
        with hw.capture(model) as seen:
            model(input_ids=text, use_cache=False)
        if not seen.statistics.heads():
            raise RuntimeError("the capture measured no heads")
        return
    asked = {"output_attentions": True} if kind == EAGER else {}
    model(input_ids=text, use_cache=False, **asked)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def child(kind: str, tokens: int, layers: int) -> dict[str, float] | str:
    """Measure one forward pass in a new process; return the last line of its error if it fails."""
    words = ["--child", kind, "--tokens", str(tokens), "--layers", str(layers)]
    print(f"bench: {kind}, {tokens} tokens ...", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.capture", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["killed"])[-1][:240]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"bench:   {found}", flush=True)
    return found


def table(results: dict[str, list[dict[str, float]] | str], tokens: int, layers: int) -> str:
    """Return the results as Markdown, with the ratios and their limits."""
    where = _machine()
    lines = [
        f"SmolLM2-135M, {layers or 30} of 30 layers with 9 heads each, {tokens} tokens, float32, "
        "two threads, median 中位数; "
        + ", ".join(
            f"{name} {where[name]}" for name in ("processor", "capability", "torch", "transformers")
        )
        + ".",
        "",
        "| run 运行 | time 用时, s | processor time 处理器时间, s | memory growth 内存增长, MB |",
        "|---|---|---|---|",
    ]
    middle: dict[str, dict[str, float]] = {}
    for kind, runs in results.items():
        if isinstance(runs, str):
            lines.append(f"| {kind} | failed 失败: {runs} | | |")
            continue
        middle[kind] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        each = middle[kind]
        size = each["bytes"] / 1e6
        lines.append(f"| {kind} | {each['seconds']:.1f} | {each['processor']:.1f} | {size:.0f} |")
    if {PLAIN, CAPTURE} <= set(middle):
        ratio = {key: middle[CAPTURE][key] / middle[PLAIN][key] for key in middle[PLAIN]}
        lines.append(
            f"| {CAPTURE} / {PLAIN} | {ratio['seconds']:.2f} (limit 上限 {ASKED['time']}) | "
            f"{ratio['processor']:.2f} | {ratio['bytes']:.2f} (limit 上限 {ASKED['memory']}) |"
        )
    return "\n".join(lines)


def _machine() -> dict[str, str]:
    """Return the processor and the versions of the packages."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    return {
        "processor": model,
        "capability": torch.backends.cpu.get_cpu_capability(),
        **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
    }


def write(text: str) -> None:
    """Write the results between the marks of both pages."""
    for page in PAGES:
        before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> None:
    """Measure each run, print the results, and write both pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", choices=KINDS)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=0, help="only the first N layers; 0 for all")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measured(asked.child, asked.tokens, asked.layers)))
        return
    results: dict[str, Any] = {PLAIN: [], CAPTURE: []}
    for _ in range(asked.turns):
        for kind in (PLAIN, CAPTURE):
            found = child(kind, asked.tokens, asked.layers)
            if isinstance(found, str):
                sys.exit(f"bench: {kind}: {found}")
            results[kind].append(found)
    eager = child(EAGER, asked.tokens, asked.layers)
    results[EAGER] = eager if isinstance(eager, str) else [eager]
    text = table(results, asked.tokens, asked.layers)
    print(text)
    write(text)


if __name__ == "__main__":
    main()

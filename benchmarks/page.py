"""The results as a page in English and Chinese: what was asked, what was measured, what holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.timing import TURNS
from benchmarks.work import OURS

Row = dict[str, Any]

HEAD = """# Benchmarks

基准测试

Made by `make bench`: float32, B=1, H=8, D=64, two threads. Times are medians of {turns} turns, each
implementation runs once per turn, each case in a process of its own; "times" is the peer's time
over ours, by the clock and, in brackets, in processor time, which includes waiting: threads wait as
by OpenMP's default. The roof is the machine's own product of two 1536 x 1536 matrices in the same
turns. A case is measured only if headwise passes the acceptance rule against the float64 reference,
gradients included, and its peers compute the same (the Reformers hash with their own random
numbers; `local-attention` sees one key more under the causal window; the whole module is compared
with PyTorch's in the tests). Forward and backward count as 3.5 times the FLOPs of the forward.
Memory is the growth of the resident size of a fresh process in one call.

由 `make bench` 生成：float32，B=1，H=8，D=64，两个线程。时间为 {turns} 轮的中位数，
每轮各方各运行一次，每项在独立进程中；“倍数”是对方用时除以我们的用时，先按时钟，括号内按处理器时间；
线程按 OpenMP 的默认方式等待，因此处理器时间包含等待。
峰值是同一轮中本机 1536 x 1536 矩阵乘法的速度。只有我们的结果（含梯度）按验收规则与 float64
参考一致、且对方计算同一内容时才测量（两个 Reformer 用各自的随机数散列；
`local-attention` 在因果窗口下多看一个键；整个模块由测试与 PyTorch 对照）。
前向加反向按前向 FLOPs 的 3.5 倍计。
内存是新进程在一次调用中常驻内存的增长。

"""


@dataclass(frozen=True)
class Verdict:
    """One thing that was asked, and what was measured.

    Attributes:
        line: of the acceptance list.
        case: what was measured.
        what: the figure.
        asked: in words.
        measured: in words.
        holds: whether it does; None where nothing was asked.
    """

    line: int
    case: str
    what: str
    asked: str
    measured: str
    holds: bool | None

    def told(self) -> str:
        """For the terminal."""
        mark = {True: "holds", False: "MISSED", None: "-"}[self.holds]
        return f"[{self.line}] {self.what}: {self.measured} (asked {self.asked}) {mark}"

    def row(self) -> str:
        """For the page."""
        mark = {True: "✓", False: "✗", None: ""}[self.holds]
        cells = (self.line, self.case, self.what, self.asked, self.measured, mark)
        return "| " + " | ".join(map(str, cells)) + " |\n"


def verdicts(row: Row) -> Iterator[Verdict]:
    """Everything that a row of the results says."""
    if "error" in row:
        yield Verdict(0, row["key"], "failed", "", row["error"], False)
    elif "times" in row:
        yield from _of_time(row)
    elif "bytes" in row:
        yield from _of_memory(row)
    else:
        name, asked, got = f"{row['case']}", row["asked"], row["measured"]
        share = row["line"] == 11
        what = "share of the attention's time" if share else "time, L=65536 / L=16384"
        words = (f"<= {asked:.0%}", f"{got:.2%}") if share else (f"<= {asked}", f"{got:.2f}")
        yield Verdict(row["line"], name, what, *words, got <= asked)


def _of_time(row: Row) -> Iterator[Verdict]:
    case = f"{row['case']}, L={row['length']}"
    for peer, got in row["times"].items():
        asked = row["asked_times"].get(peer)
        words = "" if asked is None else f">= {asked:.2f}"
        measured = f"{got:.2f} ({row['cpu_times'][peer]:.2f})"
        holds = None if asked is None else got >= asked
        yield Verdict(row["line"], case, f"times {peer}", words, measured, holds)
    share, asked = row["share_of_roof"][OURS], row["asked_roof"]
    words, holds = ("", None) if asked is None else (f">= {asked:.0%}", share >= asked)
    yield Verdict(row["line"], case, "share of the roof", words, f"{share:.0%}", holds)
    for peer, error in row["failed"].items():
        yield Verdict(row["line"], case, f"{peer} failed", "", error, None)


def _of_memory(row: Row) -> Iterator[Verdict]:
    case, grown = f"{row['case']}, L={row['length']}", row["bytes"][OURS]
    if grown is None:
        yield Verdict(row["line"], case, "memory", "", "failed", False)
        return
    size = f"{grown / 2**20:.0f} MiB"
    for peer, share in row["asked_share"].items():
        other = row["bytes"][peer]
        if other is None:
            yield Verdict(
                row["line"], case, f"memory, {peer}", f"<= {share:.3f}", "it failed", None
            )
            continue
        measured = f"{grown / other:.3f} ({size} of {other / 2**20:.0f} MiB)"
        yield Verdict(
            row["line"],
            case,
            f"share of the memory of {peer}",
            f"<= {share:.3f}",
            measured,
            grown <= share * other,
        )
    if row["asked_outputs"] is not None:
        times = grown / row["output_bytes"]
        asked = f"<= {row['asked_outputs']}"
        measured = f"{times:.2f} ({size})"
        yield Verdict(
            row["line"], case, "memory / output", asked, measured, times <= row["asked_outputs"]
        )
    if row["asked_bytes"] is not None:
        asked = f"<= {row['asked_bytes'] / 2**20:.0f} MiB"
        yield Verdict(row["line"], case, "memory", asked, size, grown <= row["asked_bytes"])


def written(machine: dict[str, str], rows: list[Row]) -> str:
    """The page."""
    facts = "".join(f"- {key}: {value}\n" for key, value in machine.items())
    table = (
        "\n| line 条目 | case 项目 | figure 指标 | asked 要求 | measured 实测 | |\n"
        "|---|---|---|---|---|---|\n"
    )
    found = sorted((v for row in rows for v in verdicts(row)), key=lambda v: v.line)
    seconds = (
        "\n| case 项目 | L | who 方法 | wall, ms 时钟 | processor, ms 处理器 | roof 峰值占比 |\n"
        "|---|---|---|---|---|---|\n"
    )
    return (
        HEAD.format(turns=TURNS)
        + facts
        + table
        + "".join(v.row() for v in found)
        + seconds
        + "".join(line for row in rows if "times" in row for line in _seconds(row))
    )


def _seconds(row: Row) -> Iterator[str]:
    for name, each in row["seconds"].items():
        share = row["share_of_roof"].get(name)
        cells = (
            row["case"],
            row["length"],
            name,
            f"{1000 * each['wall']:.1f}",
            f"{1000 * each['cpu']:.1f}",
            "" if share is None else f"{share:.0%}",
        )
        yield "| " + " | ".join(map(str, cells)) + " |\n"

"""The page with the required and the measured values, in English and Chinese."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.timing import TURNS
from benchmarks.work import OURS

Row = dict[str, Any]

HEAD = """# Benchmarks

基准测试

`make bench` writes this page. All cases use float32, B=1, H=8, D=64 and two threads.

- **Requirement**: the number of the performance requirement; one requirement may cover several
  cases. A value without a required value is reported only.
- **Time**: the median of {turns} repetitions. In each repetition, every implementation of a case
  runs once. Each case runs in a separate process.
- **Speedup**: the time of the other implementation divided by the time of headwise, first in
  wall-clock time and then, in brackets, in processor time. Processor time includes the time for
  which threads wait (OpenMP's default).
- **Share of peak speed**: the FLOP/s of the case divided by the FLOP/s of a product of two
  1536 x 1536 matrices on the same machine in the same repetitions. The FLOPs of forward + backward
  are counted as 3.5 times the FLOPs of forward.
- **Memory**: the growth of the resident memory of a new process in one call.

A case is measured only if the outputs and gradients of headwise pass the acceptance rule against
the float64 reference, and if the other implementations compute the same result. There are three
exceptions: the two Reformers hash with different random numbers; `local-attention` attends to one
more key under the causal window; and the modules are compared with PyTorch's in the tests.

本页由 `make bench` 生成。所有项目都使用 float32，B=1，H=8，D=64，两个线程。

- **要求编号**（requirement）：性能要求的编号；一项要求可以涵盖几个项目。没有要求值的数值仅供参考。
- **时间**（time）：重复 {turns} 次的中位数。每次重复中，一个项目的各个实现各运行一次。
  每个项目在单独的进程中运行。
- **加速比**（speedup）：另一实现的用时除以 headwise 的用时；先给出墙钟时间之比，
  括号内是处理器时间之比。处理器时间包含线程等待的时间（OpenMP 的默认方式）。
- **峰值速度占比**（share of peak speed）：该项目的 FLOP/s 除以同一机器在同样各次重复中
  计算两个 1536 x 1536 矩阵之积的 FLOP/s。前向加反向的 FLOPs 按前向的 3.5 倍计。
- **内存**（memory）：新进程在一次调用中常驻内存的增长。

只有 headwise 的输出和梯度按验收规则与 float64 参考结果一致，并且其他实现计算同样的结果时，
才测量一个项目。有三个例外：两个 Reformer 用不同的随机数计算哈希；`local-attention`
在因果窗口下多关注一个键；整个模块由测试与 PyTorch 的模块比较。

"""


@dataclass(frozen=True)
class Verdict:
    """One measured quantity and its requirement.

    Attributes:
        line: the number of the requirement.
        case: the name of the case.
        what: the name of the quantity.
        asked: the required value, as text; "" if there is none.
        measured: the measured value, as text.
        holds: whether the requirement is met; None if there is none.
    """

    line: int
    case: str
    what: str
    asked: str
    measured: str
    holds: bool | None

    def told(self) -> str:
        """Return one line for the terminal."""
        mark = {True: "met", False: "NOT MET", None: "-"}[self.holds]
        return f"[{self.line}] {self.what}: {self.measured} (required {self.asked}) {mark}"

    def row(self) -> str:
        """Return one row of the table of the page."""
        mark = {True: "✓", False: "✗", None: ""}[self.holds]
        cells = (self.line, self.case, self.what, self.asked, self.measured, mark)
        return "| " + " | ".join(map(str, cells)) + " |\n"


def verdicts(row: Row) -> Iterator[Verdict]:
    """Yield the verdicts of one row of the results."""
    if "error" in row:
        yield Verdict(0, row["key"], "failed", "", row["error"], False)
    elif "times" in row:
        yield from _of_time(row)
    elif "bytes" in row:
        yield from _of_memory(row)
    else:
        name, asked, got = f"{row['case']}", row["asked"], row["measured"]
        share = row["line"] == 11
        what = "share of the attention time" if share else "time at L=65536 / time at L=16384"
        words = (f"<= {asked:.0%}", f"{got:.2%}") if share else (f"<= {asked}", f"{got:.2f}")
        yield Verdict(row["line"], name, what, *words, got <= asked)


def _of_time(row: Row) -> Iterator[Verdict]:
    case = f"{row['case']}, L={row['length']}"
    for peer, got in row["times"].items():
        asked = row["asked_times"].get(peer)
        words = "" if asked is None else f">= {asked:.2f}"
        measured = f"{got:.2f} ({row['cpu_times'][peer]:.2f})"
        holds = None if asked is None else got >= asked
        yield Verdict(row["line"], case, f"speedup over {peer}", words, measured, holds)
    share, asked = row["share_of_roof"][OURS], row["asked_roof"]
    words, holds = ("", None) if asked is None else (f">= {asked:.0%}", share >= asked)
    yield Verdict(row["line"], case, "share of peak speed", words, f"{share:.0%}", holds)
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
            yield Verdict(row["line"], case, f"memory / {peer}", f"<= {share:.3f}", "failed", None)
            continue
        measured = f"{grown / other:.3f} ({size} of {other / 2**20:.0f} MiB)"
        yield Verdict(
            row["line"],
            case,
            f"memory / memory of {peer}",
            f"<= {share:.3f}",
            measured,
            grown <= share * other,
        )
    if (most := row["asked_outputs"]) is not None:
        times, what = grown / row["output_bytes"], "memory / output size"
        measured = f"{times:.2f} ({size})"
        yield Verdict(row["line"], case, what, f"<= {most}", measured, times <= most)
    if row["asked_bytes"] is not None:
        asked = f"<= {row['asked_bytes'] / 2**20:.0f} MiB"
        yield Verdict(row["line"], case, "memory", asked, size, grown <= row["asked_bytes"])


def written(machine: dict[str, str], rows: list[Row]) -> str:
    """Return the page as Markdown."""
    facts = "".join(f"- {key}: {value}\n" for key, value in machine.items())
    table = (
        "\n| requirement 要求编号 | case 项目 | quantity 指标 | required 要求值 "
        "| measured 实测值 | met 达标 |\n"
        "|---|---|---|---|---|---|\n"
    )
    found = sorted((v for row in rows for v in verdicts(row)), key=lambda v: v.line)
    seconds = (
        "\n| case 项目 | L | implementation 实现 | wall-clock time 墙钟时间, ms | "
        "processor time 处理器时间, ms | share of peak speed 峰值速度占比 |\n"
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

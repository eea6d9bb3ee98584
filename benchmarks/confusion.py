"""The confusion table of `verify` on the corpus of targets.

python -m benchmarks.confusion            # print the table
python -m benchmarks.confusion --write    # also write it into docs/verify.md
"""

import json
import runpy
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import BadFile
from headwise.verify import verify
from headwise.verify.target import load

ROOT = Path(__file__).parent.parent
TARGETS = ROOT / "tests" / "verify" / "targets"
STRANGERS = TARGETS / "strangers"
PAGE = ROOT / "docs" / "verify.md"
EMBED_DIM, HEADS = 12, 3
START, END = "<!-- figures: {} -->", "<!-- end of figures: {} -->"


@dataclass(frozen=True)
class Target:
    """One attention implementation of the corpus and its mistakes.

    Attributes:
        words: the target as on the command line, path/to/file.py:Name.
        mistakes: the names of its known mistakes.
        right: whether the implementation is correct.
        heads: the number of heads in the checks.
    """

    words: str
    mistakes: tuple[str, ...]
    right: bool
    heads: int = HEADS

    @property
    def name(self) -> str:
        """The file name and the name of the target, without the folder."""
        return Path(self.words).name


@dataclass(frozen=True)
class TargetResult:
    """The result of `verify` for one target, and the CPU seconds."""

    target: Target
    accepted: bool
    named: tuple[frozenset[str], ...]
    seconds: float

    @property
    def named_right(self) -> bool:
        """Whether a named set is exactly its mistakes; if unknown, whether no set is named."""
        wanted = frozenset(self.target.mistakes)
        return not self.named if not wanted else wanted in self.named


@dataclass(frozen=True)
class Stranger:
    """One target of the strangers' corpus: its file and name, and its mistake, if it has one."""

    file: str
    name: str
    right: bool
    named: tuple[str, ...]


@dataclass(frozen=True)
class StrangerResult:
    """What `verify` said of a stranger's target: a status, or "refused", and named mistakes."""

    stranger: Stranger
    status: str
    named: tuple[frozenset[str], ...]
    seconds: float

    @property
    def named_right(self) -> bool:
        """Whether the mistake is among those named; none for a right target."""
        if not self.stranger.named:
            return not self.named
        return any(set(self.stranger.named) & group for group in self.named)


def strangers() -> Iterator[Stranger]:
    """Every target of the strangers' corpus, as its manifest lists it."""
    manifest = json.loads((STRANGERS / "manifest.json").read_text(encoding="utf-8"))
    for entry in manifest:
        yield Stranger(entry["file"], entry["target"], entry["right"], tuple(entry["named"]))


def check_stranger(stranger: Stranger) -> StrangerResult:
    """Verify one stranger's target, without an option."""
    start = time.process_time()
    try:
        report = verify(load(f"{STRANGERS / stranger.file}:{stranger.name}"), stranger.file)
    except BadFile:
        return StrangerResult(stranger, "refused", (), time.process_time() - start)
    named = tuple(frozenset(m.name for m in group) for group in report.mistakes)
    return StrangerResult(stranger, report.status, named, time.process_time() - start)


def strangers_table(results: list[StrangerResult], chinese: bool) -> str:
    """The five figures of the strangers' corpus as Markdown."""
    right = [r for r in results if r.stranger.right]
    wrong = [r for r in results if not r.stranger.right]
    unjudged = [r for r in results if r.status in ("refused", "unproven")]
    rows = [
        ("right, passed", "正确，通过", sum(r.status == "accepted" for r in right), len(right)),
        ("right, accused", "正确，被误判", sum(r.status == "differs" for r in right), len(right)),
        ("wrong, caught", "错误，被发现", sum(r.status == "differs" for r in wrong), len(wrong)),
        ("wrong, named right", "错误，指名正确", sum(r.named_right for r in wrong), len(wrong)),
        ("refused or unproven", "无法验证或未能证明", len(unjudged), len(results)),
    ]
    head = "| 结果 | 个数 | 总数 |" if chinese else "| outcome | targets | of |"
    lines = [head, "|---|---|---|"]
    lines += [f"| {zh if chinese else en} | {n} | {of} |" for en, zh, n, of in rows]
    seconds = [r.seconds for r in results]
    middle, most = statistics.median(seconds), max(seconds)
    times = f"CPU seconds: median {middle:.1f}, at most {most:.1f}."
    times = f"CPU 秒数：中位数 {middle:.1f}，最多 {most:.1f}。" if chinese else times
    return "\n".join((*lines, "", times))


def corpus() -> Iterator[Target]:
    """Yield every target whose file lists its mistakes."""
    for path in sorted(p for p in TARGETS.rglob("*.py") if STRANGERS not in p.parents):
        module = runpy.run_path(str(path))
        for name, mistakes in module.get("MISTAKES", {}).items():
            right = not mistakes and name not in module.get("UNKNOWN", ())
            yield Target(f"{path}:{name}", mistakes, right, module.get("HEADS", HEADS))


def check_target(target: Target) -> TargetResult:
    """Verify one target."""
    start = time.process_time()
    report = verify(load(target.words), target.name, embed_dim=EMBED_DIM, heads=target.heads)
    named = tuple(frozenset(m.name for m in group) for group in report.mistakes)
    return TargetResult(target, report.accepted, named, time.process_time() - start)


def figures(told: list[TargetResult]) -> dict[str, int]:
    """Count the correct and the wrong targets by their result."""
    right = [t for t in told if t.target.right]
    wrong = [t for t in told if not t.target.right]
    return {
        "right": len(right),
        "right passed": sum(t.accepted and not t.named for t in right),
        "right accused": sum(not t.accepted or bool(t.named) for t in right),
        "wrong": len(wrong),
        "wrong caught": sum(not t.accepted for t in wrong),
        "wrong named right": sum(t.named_right for t in wrong),
        "wrong named wrong": sum(not t.named_right and bool(t.named) for t in wrong),
        "wrong not recognised": sum(not t.named_right and not t.named for t in wrong),
    }


def table(told: list[TargetResult], chinese: bool) -> str:
    """Return the confusion table as Markdown."""
    f = figures(told)
    rows = [
        ("correct, accepted", "正确的实现，通过", f["right passed"], f["right"]),
        ("correct, rejected", "正确的实现，被误判", f["right accused"], f["right"]),
        ("wrong, rejected", "错误的实现，被检出", f["wrong caught"], f["wrong"]),
        ("wrong, diagnosis correct", "错误的实现，诊断正确", f["wrong named right"], f["wrong"]),
        ("wrong, diagnosis wrong", "错误的实现，诊断有误", f["wrong named wrong"], f["wrong"]),
        ("wrong, no diagnosis", "错误的实现，没有诊断", f["wrong not recognised"], f["wrong"]),
    ]
    head = "| 结果 | 个数 | 总数 |" if chinese else "| result | count | total |"
    lines = [head, "|---|---|---|"]
    lines += [f"| {zh if chinese else en} | {n} | {of} |" for en, zh, n, of in rows]
    return "\n".join((*lines, "", times(told, chinese)))


def times(told: list[TargetResult], chinese: bool) -> str:
    """Return a sentence with the CPU seconds for targets with one and with two mistakes."""
    parts = []
    for count, en, zh in ((1, "one mistake", "一个错误"), (2, "two mistakes", "两个错误")):
        of = [t.seconds for t in told if len(t.target.mistakes) == count]
        middle, most = statistics.median(of), max(of)
        word = f"含{zh}的目标为 {middle:.1f}（最大 {most:.1f}）"
        parts.append(word if chinese else f"{middle:.1f} (maximum {most:.1f}) for {en}")
    size = f"E = {EMBED_DIM}, H = {HEADS}"
    if chinese:
        return f"一次验证所用 CPU 秒数的中位数（{size}，torch 已载入）：{'，'.join(parts)}。"
    return f"Median CPU seconds of a verification, torch loaded, {size}: {', '.join(parts)}."


def write(told: list[TargetResult], others: list[StrangerResult]) -> None:
    """Write the tables in both languages between their marks on the page."""
    text = PAGE.read_text(encoding="utf-8")
    tables = {
        mark: table(told, mark == "zh")
        if mark in ("en", "zh")
        else strangers_table(others, "zh" in mark)
        for mark in ("en", "zh", "strangers: en", "strangers: zh")
    }
    for mark, content in tables.items():
        start, end = START.format(mark), END.format(mark)
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = f"{before}{start}\n{content}\n{end}{after}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Verify every target; print one line for each unexpected result, then the table."""
    told = []
    for target in corpus():
        one = check_target(target)
        told.append(one)
        if one.accepted != target.right or not one.named_right:
            said = " or ".join(" + ".join(sorted(group)) for group in one.named) or "none"
            wanted = " + ".join(target.mistakes) or "-"
            print(f"{target.name}: accepted: {one.accepted}, named: {said}, expected: {wanted}")
    print(table(told, chinese=False))
    others = [check_stranger(stranger) for stranger in strangers()]
    for other in others:
        if not other.named_right or (other.status == "accepted") != other.stranger.right:
            print(f"{other.stranger.file}: {other.status}, {[sorted(g) for g in other.named]}")
    print(strangers_table(others, chinese=False))
    if "--write" in sys.argv:
        write(told, others)


if __name__ == "__main__":
    main()

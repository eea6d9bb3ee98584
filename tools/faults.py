"""Fault injection: check that the fast tests detect known faults in the source.

python -m tools.faults             insert every fault and write docs/faults.md
python -m tools.faults NUMBER ...  insert only these faults

A fault replaces one place in a copy of the source. The tests of the changed package then run until
one fails. If no test fails, a test is missing.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faults.md"
SECONDS = 400
"""The time limit of the tests of one fault; a fault counts as undetected after it."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+)", re.MULTILINE)
HEAD = """# Fault injection

植入的错误

`python -m tools.faults` inserts these faults into a copy of the source, one at a time, and runs the
fast tests of the changed package until a test fails. The last column names this test.

`python -m tools.faults` 把下列错误逐一植入源码的副本，并运行被改动的包的快速测试，直到有测试失败。
最后一列是首先失败的测试。

| number 编号 | package 包 | fault 错误 | detected by 检出该错误的测试 |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Fault:
    """A change of one place in the source.

    Attributes:
        room: the changed package or module of ``src/headwise``.
        what: the description of the fault.
        place: a regular expression that matches once in the package.
        wrong: the replacement of the match, as in `re.sub`.
        tests: files under ``tests`` that run before the other tests of the package.
    """

    room: str
    what: str
    place: str
    wrong: str
    tests: str = ""


FAULTS = (
    Fault(
        "masks",
        "causal: the query's own key is masked (off by one)",
        r"return k <= q\n",
        "return k < q\n",
    ),
    Fault(
        "masks",
        "window: one key too few on the left (off by one)",
        r"k >= q - self\.left\)",
        "k > q - self.left)",
    ),
    Fault(
        "masks",
        "window: a partly masked tile is classified as full (wrong end of the range)",
        r"k\[0\] >= q\[-1\] - self\.left",
        "k[0] >= q[0] - self.left",
    ),
    Fault(
        "masks",
        "padding: a tile with one padded key is classified as full",
        r"if k\[-1\] < shortest",
        "if k[-1] <= shortest",
    ),
    Fault(
        "positions",
        "ALiBi: the slope has the wrong sign",
        r"return -slopes\.view",
        "return slopes.view",
    ),
    Fault(
        "positions",
        "ALiBi: the wrong half of the interleaved slopes is used",
        r"twice\[0::2\]",
        "twice[1::2]",
    ),
    Fault(
        "positions",
        "Rotary: the rotation has the wrong direction (sign)",
        r"first \* cos - second \* sin",
        "first * cos + second * sin",
    ),
    Fault(
        "positions",
        "T5: the last bucket is not used (off by one)",
        r"\.clamp\(max=buckets - 1\)",
        ".clamp(max=buckets - 2)",
    ),
    Fault(
        "positions",
        "Shaw: the distance is query - key (operands swapped)",
        r"\(key\[None\] - query\[:, None\]\)\.clamp",
        "(query[:, None] - key[None]).clamp",
    ),
    Fault(
        "call",
        "the default scale is 1/D instead of 1/sqrt(D)",
        r"return 1\.0 / math\.sqrt\(dim\)",
        "return 1.0 / dim",
        "test_attention.py test_reference.py",
    ),
    Fault(
        "reference",
        "logsumexp: the logarithm is subtracted (sign)",
        r"peak \+ total\.log\(\)",
        "peak - total.log()",
        "test_reference.py",
    ),
    Fault(
        "reference",
        "keys that are masked for every query are not set to 0 (missing step)",
        r"torch\.where\(allowed\.any\(-2\)\[\.\.\., None\], rows, torch\.zeros_like\(rows\)\)",
        "rows",
        "test_reference.py",
    ),
    Fault(
        "engines",
        "eager: fully masked queries have uniform weights (missing step)",
        r"weights = weights\.masked_fill\(fully_masked, 0\.0\)",
        "pass",
    ),
    Fault(
        "engines",
        "eager: the grouped heads are in the wrong order (axis)",
        r"folded = rows\.reshape\(batch, groups,",
        "folded = rows.unflatten(1, (-1, groups)).transpose(1, 2).reshape(batch, groups,",
    ),
    Fault(
        "engines",
        "eager: dropout is not scaled by 1 / (1 - p)",
        r"0\.0 if call\.dropout == 1 else 1 / \(1 - call\.dropout\)",
        "1.0",
    ),
    Fault(
        "engines",
        "sinks: the gradient has the wrong sign",
        r"= -\(grad\.to\(wide\) \* output\.to\(wide\)\)",
        "= (grad.to(wide) * output.to(wide))",
    ),
    Fault(
        "engines",
        "tiled: two partial results are combined with exchanged weights",
        r"\(new_sum - (\w+)\)\.exp\(\)",
        r"(old_sum - \1).exp()",
    ),
    Fault(
        "engines",
        "lsh: a chunk attends to the next chunk instead of the previous chunk",
        r"torch\.where\(chunk == 0, last, chunk - 1\)",
        "torch.where(chunk == last, 0, chunk + 1)",
    ),
    Fault(
        "planning",
        "FLOPs: one matrix product is counted instead of two",
        r"computed \* \(q\.shape\[3\] \+ v\.shape\[3\]\)",
        "computed * q.shape[3]",
        "cli/test_plan.py test_attention.py",
    ),
    Fault(
        "nn",
        "cache: keys and values are not reordered for beam search (missing index)",
        r"lambda rows, _: rows\.index_select\(0, index\)",
        "lambda rows, _: rows",
    ),
    Fault(
        "nn",
        "cache: samples are counted instead of tokens (axis)",
        r"self\.seen \+ k\.shape\[2\]",
        "self.seen + k.shape[0]",
    ),
    Fault(
        "nn",
        "UnitNorm: the norm is computed in the dtype of the input",
        r"y = x\.to\(torch\.promote_types\(x\.dtype, torch\.float32\)\)",
        "y = x",
        "nn/test_parts.py",
    ),
    Fault(
        "nn",
        "a padding mask in PyTorch's convention is not inverted",
        r"return padding\(~rows\)",
        "return padding(rows)",
    ),
    Fault(
        "document",
        "a number that rounds to zero is printed with a minus sign",
        r'text\.lstrip\("-"\) if not float\(text\) else text',
        "text",
    ),
    Fault(
        "document",
        "HTML: scripts and styles are read as text (missing guard)",
        r', "rt", "rp", \*RAW_TEXT\}',
        ', "rt", "rp"}',
        "document/reading",
    ),
    Fault(
        "explain",
        "the bias of the value projection is used for the keys (wrong name)",
        r'(?<=bias = getattr\(self, name\), )getattr\(self, f"\{name\}_bias"\)',
        """getattr(self, f"{'v' if name == 'k' else name}_bias")""",
    ),
    Fault(
        "explain",
        "a percentage in a table is not divided by 100",
        r"percent / 100",
        "percent",
        "explain/test_array_files.py",
    ),
    Fault(
        "check",
        "a printed number may differ by one unit in the last digit instead of half a unit",
        r"self\.step / 2",
        "self.step",
    ),
    Fault("check", "a percentage is not divided by 100", r'\(2 if form\["percent"\] else 0\)', "0"),
    Fault(
        "verify",
        "a result that satisfies only one of the two bounds is accepted",
        r"worst <= allowed and rms <= allowed_rms",
        "worst <= allowed or rms <= allowed_rms",
        "test_roundings.py",
    ),
    Fault(
        "verify",
        "the attention weights of masked keys are not checked (missing check)",
        r"if bool\(hidden\.any\(\)\):",
        "if False:",
        "verify/test_metamorphic.py",
    ),
    Fault(
        "verify",
        "a report on another target in the pipe is taken",
        r'return "" if got == expected else',
        'return "" if True else',
        "verify/test_isolation.py",
    ),
    Fault(
        "verify",
        "a replaced method of tensors is not noticed (only those of the base class are read)",
        r"for base in reversed\(cls.__mro__\) for name, v in _members\(base\)",
        "for base in cls.__mro__[1:2] for name, v in _members(base)",
        "verify/test_tampering.py",
    ),
    Fault(
        "verify",
        "a comparison at the end of a file counts as a forbidden use",
        r'if frame.f_code.co_name == "<module>":',
        "if False:",
        "verify/test_forbidden.py",
    ),
    Fault(
        "verify",
        "a changed file is not verified again when a run is resumed",
        r"content = repr\(\(self._common, target, digest\(target\)\)\)",
        "content = repr((self._common, target))",
        "verify/submissions",
    ),
    Fault(
        "verify",
        "a layer is taken for an attention beside the one in it",
        r"if inner.value in trial.whole:\n                result\[outer.name\]",
        "if inner.value in trial.whole:\\n                result[inner.name]",
        "verify/submissions",
    ),
    Fault(
        "verify",
        "a message to GitHub is not escaped",
        r'kept.replace\("%", "%25"\)',
        "kept",
        "verify/test_annotations.py",
    ),
    Fault(
        "document",
        "a text that a spreadsheet runs as a formula is written as it stands",
        r"isinstance\(cell, str\) and cell.startswith\(FORMULA\)",
        "False",
        "verify/submissions",
    ),
    Fault(
        "heads",
        "Wilson interval: the one-sided quantile is used",
        r"\(1 \+ confidence\) / 2\)",
        "confidence)",
        "heads/statistics",
    ),
    Fault(
        "heads",
        "Holm correction: the number of tests is too small by one (off by one)",
        r"\(len\((\w+)\) - (\w+)\) \* ",
        r"(len(\1) - \2 - 1) * ",
        "heads/statistics",
    ),
    Fault(
        "heads",
        "loss: the first token after padding is predicted (missing condition)",
        r"mask\[:, first:\] & mask\[:, first - 1 : -1\]",
        "mask[:, first:]",
        "heads/ablation",
    ),
    Fault(
        "heads",
        "CoNLL-U: the indices of heads start at 1 instead of 0",
        r"int\(head\) - 1 for head",
        "int(head) for head",
        "heads/naming heads/corpus",
    ),
    Fault(
        "heads",
        "the previous-token metric uses the next token",
        r"return (\w+)\.shifted\(-1\)",
        r"return \1.shifted(1)",
        "heads/metrics",
    ),
    Fault(
        "heads",
        "importance: gradients of different examples cancel (absolute value after the mean)",
        r"self\.gradients\[layer\]\.abs\(\)\.mean\(0\)",
        "self.gradients[layer].mean(0).abs()",
        "heads/ablation/test_importance.py",
    ),
    Fault(
        "drawing",
        "the upper bound for a mask that is too large to count treats mixed tiles as empty",
        r"1 - empty / self\.pairs",
        "full / self.pairs",
        "cli/test_show.py",
    ),
)


def run(number: int) -> str:
    """Insert one fault and run its tests; return the first failed test, or why there is none."""
    fault = FAULTS[number]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("src", "tests", "tools", "docs", "examples", "benchmarks"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.glob("*.*"):
            if file.is_file():
                shutil.copy(file, copy)
        changed = 0
        for file in files_of(copy, fault):
            text, count = re.subn(fault.place, fault.wrong, file.read_text(encoding="utf-8"))
            file.write_text(text, encoding="utf-8")
            changed += count
        if changed != 1:
            return f"the pattern matches {changed} times instead of once"
        test = _first_failure(copy, _tests(copy, fault)).split("[")[0]
    if "::" in test and _first_failure(ROOT, [test]) != "nothing":
        return f"{test} fails without the fault"
    return test


def files_of(copy: Path, fault: Fault) -> list[Path]:
    """Return the files of the package or module that a fault changes."""
    place = copy / "src" / "headwise" / fault.room
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def _tests(copy: Path, fault: Fault) -> list[str]:
    names = [*fault.tests.split(), fault.room, f"test_{fault.room}.py"]
    return [f"tests/{name}" for name in dict.fromkeys(names) if (copy / "tests" / name).exists()]


def _first_failure(copy: Path, tests: list[str]) -> str:
    """Return the test that fails first in a copy of the source, or why there is none."""
    path = os.pathsep.join((str(copy / "src"), str(copy)))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests]
    command += ["-p", "no:cacheprovider", "--no-header", "--tb=no"]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=copy, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"nothing within {SECONDS} s"
    match = FAILED.search(done.stdout)
    return match["test"] if match else "nothing"


def main(numbers: list[int]) -> int:
    """Insert the faults, print a row of the table for each, and return the exit status."""
    rows, missed = [], 0
    for number in numbers or range(len(FAULTS)):
        fault, test = FAULTS[number], run(number)
        missed += "::" not in test or " " in test
        rows.append(f"| {number + 1} | {fault.room} | {fault.what} | `{test}` |")
        print(rows[-1], flush=True)
    if not numbers:
        PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main([int(word) - 1 for word in sys.argv[1:]]))

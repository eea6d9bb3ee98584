"""Runs PyTorch's own test files of attention with headwise's module in place of PyTorch's.

    python -m tests.peers.torch_own_tests FOLDER

FOLDER holds ``test_multihead_attention.py``, ``test_native_mha.py`` and ``test_transformers.py``
of PyTorch's repository (``test/nn`` and ``test``), fetched by hand: they are not part of this one.
They import the package expecttest. Each file runs three times, in processes of its own: as it
stands; with the class replaced by `headwise.MultiheadAttention`; and with every module converted by
`headwise.convert` when it is called, so that its weights are those that the test has set. Only
tests that pass as they stand count. The table lists, for each file, how many pass, and the others
by reason; every reason but "not explained" is a line of ``docs/differences.md``.
"""

import argparse
import json
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = ("test_multihead_attention.py", "test_native_mha.py", "test_transformers.py")
WAYS = ("torch", "class", "convert")

REASONS = (
    ("the packed in_proj_weight", r"has separate projections|'in_proj_\w+' already exists",
     "share the parameter `in_proj_weight`"),
    ("torch.jit.script", r"torch[/\\]jit[/\\]|Unsupported annotation", "`torch.jit.script`"),
    ("nested tensors", r"got a nested one", "nested tensors are supported"),
    ("a mock counts calls of the fast path", r"unittest[/\\]mock|assert_called|mock\.",
     "the fast path of `nn.TransformerEncoderLayer`"),
    ("a bias of another dtype than its weight", r"must have the same dtype",
     "a bias whose dtype differs"),
    ("another text of an error", r"does not match", "invalid arguments cause `AssertionError`"),
    ("another type of error, or none", r"not raised|headwise\.errors\.Bad",
     "invalid arguments cause `AssertionError`"),
    ("numbers set by the order of parameters()", r"not close|not equal|mismatch",
     "share the parameter `in_proj_weight`"),
)  # fmt: skip
"""Why a test fails, by what its traceback says, the first that fits; and the line of
``docs/differences.md`` that says it."""


@dataclass(frozen=True)
class Outcome:
    """How one test ended: "pass", "skip", or its traceback."""

    name: str
    text: str


def replace_class(way: str) -> None:
    """Put headwise's module, or its computation, in the place of PyTorch's."""
    import torch
    from torch.nn.modules import activation, transformer

    import headwise as hw
    from headwise.nn.torch_compat import unpack

    if way == "class":
        for place in (torch.nn, torch.nn.modules, activation, transformer):
            place.MultiheadAttention = hw.MultiheadAttention  # type: ignore[attr-defined]
    if way == "convert":

        def forward(self: torch.nn.MultiheadAttention, *given: Any, **options: Any) -> Any:
            conversion = hw.convert(self)
            if not conversion.changed:
                raise ValueError(f"not converted: {conversion}")
            ours: Any = conversion.model
            parameters = dict(self.named_parameters())  # so that gradients reach them
            unpack(ours, parameters, "")
            return torch.func.functional_call(ours, parameters, given, options)

        torch.nn.MultiheadAttention.forward = forward  # type: ignore[method-assign]
        torch.backends.mha.set_fastpath_enabled(False)  # it would bypass the module


class Results(unittest.TestResult):
    """Keeps the outcome of every test."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []

    def _add(self, test: unittest.TestCase, text: str) -> None:
        self.outcomes.append(Outcome(test.id(), text))

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._add(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._add(test, "skip")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._add(test, "".join(traceback.format_exception(*err)))

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.addError(test, err)


def run(path: Path, way: str, into: Path) -> None:
    """Run one file in this process, and write its outcomes."""
    replace_class(way)
    module = runpy.run_path(str(path), run_name="torch_tests")
    cases = [
        value
        for value in module.values()
        if isinstance(value, type) and issubclass(value, unittest.TestCase)
    ]
    loader, results = unittest.TestLoader(), Results()
    wanted = unittest.TestSuite(
        test
        for case in cases
        for test in loader.loadTestsFromTestCase(case)
        if uses_attention(path, test.id())
    )
    wanted.run(results)
    into.write_text(json.dumps([vars(outcome) for outcome in results.outcomes]))


def uses_attention(path: Path, name: str) -> bool:
    """Whether a test may use the module: those of scaled_dot_product_attention do not."""
    if path.name != "test_transformers.py":
        return True
    return not re.search(r"SDPA|sdp|scaled_dot|mem_efficient|fused|flash|kernel", name)


def outcomes(path: Path, way: str, timeout: float) -> dict[str, str]:
    """The outcome of every test of a file, run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "outcomes.json"
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, str(path)]
        subprocess.run(
            [*command, "--way", way, "--into", str(into)],
            timeout=timeout,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if not into.exists():
            return {}
        return {entry["name"]: entry["text"] for entry in json.loads(into.read_text())}


def reason(text: str) -> str:
    """Why a test failed.

    Example:
        >>> reason("AssertionError: ValueError not raised")
        'another type of error, or none'
        >>> reason("KeyError: 3")
        'not explained: KeyError: 3'
    """
    for name, pattern, _ in REASONS:
        if re.search(pattern, text):
            return name
    return f"not explained: {text.strip().splitlines()[-1][:70]}"


def report(folder: Path, timeout: float, *, every: bool = False) -> str:
    """The table of all files that are there."""
    lines = []
    for name in FILES:
        if not (folder / name).exists():
            continue
        usual = outcomes(folder / name, "torch", timeout)
        counted = {test for test, text in usual.items() if text == "pass"}
        lines.append(f"{name}: {len(counted)} of {len(usual)} pass as they stand")
        for way in WAYS[1:]:
            found = outcomes(folder / name, way, timeout)
            failed = {test: found.get(test, "did not run") for test in sorted(counted)}
            failed = {test: text for test, text in failed.items() if text != "pass"}
            lines.append(f"  {way}: {len(counted) - len(failed)} of {len(counted)}")
            reasons = Counter(reason(text) for text in failed.values())
            lines += [f"    {count:4} {why}" for why, count in reasons.most_common()]
            if every:
                lines += [f"      {test}: {reason(text)}" for test, text in failed.items()]
    return "\n".join(lines) or f"none of {', '.join(FILES)} is in {folder}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path, help="the folder of the files")
    parser.add_argument("--every", action="store_true", help="name every test that fails")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for each run")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run(options.path, options.way, options.into)
    else:
        table = report(options.path, options.timeout, every=options.every)
        sys.stdout.write(f"{table}\n")


if __name__ == "__main__":
    main()

"""The snippets of a report run where headwise is not installed."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from headwise.verify import verify
from headwise.verify.diagnosis.snippet_source import constructor_call, literal, loading
from headwise.verify.target import load

TARGETS = Path(__file__).parent / "targets"
BLOCKED = "import sys\nsys.modules['headwise'] = None\n"

COMPARED = """
results = result if isinstance(result, tuple) else (result,)
result = next(item for item in results if item.shape == exact.shape)
assert bool((result - exact).abs().max() > 1e-4)
"""

KINDS = {
    "a class": "wrong.py:no_scale",
    "a function": "wrong.py:no_scale_function",
    "norms around it": "corpus/around.py:PostNormNoScale",
    "a config": "corpus/around.py:CachedOverQueries",
}


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_a_snippet_names_no_headwise(name: str) -> None:
    target = f"{TARGETS / name}"
    report = verify(load(target), target)
    assert report.smallest
    for code in report.smallest.values():
        assert "headwise" not in code.replace(str(TARGETS), "")
        assert "sys.path.insert(0, " in code


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_a_snippet_runs_without_headwise_and_shows_the_difference(name: str) -> None:
    target = f"{TARGETS / name}"
    for code in set(verify(load(target), target).smallest.values()):
        words = [sys.executable, "-c", BLOCKED + code + COMPARED]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_file_whose_name_is_that_of_a_module_is_run_by_its_path(tmp_path: Path) -> None:
    for name in ("math", "not-a-name"):
        file = tmp_path / f"{name}.py"
        file.write_text("def f(x):\n    return x + 1\n")
        lines, call = loading(f"{file}:f")
        names: dict = {}
        exec("\n".join((*lines, f"result = {call}(1)")), names)  # noqa: S102 (our own)
        assert names["result"] == 2


def test_a_file_of_a_package_is_imported_from_it(tmp_path: Path) -> None:
    package = tmp_path / "some_package_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    lines, call = loading(f"{package / 'attention.py'}:Attention")
    assert lines[1:] == [
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "from some_package_of_mine.attention import Attention",
    ]
    assert call == "Attention"


def test_a_file_finds_what_it_imports_from_above(tmp_path: Path) -> None:
    inner = tmp_path / "course" / "week_two"
    inner.mkdir(parents=True)
    (inner.parent / "base_of_course.py").write_text("ONE = 1\n")
    (tmp_path / "shared_of_course.py").write_text("TWO = 2\n")
    file = inner / "attention_of_two.py"
    file.write_text(
        "from ..base_of_course import ONE\nfrom shared_of_course import TWO\n"
        "def f(x):\n    return x + ONE + TWO\n"
    )
    lines, call = loading(f"{file}:f")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((*lines, f"print({call}(1))"))],
        capture_output=True,
        text=True,
    )
    assert (done.stdout.strip(), done.stderr) == ("4", "")


class ByAttribute(nn.Module):
    def __init__(self, config, bias):
        super().__init__()
        self.size = config.n_embd


class ByKey(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.size, self.deep = config["n_embd"], config.get("deep", False)


class ByBoth(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.size, self.heads = config["n_embd"], config.n_embd


class Settings:
    n_embd = 768

    def __init__(self, bias):
        self.bias = bias
        self.without = not bias


class OfItsOwn(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.size, self.bias = config.n_embd, config.bias


def settings() -> Settings:
    own = Settings(bias=False)
    own.n_embd = 15
    return own


@pytest.mark.parametrize(
    ("cls", "arguments", "call"),
    [
        (
            ByAttribute,
            {"config": SimpleNamespace(n_embd=15), "bias": True},
            "ByAttribute(config=SimpleNamespace(n_embd=15), bias=True)",
        ),
        (ByKey, {"config": SimpleNamespace(n_embd=15)}, "ByKey(config={'n_embd': 15})"),
        (ByBoth, {"config": SimpleNamespace(n_embd=15)}, ""),
        (OfItsOwn, {"config": settings()}, "OfItsOwn(config=config)"),
    ],
    ids=["by attribute", "by key", "by both", "a class of its own"],
)
def test_a_config_is_written_as_the_class_reads_it(
    cls: type, arguments: dict[str, object], call: str
) -> None:
    lines, written = constructor_call(cls, arguments, f"{__file__}:{cls.__name__}")
    assert call in (written, "")
    names: dict = {}
    exec("\n".join((*lines, f"made = {written}")), names)  # noqa: S102 (our own)
    assert names["made"].size == 15
    assert not any(line.startswith("from headwise") for line in lines)


def test_literals_are_values_again() -> None:
    import torch

    for value in (torch.tensor([1.5, -torch.inf]), torch.full((2, 3), 0.1), (True, None), "word"):
        again = eval(literal(value), {"torch": torch})  # noqa: S307 (our own)
        assert str(again) == str(value)
    for value in (torch.float64, torch.device("cpu")):
        assert eval(literal(value), {"torch": torch}) == value  # noqa: S307 (our own)

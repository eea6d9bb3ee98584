"""The public names are exactly `headwise.__all__`, and each name has a docstring."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import headwise as hw
from headwise import errors
from headwise.lang import Translated

ROOT = Path(__file__).parent.parent


def test_the_names_are_listed_and_resolve():
    assert hw.__all__ == sorted(hw.__all__)
    packages = {
        "check",
        "engines",
        "explain",
        "heads",
        "masks",
        "nn",
        "plots",
        "positions",
        "verify",
    }
    assert set(dir(hw)) == {*hw.__all__, *packages, "__version__"}
    for name in hw.__all__:
        assert getattr(hw, name) is not None


def test_the_type_checker_sees_the_same_names():
    tree = ast.parse(Path(hw.__file__).read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in typed.body for alias in node.names}
    assert seen == set(hw.__all__)


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        hw.atend  # noqa: B018


@pytest.mark.parametrize("name", hw.__all__)
def test_every_public_name_explains_itself(name):
    doc = inspect.getdoc(getattr(hw, name)) or ""
    assert len(doc.splitlines()) > 1, f"{name}: say what it is, its shapes, what it raises"
    needs_example = name not in ("Plan", "Position", "Result")
    assert not needs_example or ">>>" in doc, f"{name}: show an example that runs"


def test_errors_are_drawn_as_the_tree_they_are():
    drawn = inspect.getdoc(errors) or ""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c is not errors.Text]
    for cls in classes:
        assert cls.__name__ in drawn
        assert issubclass(cls, errors.HeadwiseError)


def test_an_error_survives_pickling_with_both_languages():
    import copy

    error = errors.BadValue(Translated("x: wrong", "x：错误"))
    again = copy.copy(error)
    assert (str(again), again.text.zh) == ("x: wrong", "x：错误")
    assert isinstance(error, ValueError)
    assert isinstance(errors.BadType("a"), TypeError)
    assert isinstance(errors.MissingExtra.of("numpy", "explain"), ImportError)


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_the_readme_names_every_public_name(readme):
    text = (ROOT / readme).read_text(encoding="utf-8")
    missing = [name for name in hw.__all__ if f"{name}" not in text]
    assert not missing, f"{readme} does not mention {missing}"


def test_packages_need_no_import_of_their_own():
    """In a fresh process."""
    code = "import headwise as hw; print(hw.nn.UnitNorm(), hw.masks.causal(), hw.positions.YaRN)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UnitNorm(eps=1e-06) causal() <class")

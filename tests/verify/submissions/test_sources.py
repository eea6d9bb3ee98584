"""The files that arguments name, and what the result for one depends on."""

import os
from pathlib import Path

import pytest

from headwise.errors import BadFile
from headwise.verify.submissions.sources import digest, expanded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.py", "a.py", "week/c.py", "week/d.ipynb", "notes.md", ".hidden/e.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x = 1\n")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "f.py").write_text("")
    return tmp_path


def names(folder: Path, *arguments: str) -> list[str]:
    return [os.path.relpath(item, folder) for item in expanded(arguments)]


def test_a_folder_has_its_files_in_order_and_no_others(folder: Path) -> None:
    assert names(folder, str(folder)) == ["a.py", "b.py", "week/c.py", "week/d.ipynb"]


def test_patterns_and_files_and_each_once(folder: Path) -> None:
    assert names(folder, f"{folder}/*.py") == ["a.py", "b.py"]
    assert names(folder, f"{folder}/**/*.py", f"{folder}/a.py") == ["a.py", "b.py", "week/c.py"]
    assert names(folder, f"{folder}/we*") == ["week/c.py", "week/d.ipynb"]


def test_a_file_whose_name_is_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "[ab].py").write_text("")
    assert names(folder, f"{folder}/[ab].py") == ["[ab].py"]


def test_targets_stay_as_they_are() -> None:
    assert expanded(["b.py:Name", "torch.nn.MultiheadAttention"]) == [
        "b.py:Name",
        "torch.nn.MultiheadAttention",
    ]


@pytest.mark.parametrize("name", ["none.py", "none*.py"])
def test_a_file_that_is_not_there_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadFile, match="there is no file"):
        expanded([str(tmp_path / name)])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="has no Python file"):
        expanded([str(tmp_path)])


def test_too_many_files_are_an_error(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("headwise.verify.submissions.sources.MOST_FILES", 3)
    with pytest.raises(BadFile, match="has more than 3 files; name a smaller folder"):
        expanded([str(folder)])


def test_a_circle_of_links_ends(folder: Path) -> None:
    (folder / "week" / "circle").symlink_to(folder, target_is_directory=True)
    assert len(expanded([str(folder)])) == 4


def test_the_hash_is_of_the_file_and_of_the_local_files_it_imports(tmp_path: Path) -> None:
    main, package = tmp_path / "main.py", tmp_path / "parts"
    package.mkdir()
    sources = {
        main: "import torch\nfrom parts import heads\n",
        package / "__init__.py": "",
        package / "heads.py": "from . import scale\nfrom .merge import merge\n",
        package / "scale.py": "x = 1\n",
        package / "merge.py": "merge = 1\n",
        tmp_path / "other.py": "y = 1\n",
    }
    for file, source in sources.items():
        file.write_text(source)
    target = f"{main}:Attention"
    before = digest(target)
    assert digest(str(main)) == before != ""
    for file, source in sources.items():
        file.write_text(source + "# changed\n")
        assert (digest(target) == before) == (file.name == "other.py"), file
        file.write_text(source)
    assert digest(target) == before
    assert digest("torch.nn.MultiheadAttention") == ""


def test_the_hash_of_what_cannot_be_read_or_parsed_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"\x00(")
    assert digest(str(tmp_path / "bad.py")) != digest(str(tmp_path / "none.py"))

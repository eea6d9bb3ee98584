import pytest

from headwise.document.files import write
from headwise.errors import BadFile


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")
    write(path, "新\n")
    assert path.read_bytes() == "新\n".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("name", ["", "missing/a.txt"])
def test_a_place_that_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(BadFile, match=r"output: expected a file in an existing folder"):
        write(tmp_path / name, "text")


def test_text_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_a_name_the_system_refuses_is_one_clear_error(tmp_path):
    with pytest.raises(BadFile, match=r"output: cannot write .*; choose another place"):
        write(tmp_path / ("a" * 300), "text")

import os

import pytest

from headwise.document.files import check_place, write
from headwise.errors import BadFile


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")
    write(path, "新\n")
    assert path.read_bytes() == "新\n".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("name", ["missing/a.txt", "file/a.txt", "dangling"])
def test_a_folder_that_is_not_there_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere/a.txt")
    with pytest.raises(BadFile, match=r"output: expected a file in an existing folder"):
        write(tmp_path / name, "text")


def test_a_directory_is_refused_with_its_own_way_out(tmp_path):
    with pytest.raises(BadFile, match=r"output: expected a file, got the directory .*report.html"):
        write(tmp_path, "text")


@pytest.mark.parametrize("name", ["pipe", "circle", "to_null"])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "to_null").symlink_to("/dev/null")
    before = (tmp_path / name).lstat()
    with pytest.raises(BadFile, match=r"a device, a pipe or a circular link"):
        write(tmp_path / name, "text")
    assert (tmp_path / name).lstat().st_ino == before.st_ino


@pytest.mark.parametrize("old", ["old", None])
def test_through_a_link_its_target_is_written(tmp_path, old):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "a.txt", tmp_path / "link"
    if old is not None:
        target.write_text(old)
    link.symlink_to("folder/a.txt")
    write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_file_keeps_its_mode(tmp_path):
    path = tmp_path / "a.txt"
    path.touch(0o600)
    write(path, "secret")
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_read_is_not_written(tmp_path):
    path, link = tmp_path / "a.csv", tmp_path / "link.csv"
    path.touch()
    link.symlink_to("a.csv")
    check_place(path, [tmp_path / "missing", tmp_path])
    for output in (path, link):
        with pytest.raises(BadFile, match=r"output: expected a file that is not an input"):
            check_place(output, [path])


def test_text_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_a_name_the_system_refuses_is_one_clear_error(tmp_path):
    with pytest.raises(BadFile, match=r"output: cannot write .*; choose another path"):
        write(tmp_path / ("a" * 300), "text")

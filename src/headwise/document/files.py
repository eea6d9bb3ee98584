"""Writing a file completely or not at all."""

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from headwise.document.text_format import clean
from headwise.errors import BadFile

LONGEST_STEM = 40
"""The most characters of a file's name that the name of its temporary file contains."""


def write(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8; replace the old file only when the new file is on disk.

    If the path is a link, its target is written; an existing file keeps its mode.

    Raises:
        BadFile: if `check_place` refuses the path, or the file cannot be written.
    """
    check_place(path)
    name = clean(str(path))
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    try:
        _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "output: cannot write {name}: {reason}; choose another path", name=name, reason=reason
        ) from error


def check_place(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Validate the path of an output file, before the work that computes its content.

    Raises:
        BadFile: if the path is a directory, a device, a pipe or a socket, its folder does not
            exist, or it is one of ``inputs``, the files from which the content is computed.
    """
    name = clean(str(path))
    try:
        mode = _mode(path)
        inside = Path(os.path.realpath(path)).parent.is_dir()
    except OSError:  # the file system refuses the name; writing reports why
        return
    if mode is None and not inside:
        raise BadFile(
            "output: expected a file in an existing folder, got {name}; create the folder",
            name=name,
        )
    if mode is not None and stat.S_ISDIR(mode):
        raise BadFile(
            "output: expected a file, got the directory {name}; add a file name, as in {path}",
            name=name,
            path=clean(str(path / "report.html")),
        )
    if mode is not None and not stat.S_ISREG(mode):
        raise BadFile(
            "output: expected a regular file, got {name}, which is a device, a pipe or a circular "
            "link; choose another name, or omit --output to print",
            name=name,
        )
    if any(_same(path, file) for file in inputs):
        raise BadFile(
            "output: expected a file that is not an input, got {name}; choose another name",
            name=name,
        )


def _mode(path: Path) -> int | None:
    """Return type and mode of the file at a path, or None if there is no file."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        target = Path(os.path.realpath(path))
        return target.lstat().st_mode if target.is_symlink() else None
    except OSError:
        if path.is_symlink():  # a circular link
            return path.lstat().st_mode
        raise


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        return False


def _replace(path: Path, content: bytes) -> None:
    mask = os.umask(0)
    os.umask(mask)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:LONGEST_STEM]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

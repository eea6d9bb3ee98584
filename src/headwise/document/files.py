"""Writing a file whole or not at all."""

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from headwise.document.text_format import clean
from headwise.errors import BadFile

LONGEST_STEM = 40
"""Characters of a file's name in that of the temporary file beside it, after a full stop."""


def write(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8; the old file is replaced when all of it is on disk.

    Of a link, the target is written; an existing file keeps its mode.

    Raises:
        BadFile: if `check_place` refuses the place, or the file cannot be written.
    """
    check_place(path)
    name = clean(str(path))
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    try:
        _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "output: cannot write {name}: {reason}; choose another place", name=name, reason=reason
        ) from error


def check_place(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Validate the path of a file to write, before the work that makes its content.

    Raises:
        BadFile: if it is a directory, a device, a pipe or a socket, lies in no existing folder, or
            is one of ``inputs``, the files that the content is made from.
    """
    name = clean(str(path))
    try:
        mode = _mode(path)
        inside = Path(os.path.realpath(path)).parent.is_dir()
    except OSError:  # a name that the file system refuses: writing says why
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
            "output: expected a file, got {name}, a device, a pipe or a link in a circle, which is "
            "never replaced; choose another name, or leave out --output to print",
            name=name,
        )
    if any(_same(path, file) for file in inputs):
        raise BadFile(
            "output: expected another file than those that are read, got {name}; choose "
            "another name",
            name=name,
        )


def _mode(path: Path) -> int | None:
    """Type and mode of the file at a path; None if there is none."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        target = Path(os.path.realpath(path))
        return target.lstat().st_mode if target.is_symlink() else None
    except OSError:
        if path.is_symlink():  # in a circle
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

"""Writing a file whole or not at all."""

import os
import tempfile
from pathlib import Path

from headwise.document.plain import clean
from headwise.errors import BadFile


def write(path: Path, text: str) -> None:
    """Write text to a file as UTF-8; until all of it is on disk the old file stays as it was.

    Raises:
        BadFile: if the folder is missing, or the file cannot be written.
    """
    check_place(path)
    name = clean(str(path))
    try:
        _replace(path, text)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            f"output: cannot write {name}: {reason}; choose another place",
            f"output：无法写入 {name}：{reason}；请换一个位置",
        ) from error


def check_place(path: Path) -> None:
    """Refuse a path that names a folder, or lies in a folder that does not exist.

    Raises:
        BadFile: if it does.
    """
    try:
        fits = not path.is_dir() and path.parent.is_dir()
    except OSError:  # a name that the file system refuses: writing says why
        return
    if not fits:
        name = clean(str(path))
        raise BadFile(
            f"output: expected a file in an existing folder, got {name}; create the folder",
            f"output：应为已有文件夹中的文件，收到 {name}；请先建立文件夹",
        )


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

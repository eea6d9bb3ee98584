"""A folder that something will be written into, looked at before the work and not after it."""

import tempfile
from pathlib import Path

from headwise.document.plain import clean
from headwise.errors import BadFile


def check_folder(option: str, folder: Path) -> None:
    """Refuse a folder that no file can be put into; one that is not there yet can be made.

    What is asked is the file system, with a file that has no name: permissions alone do not tell.

    Args:
        option: what named the folder, for the message.
        folder: it.

    Raises:
        BadFile: if it is no folder, or may not be written into.
    """
    try:
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise unusable(option, folder, error) from error


def make_folder(option: str, folder: Path) -> None:
    """Make a folder, and those that it lies in, where it is not there.

    Raises:
        BadFile: if it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(option, folder, error) from error


def unusable(option: str, folder: Path, error: OSError) -> BadFile:
    """The error for a folder that cannot be used."""
    name, reason = clean(str(folder)), error.strerror or type(error).__name__
    return BadFile(
        "{option}: cannot write into the folder {name}: {reason}; choose another place",
        option=option,
        name=name,
        reason=reason,
    )

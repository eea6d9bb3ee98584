"""The journal of a run over many targets: one line per result, written as soon as it exists.

A killed run is resumed from its journal. A result in the journal is used only if the target's
files, the options and the versions have not changed since it was written.
"""

import hashlib
import json
import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headwise import __version__
from headwise.document.files import check_place
from headwise.errors import BadFile
from headwise.verify.process import Limits, Request
from headwise.verify.report import Data
from headwise.verify.report.formats import faults
from headwise.verify.submissions.sources import digest

LARGEST = 1 << 30  # the size limit of a journal in bytes


class Journal:
    """Results by key, saved in a file, or only in memory if the file is None.

    Args:
        file: the path of the journal; created if it does not exist.
        request: the options of the run.
        limits: the limits of the run.

    Raises:
        BadFile: if the file cannot be written, or is too large to be a journal.
    """

    def __init__(self, file: Path | None, request: Request, limits: Limits) -> None:
        self.file = file
        self._lock = threading.Lock()
        options = {**asdict(replace(request, target="")), **asdict(limits)}
        self._common = (__version__, _torch(), platform.python_version(), sorted(options.items()))
        self._results = {} if file is None else dict(_read(file))

    def get(self, kind: str, target: str, make: Callable[[], Data]) -> Data:
        """Return a result of a kind, "report" or "attentions", from the journal or from `make`.

        An exception of `make` is propagated and not saved.
        """
        key = f"{kind} {self._key(target)}"
        if key in self._results:
            return self._results[key]
        result = make()
        with self._lock:
            self._results[key] = result
            if self.file is not None:
                _append(self.file, {key: result})
        return result

    @staticmethod
    def delete(file: Path) -> None:
        """Delete a journal after the results have been written."""
        with suppress(OSError):
            file.unlink()

    def _key(self, target: str) -> str:
        content = repr((self._common, target, digest(target)))
        return hashlib.sha256(content.encode()).hexdigest()


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _read(file: Path) -> list[tuple[str, Data]]:
    """Read the entries of a journal; truncated and damaged lines are skipped."""
    check_place(file)
    try:
        if not file.exists():
            return []
        if file.stat().st_size > LARGEST:
            raise BadFile("journal: {file} is too large; delete it", file=file)
        lines = file.read_bytes().splitlines()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile("journal: cannot read {file}: {reason}", file=file, reason=reason) from error
    return [entry for line in lines for entry in _entries(line)]


def _entries(line: bytes) -> list[tuple[str, Data]]:
    try:
        ((key, value),) = json.loads(line).items()
    except (ValueError, AttributeError, RecursionError):
        return []
    kind = key.partition(" ")[0]
    valid = not faults(value) if kind == "report" else _is_search(value)
    return [(key, value)] if valid else []


def _is_search(value: Any) -> bool:
    """Whether a value has the structure of a result of `attentions`."""
    text = {"en", "zh"}
    try:
        if "failed" in value:
            return not faults(value["failed"])
        items = [*value["refused"], *value["others"]]
        named = all(isinstance(i["name"], str) and set(i["why"]) == text for i in items)
        ended = [fault for report in value["ended"] for fault in faults(report)]
        return named and not ended and all(isinstance(name, str) for name in value["found"])
    except (TypeError, KeyError):
        return False


def _append(file: Path, entry: dict[str, Data]) -> None:
    """Append one line; start with a line break, since the last line may be truncated."""
    content = f"\n{json.dumps(entry, ensure_ascii=True, allow_nan=False)}\n"
    try:
        with file.open("ab") as stream:
            stream.write(content.encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadFile("journal: cannot write {file}: {reason}", file=file, reason=reason) from error

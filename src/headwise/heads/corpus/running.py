"""A whole corpus through a model: adding up, and going on after an interruption.

While it runs, each process writes what it has added up into one file of the folder, together with
how far it is: ``part-0-of-1.safetensors``. The file is replaced whole, between two documents, so
that whenever the process is killed the file on disk is right: nothing in it is lost, and no
document that comes after it was counted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.corpus.gathered import Gathered
from headwise.heads.corpus.identity import check_same, identity
from headwise.heads.corpus.measuring import Measurer
from headwise.heads.corpus.reading import Corpus
from headwise.heads.corpus.sharing import ALONE, Share
from headwise.heads.corpus.store import read_tensors, write_tensors

EVERY = 10.0
"""Seconds between two writings of what has been added up."""

Progress = Callable[[int, int], None]
"""Told how many documents of how many are done."""


@dataclass(frozen=True, eq=False)
class Job:
    """A corpus to be measured.

    Attributes:
        measurer: the model.
        corpus: the documents.
        folder: where what has been added up is kept; None for nowhere.
        share: which documents are this process's.
        every: seconds between two writings; 0 after each document.
    """

    measurer: Measurer
    corpus: Corpus
    folder: Path | None = None
    share: Share = ALONE
    every: float = EVERY

    def identity(self) -> dict[str, Any]:
        """What this run has to have in common with one that it goes on with."""
        return identity(self.measurer, self.corpus, self.share.processes)

    @property
    def part(self) -> Path | None:
        """The file that this process keeps its sums in."""
        name = f"part-{self.share.rank}-of-{self.share.processes}.safetensors"
        return None if self.folder is None else self.folder / name


def run(job: Job, progress: Progress | None = None) -> Gathered:
    """The sums of this process's documents, going on where an earlier run was interrupted.

    Raises:
        BadFile: if the folder holds another run, a file in it is damaged, a document cannot be
            measured, or the corpus has changed meanwhile. What was added up until then is kept.
    """
    keeper = _Keeper(job, job.identity())
    gathered, position = keeper.resumed()
    mine = job.share.numbers(job.corpus.documents)
    tell = progress or _silent
    tell(_before(mine, position), len(mine))
    for number, document in enumerate(job.corpus):
        if number < position or number not in mine:
            continue
        try:
            found = job.measurer.measure(document)
        except BaseException:
            keeper.keep(gathered, number)
            raise
        gathered.half(number).merge(found)
        position = number + 1
        keeper.keep_now_and_then(gathered, position)
        tell(_before(mine, position), len(mine))
    job.corpus.check_unchanged()
    keeper.keep(gathered, job.corpus.documents)
    return gathered


def _before(mine: range, position: int) -> int:
    """How many of the numbers come before a position."""
    return len(range(mine.start, min(position, mine.stop), mine.step))


class _Keeper:
    """Writes what has been added up, and reads it again."""

    def __init__(self, job: Job, same: dict[str, Any]) -> None:
        self._file, self._every, self._same = job.part, job.every, same
        self._documents = job.corpus.documents
        self._last = time.monotonic()

    def resumed(self) -> tuple[Gathered, int]:
        """What an earlier run kept, and the number of the document to go on with."""
        if self._file is None or not self._file.exists():
            return Gathered(), 0
        tensors, said = self._read(self._file)
        before, position = said.get("identity"), said.get("position")
        if not isinstance(before, dict) or type(position) is not int:
            raise _not_ours(self._file)
        check_same(self._file.parent, self._same, before)
        if not 0 <= position <= self._documents:
            raise _not_ours(self._file)
        try:
            return Gathered.from_tensors(tensors), position
        except BadFile as error:
            raise _damaged(self._file, error) from error

    def _read(self, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        try:
            return read_tensors(file)
        except BadFile as error:
            raise _damaged(file, error) from error

    def keep_now_and_then(self, gathered: Gathered, position: int) -> None:
        """Write if the last time is long enough ago."""
        if time.monotonic() - self._last >= self._every:
            self.keep(gathered, position)

    def keep(self, gathered: Gathered, position: int) -> None:
        """Write what was added up before the document of that number."""
        if self._file is not None:
            said = {"identity": self._same, "position": position}
            write_tensors(self._file, gathered.kept(), said)
        self._last = time.monotonic()


def _silent(done: int, whole: int) -> None:
    del done, whole


def _damaged(file: Path, error: BadFile) -> BadFile:
    name, said = clean(str(file)), error.text
    return BadFile(
        "save: expected a file of sums that headwise wrote, got {name}: {said}; take it "
        "away to begin anew",
        name=name,
        said=said,
    )


def _not_ours(file: Path) -> BadFile:
    name = clean(str(file))
    return BadFile(
        "save: {name} does not say how far the run was; take it away to begin anew", name=name
    )

"""A corpus shared out over the processes that torchrun started.

A whole corpus through a model: adding up, and going on after an interruption.

While it runs, each process writes what it has added up into one file of the folder, together with
how far it is: ``part-0-of-1.safetensors``. The file is replaced whole, between two documents, so
that whenever the process is killed the file on disk is right: nothing in it is lost, and no
document that comes after it was counted.


From a model and a file to a finished run: looked through, measured, merged, saved.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.document.files import LONGEST_STEM
from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.analysis.similarity import NOT_COMPARED, is_comparable
from headwise.heads.corpus.accumulated import Gathered
from headwise.heads.corpus.checkpoint import (
    JSON,
    TENSORS,
    Run,
    check_folder,
    is_saved,
    make_folder,
    open_run,
    read_tensors,
    save,
    write_tensors,
)
from headwise.heads.corpus.measurement import Measurer
from headwise.heads.corpus.readers import Corpus, look_through
from headwise.heads.corpus.run_identity import check_same, identity
from headwise.heads.inspection import model_facts
from headwise.heads.models.load import Loaded
from headwise.lang import Text


@dataclass(frozen=True)
class Share:
    """Which documents one process measures: every one whose number leaves its rank.

    Attributes:
        rank: the process, counted from 0.
        processes: how many there are.
    """

    rank: int = 0
    processes: int = 1

    def numbers(self, documents: int) -> range:
        """The numbers of its documents, counted from 0."""
        return range(self.rank, documents, self.processes)

    def merged(self, own: Gathered) -> Gathered:
        """What all processes gathered, by all-reduce; every process has to call this.

        The sums of several processes are added in another order than those of one: they agree to
        the rounding of float64, and two such runs agree exactly.
        """
        if self.processes == 1:
            return own
        tensors = own.tensors()
        form = {name: (list(each.shape), str(each.dtype)) for name, each in tensors.items()}
        reduced = {}
        for name, (shape, dtype) in self._forms(form).items():
            kind = torch.float64 if dtype == str(torch.float64) else torch.int64
            reduced[name] = tensors.get(name, torch.zeros(shape, dtype=kind)).clone()
            dist.all_reduce(reduced[name])
        return Gathered.from_tensors(reduced)

    def wait(self) -> None:
        """Until every process has come this far."""
        if self.processes > 1:
            dist.barrier()

    def _forms(self, own: dict[str, tuple[list[int], str]]) -> dict[str, tuple[list[int], str]]:
        """Name, shape and type of every tensor that any process has, in one order for all."""
        written = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        lengths = [torch.zeros((), dtype=torch.int64) for _ in range(self.processes)]
        dist.all_gather(lengths, torch.tensor(written.numel()))
        longest = int(max(lengths))
        given = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.processes)]
        dist.all_gather(given, torch.cat((written, written.new_zeros(longest - len(written)))))
        found: dict[str, tuple[list[int], str]] = {}
        for each, length in zip(given, lengths, strict=True):
            found |= json.loads(_bytes(each[: int(length)]))
        return found


ALONE = Share()
"""All of the corpus."""


@contextmanager
def shared() -> Iterator[Share]:
    """The share of this process: one of those that torchrun started, or all of the corpus."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield ALONE
        return
    dist.init_process_group("gloo")
    try:
        yield Share(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.tolist())


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
    tell = progress or _ignore_progress
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


def _ignore_progress(done: int, whole: int) -> None:
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


Tell = Callable[[Text], None]
"""Told what is being done."""


@dataclass(frozen=True)
class Options:
    """How a corpus is to be measured.

    Attributes:
        folder: where sums are kept while it runs, and the run when it is done; None for nowhere.
        paragraphs: read a plain text by paragraphs in place of lines.
        truncate: cut documents that are longer than the model takes.
        names: name heads by what they do, which takes a second model with random weights.
        every: seconds between two writings of what has been added up.
        share: which documents are this process's.
    """

    folder: Path | None = None
    paragraphs: bool = False
    truncate: bool = False
    names: bool = True
    every: float = EVERY
    share: Share = ALONE


def measure_corpus(
    loaded: Loaded,
    file: Path,
    options: Options,
    *,
    tell: Tell | None = None,
    progress: Progress | None = None,
) -> Run:
    """What every head of a model does on a corpus.

    A folder is gone on with: where an earlier run with the same model, corpus and options was
    interrupted, this one continues; where it was finished, it is opened.

    Raises:
        BadFile: if a document cannot be read, the folder cannot be made or holds another run, or
            a file in it is damaged.
    """
    say = tell or _ignore_status
    check_place(options.folder)
    say(Text("looking through the corpus"))
    measurer = Measurer.of(
        loaded, truncate=options.truncate, names=options.names, folder=file.parent
    )
    corpus = look_through(file, paragraphs=options.paragraphs, check=measurer.check)
    if options.folder is not None:
        make_folder("save", options.folder)
    job = Job(measurer, corpus, options.folder, options.share, options.every)
    same = job.identity()
    if options.folder is not None and is_saved(options.folder):
        found = open_run(options.folder)
        check_same(options.folder, same, found.identity)
        _forget(job)
        say(Text("this run is finished; it is opened"))
        return found
    gathered = options.share.merged(run(job, progress))
    if options.names and not is_comparable(gathered.whole().statistics.heads()):
        say(NOT_COMPARED)
    done = Run(
        model=model_facts(loaded, gathered.whole().statistics),
        corpus={
            "file": file.name,
            "sha256": corpus.sha256,
            "documents": corpus.documents,
            "paragraphs": corpus.paragraphs,
            "truncate": options.truncate,
        },
        gathered=gathered,
        identity=same,
    )
    _finish(done, job)
    return done


def check_place(folder: Path | None) -> None:
    """Refuse a folder that a run cannot be saved in; one that holds a finished run is only read.

    Raises:
        BadFile: if it is no folder, or may not be written into.
    """
    if folder is not None and not is_saved(folder):
        check_folder("save", folder)


def _finish(done: Run, job: Job) -> None:
    """The first process writes the run; the parts are taken away once it is on disk."""
    if job.folder is None or job.part is None:
        return
    if job.share.rank == 0:
        save(done, job.folder)
    job.share.wait()
    _forget(job)


def _forget(job: Job) -> None:
    """Take away what this process kept on its way, and what a kill left of a file half written."""
    if job.folder is None or job.part is None:
        return
    names = (job.part.name, *((JSON, TENSORS) if job.share.rank == 0 else ()))
    left = [file for name in names for file in job.folder.glob(f".{name[:LONGEST_STEM]}.*")]
    for file in (job.part, *left):
        with suppress(OSError):
            file.unlink()


def _ignore_status(text: Text) -> None:
    del text

"""Measure a corpus, resumably and in several processes.

Each process writes its sums and its position into one file of the folder, such as
``part-0-of-1.safetensors``. The file is replaced atomically between two documents: if the process
is killed, the file holds exactly the documents before its position.
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
from headwise.document.text_format import clean
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
from headwise.heads.corpus.measurement import Measurer, check_same, identity
from headwise.heads.corpus.readers import Corpus, look_through
from headwise.heads.inspection import model_facts
from headwise.heads.models.load import Loaded
from headwise.lang import Text


@dataclass(frozen=True)
class Share:
    """The documents of one process of torchrun: those with ``number % processes == rank``.

    Attributes:
        rank: the process, counted from 0.
        processes: the number of processes.
    """

    rank: int = 0
    processes: int = 1

    def numbers(self, documents: int) -> range:
        """The numbers of its documents, counted from 0."""
        return range(self.rank, documents, self.processes)

    def merged(self, own: Gathered) -> Gathered:
        """The sums of all processes, by all-reduce; every process must call this.

        They are added in another order than in one process, and agree with it up to the rounding of
        float64; two runs with as many processes agree exactly.
        """
        if self.processes == 1:
            return own
        tensors = own.tensors()
        shapes = {name: (list(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()}
        reduced = {}
        for name, (shape, dtype) in self._forms(shapes).items():
            tensor_dtype = torch.float64 if dtype == str(torch.float64) else torch.int64
            reduced[name] = tensors.get(name, torch.zeros(shape, dtype=tensor_dtype)).clone()
            dist.all_reduce(reduced[name])
        return Gathered.from_tensors(reduced)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.processes > 1:
            dist.barrier()

    def _forms(self, own: dict[str, tuple[list[int], str]]) -> dict[str, tuple[list[int], str]]:
        """Name, shape and dtype of the tensors of all processes, in the same order in each."""
        written = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        lengths = [torch.zeros((), dtype=torch.int64) for _ in range(self.processes)]
        dist.all_gather(lengths, torch.tensor(written.numel()))
        longest = int(max(lengths))
        buffers = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.processes)]
        dist.all_gather(buffers, torch.cat((written, written.new_zeros(longest - len(written)))))
        shapes: dict[str, tuple[list[int], str]] = {}
        for buffer, length in zip(buffers, lengths, strict=True):
            shapes |= json.loads(_bytes(buffer[: int(length)]))
        return shapes


ALONE = Share()
"""One process that measures all documents."""


@contextmanager
def shared() -> Iterator[Share]:
    """The share of this process of torchrun, or all of the corpus without torchrun."""
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
"""Seconds between two checkpoints."""

Progress = Callable[[int, int], None]
"""Called with the number of documents done and their total."""


@dataclass(frozen=True, eq=False)
class CorpusJob:
    """The measurement of a corpus.

    Attributes:
        measurer: the model.
        corpus: the documents.
        folder: where checkpoints are written; None for nowhere.
        share: the documents of this process.
        every: seconds between two checkpoints; 0 for one after each document.
    """

    measurer: Measurer
    corpus: Corpus
    folder: Path | None = None
    share: Share = ALONE
    every: float = EVERY

    def identity(self) -> dict[str, Any]:
        """What an interrupted run must have in common with this one to be resumed."""
        return identity(self.measurer, self.corpus, self.share.processes)

    @property
    def part(self) -> Path | None:
        """The checkpoint file of this process."""
        name = f"part-{self.share.rank}-of-{self.share.processes}.safetensors"
        return None if self.folder is None else self.folder / name


def run(job: CorpusJob, progress: Progress | None = None) -> Gathered:
    """The sums of this process's documents, resumed from a checkpoint.

    Raises:
        BadFile: if the folder holds another run, a file in it is damaged, a document cannot be
            measured, or the corpus has changed. The sums up to there are kept.
    """
    keeper = _Keeper(job, job.identity())
    gathered, position = keeper.resumed()
    mine = job.share.numbers(job.corpus.documents)
    report = progress or _ignore_progress
    report(_before(mine, position), len(mine))
    for number, document in enumerate(job.corpus):
        if number < position or number not in mine:
            continue
        try:
            half = job.measurer.measure(document)
        except BaseException:
            keeper.keep(gathered, number)
            raise
        gathered.half(number).merge(half)
        position = number + 1
        keeper.keep_now_and_then(gathered, position)
        report(_before(mine, position), len(mine))
    job.corpus.check_unchanged()
    keeper.keep(gathered, job.corpus.documents)
    return gathered


def _before(mine: range, position: int) -> int:
    """The count of numbers before a position."""
    return len(range(mine.start, min(position, mine.stop), mine.step))


class _Keeper:
    """Writes and reads the checkpoint of this process."""

    def __init__(self, job: CorpusJob, same: dict[str, Any]) -> None:
        self._file, self._every, self._same = job.part, job.every, same
        self._documents = job.corpus.documents
        self._last = time.monotonic()

    def resumed(self) -> tuple[Gathered, int]:
        """The sums of the checkpoint, and the number of the next document."""
        if self._file is None or not self._file.exists():
            return Gathered(), 0
        tensors, metadata = self._read(self._file)
        earlier, position = metadata.get("identity"), metadata.get("position")
        if not isinstance(earlier, dict) or type(position) is not int:
            raise _not_ours(self._file)
        check_same(self._file.parent, self._same, earlier)
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
        """Write a checkpoint if the last one is old enough."""
        if time.monotonic() - self._last >= self._every:
            self.keep(gathered, position)

    def keep(self, gathered: Gathered, position: int) -> None:
        """Write the sums of the documents before that number."""
        if self._file is not None:
            metadata = {"identity": self._same, "position": position}
            write_tensors(self._file, gathered.kept(), metadata)
        self._last = time.monotonic()


def _ignore_progress(done: int, whole: int) -> None:
    del done, whole


def _damaged(file: Path, error: BadFile) -> BadFile:
    name, problem = clean(str(file)), error.text
    return BadFile(
        "save: expected a file of sums that headwise wrote, got {name}: {said}; take it "
        "away to begin anew",
        name=name,
        said=problem,
    )


def _not_ours(file: Path) -> BadFile:
    name = clean(str(file))
    return BadFile(
        "save: {name} does not say how far the run was; take it away to begin anew", name=name
    )


Tell = Callable[[Text], None]
"""Called with a status message."""


@dataclass(frozen=True)
class Options:
    """Options of `measure_corpus`.

    Attributes:
        folder: where checkpoints and the finished run are written; None for nowhere.
        paragraphs: in plain text, a document is a paragraph, not a line.
        truncate: truncate documents that are too long for the model.
        names: name heads, which needs a second model with random weights.
        every: seconds between two checkpoints.
        share: the documents of this process.
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
    """Measure every head of a model on a corpus.

    A run with the same model, corpus and options in the folder is resumed if it was interrupted,
    and opened if it is finished.

    Raises:
        BadFile: if a document cannot be read, the folder cannot be created or holds another run,
            or a file in it is damaged.
    """
    log = tell or _ignore_status
    check_place(options.folder)
    log(Text("looking through the corpus"))
    measurer = Measurer.of(
        loaded, truncate=options.truncate, names=options.names, folder=file.parent
    )
    corpus = look_through(file, paragraphs=options.paragraphs, check=measurer.check)
    if options.folder is not None:
        make_folder("save", options.folder)
    job = CorpusJob(measurer, corpus, options.folder, options.share, options.every)
    same = job.identity()
    if options.folder is not None and is_saved(options.folder):
        finished = open_run(options.folder)
        check_same(options.folder, same, finished.identity)
        _forget(job)
        log(Text("this run is finished; it is opened"))
        return finished
    gathered = options.share.merged(run(job, progress))
    if options.names and not is_comparable(gathered.whole().statistics.heads()):
        log(NOT_COMPARED)
    finished_run = Run(
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
    _finish(finished_run, job)
    return finished_run


def check_place(folder: Path | None) -> None:
    """Check that a run can be saved in a folder; a folder with a finished run is only read.

    Raises:
        BadFile: if it is no folder, or may not be written into.
    """
    if folder is not None and not is_saved(folder):
        check_folder("save", folder)


def _finish(done: Run, job: CorpusJob) -> None:
    """Write the run in the first process; then delete the checkpoints."""
    if job.folder is None or job.part is None:
        return
    if job.share.rank == 0:
        save(done, job.folder)
    job.share.wait()
    _forget(job)


def _forget(job: CorpusJob) -> None:
    """Delete the checkpoint of this process and temporary files of killed processes."""
    if job.folder is None or job.part is None:
        return
    names = (job.part.name, *((JSON, TENSORS) if job.share.rank == 0 else ()))
    left = [file for name in names for file in job.folder.glob(f".{name[:LONGEST_STEM]}.*")]
    for file in (job.part, *left):
        with suppress(OSError):
            file.unlink()


def _ignore_status(text: Text) -> None:
    del text

"""Measure a corpus, resumably and in several processes.

Each process writes its sums and its position to a file in the folder, such as
``part-0-of-1.safetensors``. The file is replaced atomically between two documents, so even after
the process is killed it contains the sums over all documents before its position.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

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
from headwise.heads.corpus.measurement import Measurer, check_same
from headwise.heads.corpus.measurement import identity as run_identity
from headwise.heads.corpus.readers import Corpus, look_through
from headwise.heads.inspection import model_facts
from headwise.heads.models.load import Loaded
from headwise.lang import Text


@dataclass(frozen=True)
class Share:
    """The documents of one torchrun process: those with ``number % processes == rank``."""

    rank: int = 0
    processes: int = 1

    def numbers(self, documents: int) -> range:
        """Return the numbers of the documents of this process, counted from 0."""
        return range(self.rank, documents, self.processes)

    def merged(self, own: Gathered) -> Gathered:
        """Return the sums of all processes by all-reduce; every process must call this method.

        Runs with the same number of processes agree exactly, other runs up to rounding in float64,
        because the order of additions depends on the number of processes.
        """
        if self.processes == 1:
            return own
        tensors = own.tensors()
        shapes = {name: (list(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()}
        reduced = {}
        for name, (shape, dtype) in self._all_shapes(shapes).items():
            tensor_dtype = torch.float64 if dtype == str(torch.float64) else torch.int64
            reduced[name] = tensors.get(name, torch.zeros(shape, dtype=tensor_dtype)).clone()
            dist.all_reduce(reduced[name])
        return Gathered.from_tensors(reduced)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.processes > 1:
            dist.barrier()

    def _all_shapes(
        self, own: dict[str, tuple[list[int], str]]
    ) -> dict[str, tuple[list[int], str]]:
        """Return name, shape and dtype of the tensors of all processes, in the same order."""
        encoded = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        lengths = [torch.zeros((), dtype=torch.int64) for _ in range(self.processes)]
        dist.all_gather(lengths, torch.tensor(encoded.numel()))
        longest = int(max(lengths))
        buffers = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.processes)]
        dist.all_gather(buffers, torch.cat((encoded, encoded.new_zeros(longest - len(encoded)))))
        shapes: dict[str, tuple[list[int], str]] = {}
        for buffer, length in zip(buffers, lengths, strict=True):
            shapes |= json.loads(bytes(buffer[: int(length)].tolist()))
        return shapes


ALONE = Share()


@contextmanager
def shared() -> Iterator[Share]:
    """Yield the share of this torchrun process; the whole corpus without torchrun."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield ALONE
        return
    dist.init_process_group("gloo")
    try:
        yield Share(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


EVERY = 10.0  # seconds between two checkpoints
Progress = Callable[[int, int], None]  # called with the finished documents or texts and the total
Tell = Callable[[Text], None]  # called with a status message


@dataclass(frozen=True, eq=False)
class CorpusJob:
    """The measurement of a corpus; `Options` describes ``folder``, ``share`` and ``every``."""

    measurer: Measurer
    corpus: Corpus
    folder: Path | None = None
    share: Share = ALONE
    every: float = EVERY

    def identity(self) -> dict[str, Any]:
        """Return the identity that a saved run must have to be resumed."""
        return run_identity(self.measurer, self.corpus, self.share.processes)

    @property
    def part(self) -> Path | None:
        """The checkpoint file of this process."""
        name = f"part-{self.share.rank}-of-{self.share.processes}.safetensors"
        return None if self.folder is None else self.folder / name


def run(job: CorpusJob, progress: Progress | None = None) -> Gathered:
    """Return the sums over the documents of this process, resuming from its checkpoint.

    Raises `BadFile` if the folder contains another run or a damaged file, a document cannot be
    measured, or the corpus has changed. If a document fails, the sums before it are saved.
    """
    saved_identity = job.identity()
    gathered, position = _resumed(job, saved_identity)
    saved_at = time.monotonic()

    def save_part(position: int) -> None:
        if job.part is not None:
            metadata = {"identity": saved_identity, "position": position}
            write_tensors(job.part, gathered.kept(), metadata)

    mine = job.share.numbers(job.corpus.documents)
    report = progress or ignore
    report(sum(number < position for number in mine), len(mine))
    for number, document in enumerate(job.corpus):
        if number < position or number not in mine:
            continue
        try:
            half = job.measurer.measure(document)
        except BaseException:
            save_part(number)
            raise
        gathered.half(number).merge(half)
        if time.monotonic() - saved_at >= job.every:
            save_part(number + 1)
            saved_at = time.monotonic()
        report(mine.index(number) + 1, len(mine))
    job.corpus.check_unchanged()
    save_part(job.corpus.documents)
    return gathered


def _resumed(job: CorpusJob, own_identity: dict[str, Any]) -> tuple[Gathered, int]:
    """Return the sums in the checkpoint of this process and the number of the next document."""
    file = job.part
    if file is None or not file.exists():
        return Gathered(), 0
    with _damaged(file):
        tensors, metadata = read_tensors(file)
    earlier, position = metadata.get("identity"), metadata.get("position")
    if isinstance(earlier, dict) and type(position) is int:
        check_same(file.parent, own_identity, earlier)
        if 0 <= position <= job.corpus.documents:
            with _damaged(file):
                return Gathered.from_tensors(tensors), position
    name = clean(str(file))
    raise BadFile("save: {name} lacks the position of the run; delete it to start again", name=name)


@contextmanager
def _damaged(file: Path) -> Iterator[None]:
    try:
        yield
    except BadFile as error:
        raise BadFile(
            "save: expected a checkpoint of headwise, got {name}: {said}; delete it to start again",
            name=clean(str(file)),
            said=error.text,
        ) from error


def ignore(*_: object) -> None:
    """Ignore progress and status messages."""


@dataclass(frozen=True)
class Options:
    """Options of `measure_corpus`.

    Attributes:
        folder: the folder for checkpoints and the finished run; None to save nothing.
        paragraphs: whether a document of plain text is a paragraph instead of a line.
        truncate: whether to truncate documents that are too long for the model.
        names: whether to name heads, which needs a copy of the model with random weights.
        every: seconds between two checkpoints; 0 for a checkpoint after each document.
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

    If the folder contains a run with the same model, corpus and options, an interrupted run is
    resumed and a finished run is opened.

    Raises `BadFile` if a document cannot be read, or if the folder cannot be created or contains
    another run or a damaged file.
    """
    log = tell or ignore
    check_place(options.folder)
    log(Text("checking the corpus"))
    truncate, names = options.truncate, options.names
    measurer = Measurer.of(loaded, truncate=truncate, names=names, folder=file.parent)
    corpus = look_through(file, paragraphs=options.paragraphs, check=measurer.check)
    if options.folder is not None:
        make_folder("save", options.folder)
    job = CorpusJob(measurer, corpus, options.folder, options.share, options.every)
    same = job.identity()
    if options.folder is not None and is_saved(options.folder):
        finished = open_run(options.folder)
        check_same(options.folder, same, finished.identity)
        _forget(job)
        log(Text("the run is already finished and is opened"))
        return finished
    gathered = options.share.merged(run(job, progress))
    if names and not is_comparable(gathered.whole().statistics.heads()):
        log(NOT_COMPARED)
    finished_run = run_of(loaded, corpus, gathered, truncate=truncate, identity=same)
    if options.folder is not None:
        if options.share.rank == 0:
            save(finished_run, options.folder)
        options.share.wait()
        _forget(job)
    return finished_run


def run_of(
    loaded: Loaded,
    corpus: Corpus,
    gathered: Gathered,
    *,
    truncate: bool = False,
    identity: Mapping[str, Any],
) -> Run:
    """Return the run of a model on a corpus with these sums."""
    facts: dict[str, str | int | bool] = {
        "file": corpus.file.name,
        "sha256": corpus.sha256,
        "documents": corpus.documents,
        "paragraphs": corpus.paragraphs,
        "truncate": truncate,
    }
    model = model_facts(loaded, gathered.whole().statistics.heads())
    return Run(model, facts, gathered, identity)


def check_place(folder: Path | None) -> None:
    """Raise `BadFile` if a run cannot be saved in a folder without a finished run."""
    if folder is not None and not is_saved(folder):
        check_folder("save", folder)


def _forget(job: CorpusJob) -> None:
    """Delete the checkpoint of this process and the temporary files of killed processes."""
    if job.folder is None or job.part is None:
        return
    names = (job.part.name, *((JSON, TENSORS) if job.share.rank == 0 else ()))
    left = [file for name in names for file in job.folder.glob(f".{name[:LONGEST_STEM]}.*")]
    for file in (job.part, *left):
        with suppress(OSError):
            file.unlink()

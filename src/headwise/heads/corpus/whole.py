"""From a model and a file to a finished run: looked through, measured, merged, saved."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headwise.document.files import LONGEST_STEM
from headwise.heads.corpus.folders import check_folder, make_folder
from headwise.heads.corpus.identity import check_same
from headwise.heads.corpus.measuring import Measurer
from headwise.heads.corpus.reading import look_through
from headwise.heads.corpus.running import EVERY, Job, Progress, run
from headwise.heads.corpus.saved import JSON, TENSORS, Run, is_saved, open_run, save
from headwise.heads.corpus.sharing import ALONE, Share
from headwise.heads.facts import facts_of
from headwise.heads.models.load import Loaded
from headwise.heads.similarity import NOT_COMPARED, is_comparable
from headwise.lang import Text

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
    say = tell or _silent
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
        model=facts_of(loaded, gathered.whole().statistics),
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


def _silent(text: Text) -> None:
    del text

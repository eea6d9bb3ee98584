"""``headwise inspect MODEL --corpus FILE`` and ``headwise inspect --open DIR``."""

from pathlib import Path

from headwise.cli.inspect.asked import Asked
from headwise.cli.inspect.figures import draw
from headwise.cli.inspect.progress import DOCUMENTS, shown
from headwise.cli.output import write_stderr
from headwise.cli.reporting import Destination
from headwise.heads.corpus.export import as_json
from headwise.heads.corpus.measuring import Measurer
from headwise.heads.corpus.probe import probed, sequences
from headwise.heads.corpus.report import report, run_table
from headwise.heads.corpus.running import EVERY
from headwise.heads.corpus.saved import Run, open_run
from headwise.heads.corpus.sharing import Share, shared
from headwise.heads.corpus.whole import Options, measure_corpus
from headwise.heads.models.load import load
from headwise.heads.table import file_of
from headwise.lang import Text
from headwise.plots.album import of_run


def measured(asked: Asked, destination: Destination) -> int:
    """Measure a corpus, alone or as one of several processes; the first of them writes."""
    lang = destination.lang
    with shared() as share:
        quiet = share.rank > 0

        def tell(done: Text) -> None:
            if not quiet:
                write_stderr(f"{done.to(lang)} …")

        loaded = load(asked.model or "", tell)
        every = EVERY if asked.every is None else asked.every
        options = Options(
            asked.save, asked.paragraphs, asked.truncate, not asked.no_names, every, share
        )
        with shown(lang, documents_of(share), quiet=quiet) as progress:
            run = measure_corpus(
                loaded, asked.corpus or Path(), options, tell=tell, progress=progress
            )
        if not quiet:
            _write(run, asked, destination)
    return 0


def documents_of(share: Share) -> Text:
    """What the progress of one process counts: of several it knows its own documents alone.

    Example:
        >>> documents_of(Share(0, 2)).en
        'documents of the first of 2 processes'
    """
    if share.processes == 1:
        return DOCUMENTS
    return Text("documents of the first of {processes} processes", processes=share.processes)


def probing(asked: Asked, destination: Destination) -> int:
    """Measure the heads on random tokens that repeat."""

    def tell(done: Text) -> None:
        write_stderr(f"{done.to(destination.lang)} …")

    loaded = load(asked.model or "", tell)
    sequences(loaded, asked.seed or 0)  # say what is wrong before the random copy is made
    measurer = Measurer.of(loaded, truncate=False, names=not asked.no_names)
    with shown(destination.lang) as progress:
        run = probed(measurer, seed=asked.seed or 0, progress=progress)
    _write(run, asked, destination)
    return 0


def opened(asked: Asked, destination: Destination) -> int:
    """Write again what an earlier run has saved."""
    _write(open_run(asked.open or Path()), asked, destination)
    return 0


def _write(run: Run, asked: Asked, destination: Destination) -> None:
    destination.write(
        lambda: report(run), lambda: as_json(run), lambda kind: file_of(run_table(run), kind)
    )
    draw(lambda sheet: of_run(sheet, run), asked.figures, destination.lang)

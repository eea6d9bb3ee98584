"""``headwise inspect``: what each head of a model does on a text or a corpus."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import reporting
from headwise.cli.output import DOCUMENTS, logger, shown
from headwise.cli.reporting import (
    PATH,
    Destination,
    build_command,
    check_figures,
    click_options,
    options,
    write_figures,
)
from headwise.errors import BadValue
from headwise.lang import Lang, Text, joined, same

if TYPE_CHECKING:
    from headwise.heads.corpus.checkpoint import Run
    from headwise.heads.corpus.pipeline import Share

SUMMARY = Text("Measure and draw what each head of a real model does on a text or a corpus.")

HELP = Text(
    "Measure and draw what each head of a real model does on a text or a corpus.\n\n    "
    "MODEL is a packaged model's name (see `headwise models list`; it is downloaded the "
    "first time),\n    a directory in Hugging Face's format, or a hub id. SENTENCE is "
    "the input of the model. Layers and\n    heads are counted from 0: L0H2 is layer 0, "
    "head 2.\n\n    A corpus is a file of documents: .txt (one per line), .jsonl or "
    ".conllu. With --save, the same\n    command continues an interrupted run; under "
    'torchrun the processes share the documents.\n\n    \n    headwise inspect minilm "The '
    'dog that chased the cats was tired."\n    headwise inspect ./model --text a.txt '
    "--heads L0H2,L1H8 --format html --output a.html\n    headwise inspect minilm "
    "--corpus a.conllu --save run --output heads.csv\n    headwise inspect --open run "
    "--figures pictures\n    headwise inspect smollm2 --probe repeated\n    "
)

FORMATS = (*reporting.FORMATS, *reporting.TABLES)
PROBES = ("repeated",)  # inputs that replace a text


_HELP_TEXTS = {
    "--text": Text("Read the text from a file."),
    "--corpus": Text("Read every document of a .txt, .jsonl or .conllu file."),
    "--probe": Text(
        "Read 25 random tokens repeated 4 times instead of a text, to find induction heads. "
        "Fewer tokens if the model accepts fewer than 100."
    ),
    "--seed": Text("Seed of the random tokens of --probe; default 0."),
    "--open": Text("Open a run written by --save; needs no model."),
    "--save": Text("Save the measurement in this folder, and continue it from there."),
    "--every": Text("With --save: seconds between two writes; default 10."),
    "--paragraphs": Text("In a .txt file, a document is a paragraph instead of a line."),
    "--no-names": Text("Measure a corpus without naming heads, which needs a second model."),
    "--heads": Text("Heads to draw: L0H2,L1H8 or all; default: the three most striking heads."),
    "--truncate": Text("Truncate a text that is too long."),
}
_FIGURES = {"--figures": Text("Also draw figures as PNG and SVG into this folder.")}

_DIR = {"type": PATH, "metavar": "DIR"}
_KINDS: dict[str, dict[str, Any]] = {
    **{key: {"is_flag": True} for key in ("--paragraphs", "--no-names", "--truncate")},
    **dict.fromkeys(("--open", "--save", "--figures"), _DIR),
    "--text": {"metavar": "FILE"},
    "--corpus": {"type": PATH, "metavar": "FILE"},
    "--probe": {"type": click.Choice(PROBES)},
    "--seed": {"type": int, "metavar": "NUMBER"},
    "--every": {"type": click.FloatRange(min=0), "metavar": "SECONDS"},
    "--heads": {"metavar": "NAMES"},
}


def command(lang: Lang) -> click.Command:
    """Return the command ``inspect``, in the reader's language."""
    parameters = [
        click.Argument(["model"], required=False),
        click.Argument(["sentence"], required=False),
        *click_options(_HELP_TEXTS, _KINDS, lang),
        *options(lang, FORMATS),
        *click_options(_FIGURES, _KINDS, lang),
    ]
    return build_command("inspect", _run, parameters, lang, SUMMARY, HELP)


def _check(values: SimpleNamespace) -> str:
    """Return the chosen source; raise `BadValue` if an option is missing or has no effect."""
    sources = {"SENTENCE": values.sentence, "--text": values.text, "--corpus": values.corpus}
    sources |= {"--probe": values.probe, "--open": values.open}
    named = [same(name) for name, value in sources.items() if value is not None]
    if len(named) != 1:
        raise BadValue(
            "sentence: expected exactly one of a sentence, --text FILE, --corpus FILE, "
            "--probe and --open DIR, got {got}; write the sentence in quotes after "
            'the model: headwise inspect minilm "The cat sat."',
            got=joined(Text(" and "), named) if named else Text("nothing"),
        )
    source = named[0].en
    if (values.model is None) != (source == "--open"):
        raise BadValue(
            "model: expected either a model or a saved run with --open; see `headwise models list`"
        )
    if values.every is not None and not math.isfinite(values.every):
        raise BadValue(
            "every: expected a number of seconds >= 0, got {every}; omit it for 10 seconds",
            every=values.every,
        )
    for option, takers in _SOURCES_OF_OPTIONS.items():
        value = getattr(values, option[2:].replace("-", "_"))
        if value is not None and value is not False and source not in takers:
            raise BadValue(
                "{name}: {option} requires {sources}, got {source}; omit it",
                name=option[2:],
                option=option,
                sources=joined(Text(" or "), [same(name) for name in takers]),
                source=source,
            )
    return source


_SOURCES_OF_OPTIONS = {
    "--heads": ("SENTENCE", "--text"),
    "--truncate": ("SENTENCE", "--text", "--corpus"),
    "--save": ("--corpus",),
    "--every": ("--corpus",),
    "--paragraphs": ("--corpus",),
    "--no-names": ("--corpus", "--probe"),
    "--seed": ("--probe",),
}
"""The sources that accept an option, for each option that some sources do not accept."""


def _run(values: SimpleNamespace, lang: Lang) -> int:
    source = _check(values)
    inputs = (values.text, values.corpus, *files_of(values.model or ""))
    destination = Destination(values.format, values.output, lang, FORMATS, inputs)
    check_figures(values.figures, lang)
    if values.save is not None:
        from headwise.heads.corpus.pipeline import check_place

        check_place(values.save)
    if source == "--open":
        from headwise.heads.corpus.checkpoint import open_run

        _write_run(open_run(values.open), values, destination)
    else:
        inspections = {"--corpus": _inspect_corpus, "--probe": _inspect_probe}
        inspections.get(source, _inspect_text)(values, destination)
    return 0


def _inspect_text(values: SimpleNamespace, destination: Destination) -> None:
    from headwise.heads.corpus.documents import read_text
    from headwise.heads.inspection import EVERY, inspect
    from headwise.heads.inspection_export import as_json, file_of, table
    from headwise.heads.inspection_report import report
    from headwise.heads.model_inputs import check_text
    from headwise.heads.models.load import load
    from headwise.heads.names import parse_heads
    from headwise.plots.album import of_inspection

    text = values.sentence if values.text is None else read_text(values.text)
    heads = values.heads
    every = heads is not None and heads.strip().lower() == EVERY
    selected = EVERY if every else None if heads is None else parse_heads(heads)
    check_text(text)
    log = logger(destination.lang)
    loaded = load(values.model, log)
    log(Text("running the model and measuring every head"))
    inspection = inspect(loaded, text, heads=selected, truncate=values.truncate)
    rows = table(inspection.statistics)
    destination.write(
        lambda: report(inspection), lambda: as_json(inspection), lambda kind: file_of(rows, kind)
    )
    write_figures(lambda sheet: of_inspection(sheet, inspection), values.figures, destination.lang)


def _inspect_corpus(values: SimpleNamespace, destination: Destination) -> None:
    """Measure a corpus, in one or several processes; rank 0 writes the report."""
    from headwise.heads.corpus.pipeline import EVERY, Options, measure_corpus, shared
    from headwise.heads.models.load import load

    lang = destination.lang
    with shared() as share:
        quiet = share.rank > 0
        log = logger(lang, quiet=quiet)
        loaded = load(values.model, log)
        every = EVERY if values.every is None else values.every
        corpus_options = Options(
            values.save, values.paragraphs, values.truncate, not values.no_names, every, share
        )
        with shown(lang, documents_of(share), quiet=quiet) as progress:
            run = measure_corpus(loaded, values.corpus, corpus_options, tell=log, progress=progress)
        if not quiet:
            _write_run(run, values, destination)


def documents_of(share: "Share") -> Text:
    """Return the unit of the progress bar of one process, which counts its own documents.

    Example:
        >>> from headwise.heads.corpus.pipeline import Share
        >>> documents_of(Share(0, 2)).en
        'documents of the first of 2 processes'
    """
    if share.processes == 1:
        return DOCUMENTS
    return Text("documents of the first of {processes} processes", processes=share.processes)


def _inspect_probe(values: SimpleNamespace, destination: Destination) -> None:
    from headwise.heads.corpus.measurement import Measurer
    from headwise.heads.corpus.probe import probed, sequences
    from headwise.heads.models.load import load

    loaded = load(values.model, logger(destination.lang))
    seed = values.seed or 0
    sequences(loaded, seed)  # raises its errors before the model is copied
    measurer = Measurer.of(loaded, truncate=False, names=not values.no_names)
    with shown(destination.lang) as progress:
        run = probed(measurer, seed=seed, progress=progress)
    _write_run(run, values, destination)


def _write_run(run: "Run", values: SimpleNamespace, destination: Destination) -> None:
    from headwise.heads.corpus.corpus_report import as_json, report, run_table
    from headwise.heads.inspection_export import file_of
    from headwise.plots.album import of_run

    destination.write(
        lambda: report(run), lambda: as_json(run), lambda kind: file_of(run_table(run), kind)
    )
    write_figures(lambda sheet: of_run(sheet, run), values.figures, destination.lang)


def files_of(model: str) -> tuple[Path, ...]:
    """Return the files of a model that is on this machine."""
    from headwise.heads.models import MODELS, model_folder

    packaged = {entry.name: model_folder(entry) for entry in MODELS}
    try:
        return tuple(packaged.get(model, Path(model)).iterdir()) if model.strip() else ()
    except OSError:  # missing, not a folder, or a name too long for the file system
        return ()

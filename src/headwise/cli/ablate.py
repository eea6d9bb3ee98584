"""``headwise ablate``: the loss of a model as heads are removed."""

from pathlib import Path
from typing import Any

import click

from headwise.cli import reporting
from headwise.cli.inspect import PROBES, files_of
from headwise.cli.output import shown, write_stderr
from headwise.cli.reporting import check_figures, write_figures
from headwise.lang import Lang, Text

__path__ = ()  # `headwise.renamed` has `headwise.cli.ablate.export`

SUMMARY = Text("Measure and draw what a model loses as heads are taken out of it.")

HELP = Text(
    "Measure and draw what a model loses as heads are taken out of it.\n\n    MODEL is "
    "a packaged model's name (see `headwise models list`), a directory in Hugging "
    "Face's\n    format, or a hub id. It must predict the next token: the loss of that "
    "is what is measured, in\n    nats a token. Layers and heads are counted from 0: "
    "L0H2 is layer 0, head 2.\n\n    The heads go one after the other and stay out. "
    "Each interval is of 95 %: over texts, or with\n    --against random over seeds, "
    "each with texts and random heads of its own.\n\n    \b\n    headwise ablate "
    "smollm2 --probe repeated --heads L18H6,L11H4 --against random\n    headwise ablate "
    "./model --corpus a.txt --heads all --order importance --figures pictures\n    "
    "headwise ablate smollm2 --text book.txt --heads L3H4 --how mean --output "
    "effect.json\n    headwise ablate smollm2 --corpus a.txt --open run --named "
    "induction\n    "
)

FORMATS = (*reporting.FORMATS, "csv")
"""What the word can write."""

METHODS = ("zero", "mean", "resample", "uniform")
"""The names of `headwise.heads.ablation.METHODS`, written here so that torch is not loaded."""

ORDERS, AGAINST, STEPS, MAX_SEED = ("given", "importance"), ("random",), 10, 2**31 - 1
"""As in `headwise.heads.ablation.experiment.options`."""


def command(lang: Lang) -> click.Command:
    """The command ``ablate`` with its help in the given language."""
    return click.Command(
        "ablate",
        callback=lambda **options: _run(options, lang),
        params=parameters(lang),
        help=HELP.to(lang),
        short_help=SUMMARY.to(lang),
    )


def _run(options: dict[str, Any], lang: Lang) -> int:
    from headwise.heads.ablation.experiment import (
        AblationOptions,
        as_csv,
        as_json,
        plan_ablation,
        report,
        run_plan,
        select_heads,
    )
    from headwise.heads.models.load import load
    from headwise.plots.curves import of_ablation

    model, figures = options.pop("model"), options.pop("figures")
    form, output = options.pop("format"), options.pop("output")
    experiment_options = AblationOptions(**options)
    experiment_options.check()
    inputs = (
        experiment_options.text,
        experiment_options.corpus,
        *_files_of_run(experiment_options.open),
        *files_of(model),
    )
    destination = reporting.Destination(form, output, lang, FORMATS, inputs)
    destination.check()
    selection = select_heads(experiment_options)
    check_figures(figures, lang)

    def log(message: Text) -> None:
        write_stderr(f"{message.to(lang)} …")

    loaded = load(model, log, predicting=True)
    plan = plan_ablation(loaded, experiment_options, selection)
    log(Text("taking heads out"))
    with shown(lang, Text("texts read")) as progress:
        result = run_plan(loaded, plan, progress)
    destination.write(lambda: report(result), lambda: as_json(result), lambda _: as_csv(result))
    write_figures(lambda sheet: of_ablation(sheet, result), figures, lang)
    return 0


def _files_of_run(run: Path | None) -> tuple[Path, ...]:
    """A saved run as a file, or the files of its folder."""
    from headwise.heads.corpus.checkpoint import JSON, TENSORS

    return () if run is None else (run, run / JSON, run / TENSORS)


def parameters(lang: Lang) -> list[click.Parameter]:
    """The arguments and options, in the reader's language."""
    path = click.Path(path_type=Path)
    return [
        click.Argument(["model"]),
        click.Argument(["sentence"], required=False),
        click.Option(["--text"], metavar="FILE", help=_TEXT.to(lang)),
        click.Option(["--corpus"], type=path, metavar="FILE", help=_CORPUS.to(lang)),
        click.Option(["--probe"], type=click.Choice(PROBES), help=_PROBE.to(lang)),
        click.Option(
            ["--length"], type=click.IntRange(min=2), metavar="TOKENS", help=_LENGTH.to(lang)
        ),
        click.Option(
            ["--texts"], type=click.IntRange(min=1), metavar="NUMBER", help=_TEXTS.to(lang)
        ),
        click.Option(["--paragraphs"], is_flag=True, help=_PARAGRAPHS.to(lang)),
        click.Option(["--truncate"], is_flag=True, help=_TRUNCATE.to(lang)),
        click.Option(["--heads"], metavar="NAMES", help=_HEADS.to(lang)),
        click.Option(["--open"], type=path, metavar="RUN", help=_OPEN.to(lang)),
        click.Option(["--named"], metavar="NAME", help=_NAMED.to(lang)),
        click.Option(["--how"], type=click.Choice(METHODS), default=METHODS[0], help=_HOW.to(lang)),
        click.Option(
            ["--order"], type=click.Choice(ORDERS), default=ORDERS[0], help=_ORDER.to(lang)
        ),
        click.Option(
            ["--steps"],
            type=click.IntRange(min=1),
            default=STEPS,
            metavar="NUMBER",
            help=_STEPS.to(lang),
        ),
        click.Option(["--against"], type=click.Choice(AGAINST), help=_AGAINST.to(lang)),
        click.Option(
            ["--seeds"], type=click.IntRange(min=2), metavar="NUMBER", help=_SEEDS.to(lang)
        ),
        click.Option(
            ["--seed"],
            type=click.IntRange(0, MAX_SEED),
            default=0,
            metavar="NUMBER",
            help=_SEED.to(lang),
        ),
        *reporting.options(lang, FORMATS),
        click.Option(["--figures"], type=path, metavar="DIR", help=_FIGURES.to(lang)),
    ]


_TEXT = Text("Read a text file, cut into pieces of --length tokens.")
_CORPUS = Text("Read every document of a .txt, .jsonl or .conllu file.")
_PROBE = Text(
    "Read 25 random tokens, 4 times over, 48 such sequences; the loss is of the repetitions."
)
_LENGTH = Text(
    "Cut what is read into pieces of so many tokens, and leave out what is shorter; "
    "128 for a text, documents are whole."
)
_TEXTS = Text("Read only so many documents, pieces or sequences.")
_PARAGRAPHS = Text("In a .txt file, a document is a paragraph, not a line.")
_TRUNCATE = Text("Cut documents that are too long.")
_HEADS = Text("Heads to take out: L0H2,L1H8 or all.")
_OPEN = Text(
    "Take the heads from a run that `headwise inspect` saved: the folder of --save, or its JSON."
)
_NAMED = Text("With --open: the heads that the run gives this name, such as induction.")
_HOW = Text(
    "What a head puts out instead: nothing, its mean over other texts, what it does on "
    "another text, or the mean of the values it may see; zero by default. For mean and "
    "resample every second text is such another one, and is not measured on."
)
_ORDER = Text(
    "As given, or the least important first, by its gradient, anew at each step; given by default."
)
_STEPS = Text("In how many steps the heads go, each of one head at least; 10 by default.")
_AGAINST = Text("Hold the heads against as many others, drawn at random for each seed.")
_SEEDS = Text("With --against: how many seeds; the texts are dealt out to them; 10 by default.")
_SEED = Text(
    "The first seed of all that is drawn: random heads, other texts, --probe's tokens; "
    "0 by default."
)
_FIGURES = Text("Draw the curve as PNG and SVG into this folder as well.")

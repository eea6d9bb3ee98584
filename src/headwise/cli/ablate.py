"""``headwise ablate``: the loss of a model as heads are removed."""

from types import SimpleNamespace
from typing import Any

import click

from headwise.cli import reporting
from headwise.cli.inspect import PROBES, files_of
from headwise.cli.output import logger, shown
from headwise.cli.reporting import (
    PATH,
    build_command,
    check_figures,
    click_options,
    options,
    write_figures,
)
from headwise.lang import Lang, Text

__path__ = ()  # `headwise.renamed` has `headwise.cli.ablate.export`

SUMMARY = Text("Measure and draw what a model loses as heads are taken out of it.")

HELP = Text(
    "Measure and draw what a model loses as heads are taken out of it.\n\n    MODEL is a packaged "
    "model's name (see `headwise models list`), a directory in Hugging Face's\n    format, or a "
    "hub id. It must predict the next token: the loss of that is what is measured, in\n    nats a "
    "token. Layers and heads are counted from 0: L0H2 is layer 0, head 2.\n\n    The heads go one "
    "after the other and stay out. Each interval is of 95 %: over texts, or with\n    --against "
    "random over seeds, each with texts and random heads of its own.\n\n    \b\n    headwise "
    "ablate smollm2 --probe repeated --heads L18H6,L11H4 --against random\n    headwise ablate "
    "./model --corpus a.txt --heads all --order importance --figures pictures\n    headwise ablate "
    "smollm2 --text book.txt --heads L3H4 --how mean --output effect.json\n    headwise ablate "
    "smollm2 --corpus a.txt --open run --named induction\n    "
)

FORMATS = (*reporting.FORMATS, "csv")

METHODS = ("zero", "mean", "resample", "uniform")
"""The names of `headwise.heads.ablation.METHODS`, written here so that torch is not loaded."""

ORDERS, AGAINST, STEPS, MAX_SEED = ("given", "importance"), ("random",), 10, 2**31 - 1
"""As in `headwise.heads.ablation.experiment.options`."""


_HELP_TEXTS = {
    "--text": Text("Read a text file, cut into pieces of --length tokens."),
    "--corpus": Text("Read every document of a .txt, .jsonl or .conllu file."),
    "--probe": Text(
        "Read 25 random tokens, 4 times over, 48 such sequences; the loss is of the repetitions."
    ),
    "--length": Text(
        "Cut what is read into pieces of so many tokens, and leave out what is shorter; "
        "128 for a text, documents are whole."
    ),
    "--texts": Text("Read only so many documents, pieces or sequences."),
    "--paragraphs": Text("In a .txt file, a document is a paragraph, not a line."),
    "--truncate": Text("Cut documents that are too long."),
    "--heads": Text("Heads to take out: L0H2,L1H8 or all."),
    "--open": Text(
        "Take the heads from a run that `headwise inspect` saved: the folder of --save, or its "
        "JSON."
    ),
    "--named": Text("With --open: the heads that the run gives this name, such as induction."),
    "--how": Text(
        "What a head puts out instead: nothing, its mean over other texts, what it does on "
        "another text, or the mean of the values it may see; zero by default. For mean and "
        "resample every second text is such another one, and is not measured on."
    ),
    "--order": Text(
        "As given, or the least important first, by its gradient, anew at each step; given by "
        "default."
    ),
    "--steps": Text("In how many steps the heads go, each of one head at least; 10 by default."),
    "--against": Text("Hold the heads against as many others, drawn at random for each seed."),
    "--seeds": Text(
        "With --against: how many seeds; the texts are dealt out to them; 10 by default."
    ),
    "--seed": Text(
        "The first seed of all that is drawn: random heads, other texts, --probe's tokens; "
        "0 by default."
    ),
}
_FIGURES = {"--figures": Text("Draw the curve as PNG and SVG into this folder as well.")}

_NUMBER = {"metavar": "NUMBER"}
_KINDS: dict[str, dict[str, Any]] = {
    **{key: {"is_flag": True} for key in ("--paragraphs", "--truncate")},
    "--text": {"metavar": "FILE"},
    "--corpus": {"type": PATH, "metavar": "FILE"},
    "--probe": {"type": click.Choice(PROBES)},
    "--length": {"type": click.IntRange(min=2), "metavar": "TOKENS"},
    "--texts": {"type": click.IntRange(min=1), **_NUMBER},
    "--heads": {"metavar": "NAMES"},
    "--open": {"type": PATH, "metavar": "RUN"},
    "--named": {"metavar": "NAME"},
    "--how": {"type": click.Choice(METHODS), "default": METHODS[0]},
    "--order": {"type": click.Choice(ORDERS), "default": ORDERS[0]},
    "--steps": {"type": click.IntRange(min=1), "default": STEPS, **_NUMBER},
    "--against": {"type": click.Choice(AGAINST)},
    "--seeds": {"type": click.IntRange(min=2), **_NUMBER},
    "--seed": {"type": click.IntRange(0, MAX_SEED), "default": 0, **_NUMBER},
    "--figures": {"type": PATH, "metavar": "DIR"},
}


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    parameters = [
        click.Argument(["model"]),
        click.Argument(["sentence"], required=False),
        *click_options(_HELP_TEXTS, _KINDS, lang),
        *options(lang, FORMATS),
        *click_options(_FIGURES, _KINDS, lang),
    ]
    return build_command("ablate", _run, parameters, lang, SUMMARY, HELP)


def _run(values: SimpleNamespace, lang: Lang) -> int:
    from headwise.heads.ablation.experiment import (
        AblationOptions,
        as_csv,
        as_json,
        plan_ablation,
        report,
        run_plan,
        select_heads,
    )
    from headwise.heads.corpus.checkpoint import JSON, TENSORS
    from headwise.heads.models.load import load
    from headwise.plots.curves import of_ablation

    model, figures = values.model, values.figures
    other = ("model", "figures", "format", "output")
    experiment = AblationOptions(**{k: v for k, v in vars(values).items() if k not in other})
    experiment.check()
    run = experiment.open
    run_files = () if run is None else (run, run / JSON, run / TENSORS)
    inputs = (experiment.text, experiment.corpus, *run_files, *files_of(model))
    destination = reporting.Destination(values.format, values.output, lang, FORMATS, inputs)
    selection = select_heads(experiment)
    check_figures(figures, lang)
    log = logger(lang)
    loaded = load(model, log, predicting=True)
    plan = plan_ablation(loaded, experiment, selection)
    log(Text("taking heads out"))
    with shown(lang, Text("texts read")) as progress:
        result = run_plan(loaded, plan, progress)
    destination.write(lambda: report(result), lambda: as_json(result), lambda _: as_csv(result))
    write_figures(lambda sheet: of_ablation(sheet, result), figures, lang)
    return 0

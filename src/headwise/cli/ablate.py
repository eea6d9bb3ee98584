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

__path__ = ()  # lets `headwise.renamed` provide `headwise.cli.ablate.export`

SUMMARY = Text("Measure and draw the loss of a model as its heads are removed.")

HELP = Text(
    "Measure and draw the loss of a model as its heads are removed.\n\n    MODEL is a packaged "
    "model's name (see `headwise models list`), a directory in Hugging Face's\n    format, or a "
    "hub id. The model must predict the next token; its next-token loss is measured, in nats\n"
    "    per token. Layers and heads are counted from 0: L0H2 is layer 0, head 2.\n\n    The heads "
    "are removed one after the other and stay removed. All intervals are 95 % confidence\n    "
    "intervals over texts, or with --against random over seeds, each with its own texts and\n    "
    "random heads.\n\n    \b\n    headwise "
    "ablate smollm2 --probe repeated --heads L18H6,L11H4 --against random\n    headwise ablate "
    "./model --corpus a.txt --heads all --order importance --figures pictures\n    headwise ablate "
    "smollm2 --text book.txt --heads L3H4 --how mean --output effect.json\n    headwise ablate "
    "smollm2 --corpus a.txt --open run --named induction\n    "
)

FORMATS = (*reporting.FORMATS, "csv")

METHODS = ("zero", "mean", "resample", "uniform")
"""The names of `headwise.heads.ablation.METHODS`, repeated here so that torch is not loaded."""

ORDERS, AGAINST, STEPS, MAX_SEED = ("given", "importance"), ("random",), 10, 2**31 - 1
"""The same values as in `headwise.heads.ablation.experiment.options`."""


_HELP_TEXTS = {
    "--text": Text("Read a text file, cut into pieces of --length tokens."),
    "--corpus": Text("Read every document of a .txt, .jsonl or .conllu file."),
    "--probe": Text(
        "Read 48 sequences of 25 random tokens repeated 4 times; measure the repetitions only."
    ),
    "--length": Text(
        "Cut the input into pieces of this many tokens and omit shorter pieces; default: "
        "128 for a text, whole documents otherwise."
    ),
    "--texts": Text("Read only this many documents, pieces or sequences."),
    "--paragraphs": Text("In a .txt file, a document is a paragraph instead of a line."),
    "--truncate": Text("Truncate documents that are too long."),
    "--heads": Text("Heads to remove: L0H2,L1H8 or all."),
    "--open": Text(
        "Take the heads from a saved run of `headwise inspect`: the folder of --save, or its "
        "JSON file."
    ),
    "--named": Text("With --open: the heads with this name in the run, such as induction."),
    "--how": Text(
        "Replacement of a head's output: zero, its mean over other texts, its output on another "
        "text, or the mean of the values it may attend to; default zero. For mean and resample, "
        "every second text serves as another text and is not measured."
    ),
    "--order": Text(
        "Remove heads as given, or by gradient the least important head first, recomputed at "
        "each step; default given."
    ),
    "--steps": Text("Number of removal steps, each of at least one head; default 10."),
    "--against": Text("Compare with as many other heads, drawn at random for each seed."),
    "--seeds": Text(
        "With --against: number of seeds, among which the texts are divided; default 10."
    ),
    "--seed": Text(
        "The first seed of all random choices: heads, other texts, tokens of --probe; default 0."
    ),
}
_FIGURES = {"--figures": Text("Also draw the curve as PNG and SVG into this folder.")}

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
    """Return the command ``ablate``, in the reader's language."""
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
    log(Text("removing heads"))
    with shown(lang, Text("texts read")) as progress:
        result = run_plan(loaded, plan, progress)
    destination.write(lambda: report(result), lambda: as_json(result), lambda _: as_csv(result))
    write_figures(lambda sheet: of_ablation(sheet, result), figures, lang)
    return 0

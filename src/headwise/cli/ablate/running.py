"""``headwise ablate``: load, read, measure, write."""

from dataclasses import replace
from functools import partial

from headwise.cli.ablate.asked import Asked
from headwise.cli.ablate.choosing import Chosen, choose
from headwise.cli.ablate.export import as_csv, as_json
from headwise.cli.ablate.figures import check_folder, curves
from headwise.cli.ablate.measured import Measured, Plan, measure
from headwise.cli.ablate.reading import Reading, read
from headwise.cli.ablate.report import report
from headwise.cli.ablate.resampling import check_resampling
from headwise.cli.inspect.figures import draw
from headwise.cli.inspect.progress import shown
from headwise.cli.output import write_stderr
from headwise.cli.reporting import Destination
from headwise.document.plain import clean
from headwise.errors import BadValue
from headwise.heads.effect.ablation import grouped
from headwise.heads.effect.batches import run
from headwise.heads.effect.loss import unpredicting
from headwise.heads.effect.sites import sites
from headwise.heads.effect.uniform import check_uniform
from headwise.heads.inputs import run as try_out
from headwise.heads.models.load import Loaded, load
from headwise.lang import Text

TEXTS = Text("texts read")


def ablated(asked: Asked, destination: Destination) -> int:
    """Measure what was asked for and write what was found."""
    lang = destination.lang
    chosen = choose(asked)
    if asked.figures is not None:
        check_folder(asked.figures, lang)

    def tell(done: Text) -> None:
        write_stderr(f"{done.to(lang)} …")

    loaded = load(asked.model, tell, predicting=True)
    plan, reading = _plan(asked, loaded, chosen)
    tell(Text("taking heads out"))
    with shown(lang, TEXTS) as progress:
        found = measure(loaded, plan, reading, progress)
    _write(found, asked, destination)
    return 0


def _plan(asked: Asked, loaded: Loaded, chosen: Chosen) -> tuple[Plan, Reading]:
    """What will be done; everything that can be said to be wrong is said here."""
    found = sites(loaded.model)
    heads = chosen.of(found, str(loaded.config.model_type))
    if asked.how == "uniform":
        check_uniform(found, grouped(heads), "how")
    plan = Plan(heads, asked.how, asked.order, asked.steps, asked.draws, asked.seed)
    plan.check(loaded.model)
    reading = read(asked, loaded)
    if asked.how == "resample":
        check_resampling(plan, found, reading)
    _check_loss(loaded, reading)
    return replace(plan, same=chosen.same_texts(reading)), reading


def _check_loss(loaded: Loaded, reading: Reading) -> None:
    """Refuse a model that does not run on the first text, or predicts nothing."""
    import torch

    first = dict(reading.measured[0])
    try_out(loaded, first)
    with torch.no_grad():
        reason = unpredicting(loaded.model, run(loaded.model, first))
    if reason is None:
        return
    name = clean(loaded.name)
    raise BadValue(
        "model: {name} has no loss to measure: it predicts no next token ({reason}); "
        "give a decoder saved with its last projection, such as smollm2, or a loss of "
        "your own in Python (headwise.heads.effect.curve, docs/ablation.md)",
        name=name,
        reason=reason,
    )


def _write(found: Measured, asked: Asked, destination: Destination) -> None:
    destination.write(
        lambda: report(found),
        lambda: as_json(found),
        lambda kind: as_csv(found),  # noqa: ARG005 - it is the only table there is
    )
    draw(partial(curves, found=found), asked.figures, destination.lang)

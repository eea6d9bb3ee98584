"""``headwise verify``: compare attentions with the oracle and PyTorch, and name their mistakes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import BAD_INPUT, FOUND_WRONG
from headwise.cli.output import shown, write_stderr
from headwise.cli.reporting import FORMATS as DOCUMENT_FORMATS
from headwise.cli.reporting import PATH, Destination, build_command, click_options, options
from headwise.document.files import write
from headwise.document.text_format import clean_lines
from headwise.errors import BadValue, HeadwiseError
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.document import Document
    from headwise.verify.process import Limits, Request
    from headwise.verify.report import Data
    from headwise.verify.submissions.results import Results
    from headwise.verify.target.stated import Stated

SUMMARY = Text("Compare an attention with an exact oracle and name its mistake.")

EMBED_DIM, HEADS = 15, 3
SECONDS, MEMORY = 120, 4096
SHOWN = 20  # the number of printed lines of a target that are passed on

FORMATS = (*DOCUMENT_FORMATS, "csv", "github")

_HELP = Text(
    "TARGET is path/to/file.py:Name or package.Name: a module class, a module, or a function f(q, "
    "k, v, mask=None) on (B, H, L, D). The code of the target is run unchanged, with your rights, "
    "in a separate process. The process starts in an empty folder that is deleted afterwards. It "
    "may use {seconds} seconds of CPU time and {memory} MiB, write files of up to 256 MiB and "
    "print 1 MiB; at the end, it is killed together with its child processes. This contains "
    "accidents, but it is not a sandbox for hostile code.\n\nSeveral targets, a folder, a pattern "
    "or a file without a name, in which attentions are searched, give one table: headwise verify "
    "submissions/ --output marks.csv. To resume a run that was killed, start it again with the "
    "same --output.\n\nExit status: 0 the target is accepted, 1 it differs or uses a forbidden "
    "name, 2 there is no verdict: the target does not load, needs an adapter, hangs, crashes or "
    "exceeds a limit. With several targets, the status is 1 if any target gives 1.",
    seconds=SECONDS,
    memory=MEMORY,
)


def command(lang: Lang) -> click.Command:
    """Return the command with its help in the given language."""
    parameters = [
        click.Argument(["targets"], nargs=-1, metavar="[TARGET]..."),
        *click_options(_HELP_TEXTS, _KINDS, lang),
        *options(lang, FORMATS),
    ]
    return build_command("verify", _run, parameters, lang, SUMMARY, SUMMARY, _HELP)


_HELP_TEXTS = {
    "--self-test": Text("Test the checks on known mistakes instead of a target."),
    "--seed": Text("Seed of the inputs and weights."),
    "--embed-dim": Text("Embedding size E for the tests, a multiple of the number of heads."),
    "--heads": Text("Number of heads H for the tests."),
    "--set": Text("An argument of the constructor, as name=value; can be given several times."),
    "--mask-true": Text("What True or 1 means in the masks; default: found by trial."),
    "--layout": Text("Axes of the input, batch first or length first; default: found by trial."),
    "--kv-heads": Text("Number of key/value heads; default: found by trial."),
    "--causal": Text("The target masks later keys itself; default: found by trial."),
    "--forbid": Text(
        "A class or function that the target may not use, such as torch.nn.MultiheadAttention or "
        "F.scaled_dot_product_attention; can be given several times."
    ),
    "--time-limit": Text("Limit on the CPU time, in seconds."),
    "--wall-limit": Text("Limit on the wall-clock time, in seconds; default 5 times --time-limit."),
    "--memory-limit": Text(
        "Limit on the memory besides Python and PyTorch, in MiB; not enforced on every system."
    ),
    "--compile": Text("Verify the target under torch.compile as well; takes some seconds."),
    "--jobs": Text("Number of targets that run at the same time; default one per CPU."),
    "--junit": Text("Also write JUnit XML to this file."),
}

_SIZE, _SHOWN = click.IntRange(min=1, max=512), {"show_default": True}
_TIME = click.FloatRange(0.1, 86400)
_KINDS: dict[str, dict[str, Any]] = {
    **{key: {"is_flag": True} for key in ("--self-test", "--compile", "--causal")},
    "--set": {"multiple": True, "metavar": "NAME=VALUE"},
    "--mask-true": {"type": click.Choice(["attend", "blocked"])},
    "--layout": {"type": click.Choice(["batch-first", "length-first"])},
    "--kv-heads": {"type": _SIZE},
    "--seed": {"type": click.IntRange(0, 2**31), "default": 0, **_SHOWN},
    "--embed-dim": {"type": _SIZE, "default": EMBED_DIM, **_SHOWN},
    "--heads": {"type": _SIZE, "default": HEADS, **_SHOWN},
    "--forbid": {"multiple": True, "metavar": "NAME"},
    "--time-limit": {"type": _TIME, "default": SECONDS, **_SHOWN},
    "--wall-limit": {"type": _TIME},
    "--memory-limit": {"type": click.IntRange(64, 1 << 20), "default": MEMORY, **_SHOWN},
    "--jobs": {"type": click.IntRange(1, 1024)},
    "--junit": {"type": PATH},
}


def _run(values: SimpleNamespace, lang: Lang) -> int:
    if values.self_test == bool(values.targets):
        raise BadValue("target: expected either TARGET or --self-test; write path/to/file.py:Name")
    if values.self_test and values.junit is not None:
        raise BadValue("junit: expected a TARGET, got --self-test; leave out --junit")
    inputs = (*values.targets,)
    destination = Destination(values.format, values.output, lang, FORMATS, inputs)
    Destination(None, values.junit, lang, inputs=inputs)
    if values.self_test:
        return _self_tested(destination)
    return _verified(values, destination)


def _self_tested(destination: Destination) -> int:
    import torch

    from headwise.verify.checks.mutation_testing import self_test
    from headwise.verify.report.report_document import self_test_data, self_test_document

    if destination.kind not in DOCUMENT_FORMATS:
        raise BadValue("format: {kind} needs a TARGET; choose another", kind=destination.kind)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster, as all sizes are small
    try:
        tested = self_test(progress=_progress(destination.lang))
    finally:
        torch.set_num_threads(threads)
    _write(destination, lambda: self_test_document(tested), self_test_data(tested))
    return 0 if tested.passed else FOUND_WRONG


def _verified(values: SimpleNamespace, destination: Destination) -> int:
    """Verify one target or several; the report on a file with one attention has no table."""
    from headwise.verify.process import Limits, Request

    names = (values.embed_dim, values.heads, values.seed, values.compile, values.forbid)
    request = Request(values.targets[0], *names, _stated(values))
    limits = Limits(values.time_limit, values.memory_limit, wall=values.wall_limit)
    if len(values.targets) > 1 or _holds_several(values.targets[0]):
        return _all_verified(values, request, limits, destination)
    return _one_verified(values, request, limits, destination)


def _holds_several(target: str) -> bool:
    """Whether a target is a file, folder or pattern, which may contain several attentions."""
    from headwise.verify.submissions.sources import is_file

    return is_file(target) or Path(target).is_dir()


def _one_verified(
    values: SimpleNamespace, request: "Request", limits: "Limits", destination: Destination
) -> int:
    from headwise.verify.process import isolated
    from headwise.verify.report import unusable
    from headwise.verify.target import EXAMPLE, NotRecognised, without_example

    target, lang = request.target, destination.lang
    try:
        report = isolated(request, limits, progress=_progress(lang), on_output=_pass_on)
    except HeadwiseError as error:
        short = without_example(error) if isinstance(error, NotRecognised) else error
        _also_junit(values, [unusable(target, short)], lang)
        if destination.kind not in ("text", "markdown", "html"):
            data = unusable(target, error if destination.kind == "json" else short)
            _write_report(destination, data)
        if short is not error:
            click.echo(EXAMPLE, err=True)
        raise short from error
    _also_junit(values, [report], lang)
    _write_report(destination, report)
    return _status([report])


def _stated(values: SimpleNamespace) -> "Stated":
    """The conventions that the options state."""
    from headwise.verify.target.stated import Stated, stated_arguments

    return Stated(
        mask_true=values.mask_true,
        layout=values.layout,
        kv_heads=values.kv_heads,
        causal=values.causal,
        arguments=stated_arguments(values.set),
    )


def _all_verified(
    values: SimpleNamespace, request: "Request", limits: "Limits", destination: Destination
) -> int:
    from headwise.verify.submissions import verify_all
    from headwise.verify.submissions.journal import Journal

    output, lang = destination.output, destination.lang
    journal = None if output is None else output.with_name(f"{output.name}.journal")
    with shown(lang, Text("files")) as progress:
        results = verify_all(
            values.targets,
            request=request,
            limits=limits,
            jobs=values.jobs,
            journal=journal,
            progress=progress,
        )
    _also_junit(values, list(results.reports), lang)
    if len(results.reports) == 1 and not _is_folder(values.targets):
        _write_report(destination, results.reports[0])
    else:
        _write_results(destination, results)
    if journal is not None:
        Journal.delete(journal)
    return _status(results.reports)


def _is_folder(targets: tuple[str, ...]) -> bool:
    return len(targets) > 1 or Path(targets[0]).is_dir()


def _status(reports: "list[Data] | tuple[Data, ...]") -> int:
    """Return the exit status: 1 if any target is wrong, else 2 if any has no verdict."""
    if any(report["status"] == "differs" or report.get("forbidden") for report in reports):
        return FOUND_WRONG
    return 0 if all(report["accepted"] for report in reports) else BAD_INPUT


def _write_report(destination: Destination, report: "Data") -> None:
    from headwise.verify.report.report_document import document
    from headwise.verify.submissions.results import Results

    if destination.kind in ("csv", "github"):
        _write_results(destination, Results((report,)))
    else:
        _write(destination, lambda: document(report), report)


def _write_results(destination: Destination, results: "Results") -> None:
    from headwise.verify.report.annotations import annotations

    texts = {
        "csv": lambda: results.csv(destination.lang),
        "github": lambda: annotations(results.reports, destination.lang),
    }
    _write(destination, results.document, results.data(), texts)


def _write(
    destination: Destination,
    document: "Callable[[], Document]",
    data: "Data",
    texts: "dict[str, Callable[[], str]] | None" = None,
) -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)  # clear the line of `_progress`
    text = {} if texts is None else texts
    destination.write(
        document,
        lambda: json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False),
        lambda kind: text[kind](),
    )


def _also_junit(values: SimpleNamespace, reports: "list[Data]", lang: Lang) -> None:
    from headwise.verify.report.formats import junit

    if values.junit is not None:
        write(values.junit, junit(reports, lang))


def _pass_on(printed: str) -> None:
    """Write the first lines that the target printed, without control characters, to stderr."""
    lines = clean_lines(printed[: 1 << 16])
    for line in lines[:SHOWN]:
        write_stderr(line)
    if len(lines) > SHOWN:
        write_stderr("…")


def _progress(lang: Lang) -> Callable[[str], None] | None:
    """Return a function that shows the current check in a terminal; None without a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(name: str) -> None:
        message = f"{Text('checking').to(lang)} {name}"
        click.echo(f"\r\033[K{message}\r", nl=False, err=True)

    return show

"""``headwise verify``: an attention held against the oracle and PyTorch, and its mistake named."""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import BAD_INPUT, FOUND_WRONG
from headwise.cli.output import write_stderr
from headwise.cli.reporting import PATH, Destination, build_command, click_options, options
from headwise.document.files import write
from headwise.document.text_format import clean_lines
from headwise.errors import BadValue, HeadwiseError
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.document import Document
    from headwise.verify.report import Data
    from headwise.verify.target.stated import Stated

SUMMARY = Text("Hold an attention against an exact oracle and name its mistake.")

EMBED_DIM, HEADS = 15, 3
SECONDS, MEMORY = 120, 4096
SHOWN = 20  # how many lines of what a target prints are passed on

_HELP = Text(
    "TARGET is path/to/file.py:Name or package.Name: a class of modules, a module, or a function "
    "f(q, k, v, mask=None) on (B, H, L, D). Its code is run as it stands, with your rights, in a "
    "process of its own: it starts in an empty folder that is deleted afterwards, may take "
    "{seconds} seconds and {memory} MiB, write files of 256 MiB and print 1 MiB, and is ended with "
    "whatever it has started. This keeps accidents in; it is no jail for hostile code.\n\nExit "
    "status: 0 accepted, 1 it differs, 2 there is no verdict: it does not load, needs an adapter, "
    "hangs, crashes, or goes over a limit.",
    seconds=SECONDS,
    memory=MEMORY,
)


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    parameters = [
        click.Argument(["target"], required=False),
        *click_options(_HELP_TEXTS, _KINDS, lang),
        *options(lang),
    ]
    return build_command("verify", _run, parameters, lang, SUMMARY, SUMMARY, _HELP)


_HELP_TEXTS = {
    "--self-test": Text("Try the checks on known mistakes instead."),
    "--seed": Text("Of inputs and weights."),
    "--embed-dim": Text("E to try it with, a multiple of the heads."),
    "--heads": Text("H to try it with."),
    "--set": Text("An argument of its constructor, as name=value; may be given again."),
    "--mask-true": Text("What True or 1 in its masks means; found by trial otherwise."),
    "--layout": Text("The axes of its input, batch or length first; found by trial otherwise."),
    "--kv-heads": Text("Its key/value heads; found by trial otherwise."),
    "--causal": Text("It hides the future by itself; found by trial otherwise."),
    "--time-limit": Text("Seconds it may take."),
    "--memory-limit": Text(
        "MiB it may take beside Python and PyTorch; where the system has such limits."
    ),
    "--compile": Text("Hold it under torch.compile as well; takes some seconds."),
    "--junit": Text("Write JUnit XML to this file as well."),
}

_SIZE, _SHOWN = click.IntRange(min=1, max=512), {"show_default": True}
_KINDS: dict[str, dict[str, Any]] = {
    **{key: {"is_flag": True} for key in ("--self-test", "--compile", "--causal")},
    "--set": {"multiple": True, "metavar": "NAME=VALUE"},
    "--mask-true": {"type": click.Choice(["attend", "blocked"])},
    "--layout": {"type": click.Choice(["batch-first", "length-first"])},
    "--kv-heads": {"type": _SIZE},
    "--seed": {"type": click.IntRange(0, 2**31), "default": 0, **_SHOWN},
    "--embed-dim": {"type": _SIZE, "default": EMBED_DIM, **_SHOWN},
    "--heads": {"type": _SIZE, "default": HEADS, **_SHOWN},
    "--time-limit": {"type": click.FloatRange(0.1, 86400), "default": SECONDS, **_SHOWN},
    "--memory-limit": {"type": click.IntRange(64, 1 << 20), "default": MEMORY, **_SHOWN},
    "--junit": {"type": PATH},
}


def _run(values: SimpleNamespace, lang: Lang) -> int:
    if values.self_test == (values.target is not None):
        raise BadValue("target: expected either TARGET or --self-test; write path/to/file.py:Name")
    if values.self_test and values.junit is not None:
        raise BadValue("junit: expected a TARGET to report on, got --self-test; leave out --junit")
    inputs = (values.target,)
    destination = Destination(values.format, values.output, lang, inputs=inputs)
    Destination(None, values.junit, lang, inputs=inputs)
    return _self_tested(destination) if values.self_test else _verified(values, destination)


def _self_tested(destination: Destination) -> int:
    import torch

    from headwise.verify.checks.mutation_testing import self_test
    from headwise.verify.report.report_document import self_test_data, self_test_document

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster, as all sizes are small
    try:
        tested = self_test(progress=_progress(destination.lang))
    finally:
        torch.set_num_threads(threads)
    _write(destination, lambda: self_test_document(tested), self_test_data(tested))
    return 0 if tested.passed else FOUND_WRONG


def _verified(values: SimpleNamespace, destination: Destination) -> int:
    from headwise.verify.process import Limits, Request, isolated
    from headwise.verify.report import unusable
    from headwise.verify.report.report_document import document
    from headwise.verify.target import EXAMPLE, NotRecognised, without_example

    target, lang = values.target or "", destination.lang
    request = Request(
        target, values.embed_dim, values.heads, values.seed, values.compile, _stated(values)
    )
    limits = Limits(values.time_limit, values.memory_limit)
    try:
        report = isolated(request, limits, progress=_progress(lang), on_output=_pass_on)
    except HeadwiseError as error:
        short = without_example(error) if isinstance(error, NotRecognised) else error
        _also_junit(values, unusable(target, short), lang)
        if destination.kind == "json":
            _write(destination, lambda: document(unusable(target, short)), unusable(target, error))
        if short is not error:
            click.echo(EXAMPLE, err=True)
        raise short from error
    _also_junit(values, report, lang)
    _write(destination, lambda: document(report), report)
    if report["status"] == "unproven":
        return BAD_INPUT
    return 0 if report["accepted"] else FOUND_WRONG


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


def _write(destination: Destination, document: "Callable[[], Document]", data: "Data") -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)  # clear the line of `_progress`
    destination.write(
        document, lambda: json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    )


def _also_junit(values: SimpleNamespace, report: "Data", lang: Lang) -> None:
    from headwise.verify.report.formats import junit

    if values.junit is not None:
        write(values.junit, junit(report, lang))


def _pass_on(printed: str) -> None:
    """The beginning of what the target printed, made harmless, beside the report."""
    lines = clean_lines(printed[: 1 << 16])
    for line in lines[:SHOWN]:
        write_stderr(line)
    if len(lines) > SHOWN:
        write_stderr("…")


def _progress(lang: Lang) -> Callable[[str], None] | None:
    """What is being done, on one line of a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(name: str) -> None:
        message = f"{Text('checking').to(lang)} {name}"
        click.echo(f"\r\033[K{message}\r", nl=False, err=True)

    return show

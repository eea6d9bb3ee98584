"""``headwise verify``: an attention held against the oracle and PyTorch, and its mistake named."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli import reporting
from headwise.errors import BadValue
from headwise.lang import Lang, Text

if TYPE_CHECKING:
    from headwise.document import Document

SUMMARY = Text(
    "Hold an attention against an exact oracle and name its mistake.",
    "将一个注意力实现与精确结果对照，并指出其错误。",
)

EMBED_DIM, HEADS = 15, 3
_HELP = Text(
    "TARGET is path/to/file.py:Name or package.Name: a class of modules, a module, or a function "
    "f(q, k, v, mask=None) on (B, H, L, D). Its code is run as it stands, with your rights.\n\n"
    "Exit status: 0 accepted, 1 it differs, 2 it cannot be used.",
    "TARGET 为 路径/文件.py:名称 或 包.名称：模块类、模块实例，或作用于 (B, H, L, D) 的函数 "
    "f(q, k, v, mask=None)。其代码会以你的权限原样运行。\n\n"
    "退出状态：0 通过，1 不一致，2 无法使用。",
)


@dataclass(frozen=True)
class Asked:
    """The options as given."""

    target: str | None
    self_test: bool
    format: str | None
    output: Path | None
    seed: int
    embed_dim: int
    heads: int


def command(lang: Lang) -> click.Command:
    """The command, in the reader's language."""
    return click.Command(
        "verify",
        callback=lambda **given: _run(Asked(**given), lang),
        params=_parameters(lang),
        help=f"{SUMMARY.to(lang)}\n\n{_HELP.to(lang)}",
        short_help=SUMMARY.to(lang),
    )


def _parameters(lang: Lang) -> list[click.Parameter]:
    said = {
        "self": Text("Try the checks on known mistakes instead.", "改为用已知错误检验各项检查。"),
        "seed": Text("Of inputs and weights.", "输入和权重的种子。"),
        "embed": Text("E to try it with, a multiple of the heads.", "试验用的 E，头数的整数倍。"),
        "heads": Text("H to try it with.", "试验用的头数 H。"),
    }
    size = click.IntRange(min=1, max=512)
    return [
        click.Argument(["target"], required=False),
        click.Option(["--self-test"], is_flag=True, help=said["self"].to(lang)),
        click.Option(
            ["--seed"], type=click.IntRange(0, 2**31), default=0, help=said["seed"].to(lang)
        ),
        click.Option(
            ["--embed-dim"],
            type=size,
            default=EMBED_DIM,
            show_default=True,
            help=said["embed"].to(lang),
        ),
        click.Option(
            ["--heads"], type=size, default=HEADS, show_default=True, help=said["heads"].to(lang)
        ),
        *reporting.options(lang),
    ]


def _run(asked: Asked, lang: Lang) -> int:
    from headwise.cli import FOUND_WRONG

    if asked.self_test == (asked.target is not None):
        raise BadValue(
            "target: expected either TARGET or --self-test; write path/to/file.py:Name",
            "target：应给出 TARGET 或 --self-test 之一；写法为 路径/文件.py:名称",
        )
    destination = reporting.Destination(asked.format, asked.output, lang, inputs=(asked.target,))
    destination.check()
    with _one_thread():
        good, document, data = _tested(lang) if asked.self_test else _verified(asked, lang)
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)  # the line that said what was being checked
    destination.write(
        lambda: document,
        lambda: json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False),
    )
    return 0 if good else FOUND_WRONG


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread while it works: the sizes are so small that more only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _tested(lang: Lang) -> "tuple[bool, Document, dict[str, object]]":
    from headwise.verify.gate import self_test
    from headwise.verify.report import self_test_data, self_test_document

    tested = self_test(progress=_progress(lang))
    return tested.passed, self_test_document(tested), self_test_data(tested)


def _verified(asked: Asked, lang: Lang) -> "tuple[bool, Document, dict[str, object]]":
    from headwise.verify.adapter import EXAMPLE, NotRecognised, without_example
    from headwise.verify.loading import load
    from headwise.verify.report import data, document
    from headwise.verify.verdict import verify

    target = asked.target or ""
    try:
        with redirect_stdout(sys.stderr):  # what the target prints must not mix with the report
            report = verify(
                load(target),
                target,
                embed_dim=asked.embed_dim,
                heads=asked.heads,
                seed=asked.seed,
                progress=_progress(lang),
            )
    except NotRecognised as error:
        click.echo(EXAMPLE, err=True)
        raise without_example(error) from error
    return report.accepted, document(report), data(report)


def _progress(lang: Lang) -> Callable[[str], None] | None:
    """What is being done, on one line of a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(name: str) -> None:
        said = f"{Text('checking', '检查').to(lang)} {name}"
        click.echo(f"\r\033[K{said}\r", nl=False, err=True)

    return show

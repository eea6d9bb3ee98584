"""How the command line speaks: commands and errors in the reader's language.

A word of the command line is one file here with ``SUMMARY`` and ``command(lang)``. Such a file
imports nothing heavy at its top, so that ``headwise --help`` answers without loading torch.
"""

import locale
import os
from collections.abc import Iterable, Sequence
from importlib import import_module

import click

from headwise.cli.click_messages import chinese_notes
from headwise.cli.output import write_stdout
from headwise.lang import LANGS, Lang, Text

COMMANDS = ("explain", "check", "verify", "inspect", "ablate", "models", "demo", "show", "plan")
"""Every word there is, in the order the help shows them."""

_HEADINGS = {"Options": Text("Options"), "Commands": Text("Commands")}


class ChineseFormatter(click.HelpFormatter):
    """click's help with its own few words in Chinese."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix or Text("Usage: ").zh)

    def write_heading(self, heading: str) -> None:
        text = _HEADINGS[heading].zh if heading in _HEADINGS else heading
        self.write(f"{'':>{self.current_indent}}{text}：\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        super().write_dl([(a, chinese_notes(b)) for a, b in rows], col_max, col_spacing)


class ChineseContext(click.Context):
    """A context whose help is Chinese."""

    formatter_class = ChineseFormatter


class CommandGroup(click.Group):
    """The group that loads a word's file only when that word is used or listed."""

    def __init__(self, lang: Lang, version: str) -> None:
        super().__init__(
            "headwise",
            help=_HELP.to(lang),
            params=[_lang_option(lang), _version_option(version, lang)],
            no_args_is_help=True,
        )
        self.lang = lang
        spoken(self, lang)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        return spoken(import_module(f"headwise.cli.{cmd_name}").command(self.lang), self.lang)


def spoken(command: click.Command, lang: Lang) -> click.Command:
    """A command, and those below it, whose help is in the reader's language and on `output`."""
    command.add_help_option = False
    command.params.append(_help_option(lang))
    if lang == "zh":
        command.context_class = ChineseContext
    if isinstance(command, click.Group):
        for below in command.commands.values():
            spoken(below, lang)
    return command


_HELP = Text("Multi-head attention you can read, prove, run and see.")


def _lang_option(lang: Lang) -> click.Option:
    text = Text("Language of everything printed; default from HEADWISE_LANG or the locale.")
    return click.Option(
        ["--lang"], type=click.Choice(LANGS), help=text.to(lang), expose_value=False
    )


def _version_option(version: str, lang: Lang) -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        del param
        if value:
            write_stdout(f"headwise {version}")
            ctx.exit()

    text = Text("Print the version.")
    return click.Option(
        ["--version"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help=text.to(lang),
    )


def _help_option(lang: Lang) -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        del param
        if value and not ctx.resilient_parsing:
            write_stdout(ctx.get_help())
            ctx.exit()

    text = Text("Show this message and exit.")
    return click.Option(
        ["--help", "asked_for_help"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help=text.to(lang),
    )


def language(argv: Sequence[str]) -> tuple[Lang, list[str]]:
    """The language asked for, and the arguments without ``--lang``.

    ``--lang`` may stand anywhere; without it the environment decides.

    Example:
        >>> language(["explain", "--lang", "zh", "--heads", "2"])
        ('zh', ['explain', '--heads', '2'])
    """
    rest, requested = list(argv), ""
    for i, word in enumerate(rest):
        if word == "--":
            break
        if word.startswith("--lang="):
            requested = rest.pop(i).removeprefix("--lang=")
            break
        if word == "--lang" and i + 1 < len(rest):
            requested = rest.pop(i + 1)
            rest.pop(i)
            break
    return (_known(requested, "--lang") if requested else _environment()), rest


def _environment() -> Lang:
    requested = os.environ.get("HEADWISE_LANG", "")
    if requested:
        return _known(requested, "HEADWISE_LANG")
    name = locale.getlocale()[0] or os.environ.get("LANG", "")
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


def _known(word: str, source: str) -> Lang:
    for lang in LANGS:
        if word == lang:
            return lang
    raise click.BadParameter(
        f"{word!r} is not one of 'en', 'zh'; {word!r} 不是 'en' 或 'zh'", param_hint=source
    )

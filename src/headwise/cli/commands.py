"""Commands and errors of the command line in the reader's language, including click's own."""

import locale
import os
import re
import string
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module

import click

from headwise.cli.output import write_stdout
from headwise.lang import LANGS, Lang, Text, Translated

_MESSAGES = (  # the first match is used
    Text("Invalid value for {param_hint}: {message}"),
    Text("Missing command."),
    Text("Missing option {names}. {reason}"),
    Text("Missing option {names}."),
    Text("Missing argument {names}. {reason}"),
    Text("Missing argument {names}."),
    Text("No such option {name}. Did you mean {possibility}?"),
    Text("No such option {name}. (Did you mean one of: {possibilities}?)"),
    Text("No such option {name}."),
    Text("No such command {name}. Did you mean {possibility}?"),
    Text("No such command {name}. (Did you mean one of: {possibilities}?)"),
    Text("No such command {name}."),
    Text("Got unexpected extra argument ({args})"),
    Text("Got unexpected extra arguments ({args})"),
    Text("Option {name} requires an argument."),
    Text("Option {name} requires {nargs} arguments."),
    Text("Option {name} does not take a value."),
    Text("{value} is not in the range {range}."),
    Text("{value} is not one of {choices}."),
    Text("{value} is not a valid boolean. Recognized values: {states}"),
    Text("{value} is not a valid {number_type}."),
    Text("Choose from: {choices}"),
    Text("default: {default}"),
    Text("required"),
    Text("integer"),
    Text("integer range"),
    Text("float"),
    Text("float range"),
)

_NOTES = re.compile(r"(?P<help>.*?)(?P<space> *)\[(?P<notes>[^\[\]]*)\]", re.DOTALL)


def usage_error(error: click.ClickException) -> Text:
    """Return a usage error in both languages."""
    message = " ".join(error.format_message().split())
    return Translated(message, chinese(message))


def chinese(message: str) -> str:
    """Translate a message of click to Chinese; return it unchanged if click has reworded it.

    Example:
        >>> chinese("No such command 'sow'. Did you mean 'show'?")
        "没有命令 'sow'。是否要用 'show'？"
    """
    for text in _MESSAGES:
        if match := _pattern(text.source).fullmatch(message):
            values = {name: chinese(value) for name, value in match.groupdict().items()}
            return text.to("zh").format(**values)
    return message


def chinese_notes(text: str) -> str:
    """Translate click's notes at the end of an option's help to Chinese.

    Example:
        >>> chinese_notes("键数。  [default: 16; x>=1; required]")
        '键数。  [默认：16; x>=1; 必需]'
    """
    match = _NOTES.fullmatch(text)
    if match is None:
        return text
    notes = "; ".join(chinese(note) for note in match["notes"].split("; "))
    return f"{match['help']}{match['space']}[{notes}]"


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = string.Formatter().parse(template)
    pieces = (re.escape(text) + (f"(?P<{name}>.+)" if name else "") for text, name, _, _ in parts)
    return re.compile("".join(pieces), re.DOTALL)


COMMANDS = (
    *("explain", "check", "verify", "inspect", "ablate", "models", "demo", "show", "plan"),
    "doctor",
)
"""Every command, in the order of the help."""

_HEADINGS = {"Options": Text("Options"), "Commands": Text("Commands")}


class ChineseFormatter(click.HelpFormatter):
    """A formatter of click's help with its fixed words in Chinese."""

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
    """A context that prints its help in Chinese."""

    formatter_class = ChineseFormatter


class CommandGroup(click.Group):
    """A group that loads the file of a command only when the command is used or listed."""

    def __init__(self, lang: Lang, version: str) -> None:
        text = Text("Output language; default: from HEADWISE_LANG or the locale.")
        choice = click.Choice(LANGS)
        language_option = click.Option(
            ["--lang"], type=choice, help=text.to(lang), expose_value=False
        )
        show_version = Text("Print the version.").to(lang)
        version_option = _printing_option(
            "--version", show_version, lambda _: f"headwise {version}"
        )
        super().__init__(
            "headwise",
            help=Text("Multi-head attention you can read, prove, run and see.").to(lang),
            params=[language_option, version_option],
            no_args_is_help=True,
        )
        self.lang = lang
        spoken(self, lang)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return spoken(import_module(f"headwise.cli.{cmd_name}").command(self.lang), self.lang)


def spoken(command: click.Command, lang: Lang) -> click.Command:
    """Give a command and its subcommands a ``--help`` option in the reader's language."""
    command.add_help_option = False
    show_help = Text("Show this message and exit.").to(lang)
    command.params.append(_printing_option("--help", show_help, click.Context.get_help))
    if lang == "zh":
        command.context_class = ChineseContext
    if isinstance(command, click.Group):
        for below in command.commands.values():
            spoken(below, lang)
    return command


def _printing_option(
    flag: str, help_text: str, message: Callable[[click.Context], str]
) -> click.Option:
    """Return an option that prints a message and exits."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        del param
        if value and not ctx.resilient_parsing:
            write_stdout(message(ctx))
            ctx.exit()

    return click.Option(
        [flag, "shown"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help=help_text,
    )


def language(argv: Sequence[str]) -> tuple[Lang, list[str]]:
    """Return the requested language, and the arguments without ``--lang``.

    ``--lang`` may be anywhere; without it, the environment determines the language.

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

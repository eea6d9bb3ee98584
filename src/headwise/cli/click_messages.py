"""The Chinese of click's own messages: usage errors, and the notes of an option's help.

click formats its messages before it raises them. Its templates are listed here without ``!r``, and
a message is matched against them to find the values it was formatted with.
"""

import re
import string
from functools import cache

import click

from headwise.lang import Text, Translated

_MESSAGES = (  # the first that matches is taken
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
    """A usage error in both languages."""
    message = " ".join(error.format_message().split())
    return Translated(message, chinese(message))


def chinese(message: str) -> str:
    """A message of click in Chinese; as it is where click has changed its words.

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
    """The help of an option with click's notes at its end in Chinese.

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
    return re.compile(
        "".join(
            re.escape(literal) + (f"(?P<{name}>.+)" if name else "")
            for literal, name, _, _ in parts
        ),
        re.DOTALL,
    )

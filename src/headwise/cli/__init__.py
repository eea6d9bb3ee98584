"""The command line: one file per command. This file has the entry point and the exit status.

Exit status: 0 success; 1 the check found an error; 2 the input cannot be used.
"""

import sys
from collections.abc import Sequence

import click
from click.exceptions import NoArgsIsHelpError

from headwise.cli.output import write_stderr
from headwise.errors import HeadwiseError
from headwise.lang import Lang, Text

FOUND_WRONG = 1
BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; an error is one line on stderr."""
    from headwise import __version__
    from headwise.cli.commands import CommandGroup, language, usage_error

    lang: Lang = "en"
    try:
        lang, words = language(sys.argv[1:] if argv is None else argv)
        status = CommandGroup(lang, __version__).main(words, "headwise", standalone_mode=False)
    except NoArgsIsHelpError as error:
        write_stderr(error.format_message())
        return BAD_INPUT
    except click.ClickException as error:
        return _fail(usage_error(error), lang)
    except click.Abort:
        return _fail(Text("stopped"), lang)
    except HeadwiseError as error:
        return _fail(error.text, lang)
    return status if isinstance(status, int) else 0


def _fail(text: Text, lang: Lang) -> int:
    write_stderr(Text("error: ").to(lang) + " ".join(text.to(lang).split()))
    return BAD_INPUT

"""``headwise inspect MODEL SENTENCE``: one text through a model."""

from pathlib import Path

from headwise.cli.inspect.asked import Asked
from headwise.cli.inspect.figures import draw
from headwise.cli.output import write_stderr
from headwise.cli.reporting import Destination
from headwise.document.plain import clean
from headwise.errors import BadFile
from headwise.heads.export import as_json
from headwise.heads.inputs import check_text
from headwise.heads.inspection import EVERY, inspect
from headwise.heads.models.load import load
from headwise.heads.names import Head, parse_heads
from headwise.heads.report import report
from headwise.heads.table import file_of, table
from headwise.lang import Text
from headwise.plots.album import of_inspection

MOST_BYTES = 1 << 20
"""The largest text file that is read."""


def inspected(asked: Asked, destination: Destination) -> int:
    """Measure one text and write what was seen."""
    words, wanted = _words(asked), _heads(asked.heads)
    check_text(words)

    def progress(done: Text) -> None:
        write_stderr(f"{done.to(destination.lang)} …")

    loaded = load(asked.model or "", progress)
    progress(Text("running it and measuring every head"))
    seen = inspect(loaded, words, heads=wanted, truncate=asked.truncate)
    destination.write(
        lambda: report(seen),
        lambda: as_json(seen),
        lambda kind: file_of(table(seen.statistics), kind),
    )
    draw(lambda sheet: of_inspection(sheet, seen), asked.figures, destination.lang)
    return 0


def _words(asked: Asked) -> str:
    """The text to read: the sentence, or what the file holds."""
    return (asked.sentence or "") if asked.text is None else text_of(asked.text)


def text_of(file: str) -> str:
    """What a text file holds.

    Raises:
        BadFile: if it cannot be read, is no UTF-8, or is too large.
    """
    try:
        if not Path(file).is_file() and Path(file).exists():
            raise BadFile(
                "text: expected a file, got {file}, a directory, device or pipe; give a "
                "text file in UTF-8",
                file=clean(file),
            )
        with Path(file).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise BadFile(
            "text: cannot read {file}: {reason}; give a text file in UTF-8",
            file=clean(file),
            reason=reason,
        ) from error
    if len(content) > MOST_BYTES:
        raise BadFile(
            "text: {file} has more than {most_bytes} bytes; give a part of it, or read "
            "it line by line with --corpus",
            file=clean(file),
            most_bytes=MOST_BYTES,
        )
    return text


def _heads(words: str | None) -> tuple[Head, ...] | str | None:
    if words is None or words.strip().lower() == EVERY:
        return words and EVERY
    return parse_heads(words)

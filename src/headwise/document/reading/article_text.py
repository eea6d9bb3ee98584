"""The text of an article, and the place of each of its lines in the file."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headwise.errors import BadFile
from headwise.lang import Text, same

MOST_CHARACTERS = 1_000_000  # the maximum length; a worked example has about 1000 characters


def check_length(count: int) -> None:
    """Raise `BadFile` if a text has more than `MOST_CHARACTERS` characters."""
    if count > MOST_CHARACTERS:
        raise BadFile(
            "expected at most {most:,} characters, got a longer text; extract the worked example",
            most=MOST_CHARACTERS,
        )


@dataclass(frozen=True)
class ArticleText:
    """The text of an article.

    ``places`` contains the place of each line in the file, such as "cell 3, line 2". It is empty
    if the line numbers of the text are those of the file.

    Example:
        >>> ArticleText("a").place(1).en, ArticleText("a", (Text("cell {n}", n=3),)).place(1).en
        ('1', 'cell 3')
    """

    text: str
    places: tuple[Text, ...] = ()

    @property
    def converted(self) -> bool:
        """Whether the line numbers of the text differ from those of the file."""
        return bool(self.places)

    def place(self, line: int) -> Text:
        """Return the place in the file of a line of the text, counted from 1."""
        return self.places[line - 1] if 0 < line <= len(self.places) else same(str(line))


@dataclass
class LineWriter:
    """A builder of a converted text, line by line, that calls `check_length`."""

    lines: list[str] = field(default_factory=list)
    places: list[Text] = field(default_factory=list)
    count: int = 0

    def add(self, line: str, place: Text) -> None:
        """Add one line; skip a blank line at the start or after another blank line."""
        line = line.rstrip()
        if line or (self.lines and self.lines[-1]):
            self.count += len(line) + 1
            check_length(self.count)
            self.lines.append(line)
            self.places.append(place)

    def block(self, lines: Iterable[tuple[str, Text]]) -> None:
        """Add lines with a blank line before and after them."""
        rows = list(lines)
        if rows:
            self.add("", rows[0][1])
        for line, place in rows:
            self.add(line, place)
        if rows:
            self.add("", rows[-1][1])

    def finished(self) -> ArticleText:
        """Return the text, which ends with one newline."""
        while self.lines and not self.lines[-1]:
            self.lines.pop()
            self.places.pop()
        return ArticleText("\n".join([*self.lines, ""]), tuple(self.places))

"""The text of an article, and where each of its lines stands in the file."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headwise.errors import BadFile
from headwise.lang import Text, same

MOST_CHARACTERS = 1_000_000  # the longest text; a worked example is a thousandth of it


def check_length(count: int) -> None:
    """Raise `BadFile` for a text of more than `MOST_CHARACTERS`."""
    if count > MOST_CHARACTERS:
        raise BadFile(
            "expected at most {most:,} characters of text, got more; cut out the worked example",
            most=MOST_CHARACTERS,
        )


@dataclass(frozen=True)
class ArticleText:
    """The text of an article.

    ``places`` says for each line of the text where a person finds it in the file, such as
    "cell 3, line 2"; it is empty where the lines of the text are those of the file.

    Example:
        >>> ArticleText("a").place(1).en, ArticleText("a", (Text("cell {n}", n=3),)).place(1).en
        ('1', 'cell 3')
    """

    text: str
    places: tuple[Text, ...] = ()

    @property
    def converted(self) -> bool:
        """Whether the lines of the text are not those of the file."""
        return bool(self.places)

    def place(self, line: int) -> Text:
        """Where a line of the text, from 1, stands in the file."""
        return self.places[line - 1] if 0 < line <= len(self.places) else same(str(line))


@dataclass
class LineWriter:
    """The lines of a converted text, added one by one; see `check_length`."""

    lines: list[str] = field(default_factory=list)
    places: list[Text] = field(default_factory=list)
    count: int = 0

    def add(self, line: str, place: Text) -> None:
        """Add one line; a blank one only after one that is not."""
        line = line.rstrip()
        if line or (self.lines and self.lines[-1]):
            self.count += len(line) + 1
            check_length(self.count)
            self.lines.append(line)
            self.places.append(place)

    def block(self, lines: Iterable[tuple[str, Text]]) -> None:
        """Add lines with a blank one before and after."""
        rows = list(lines)
        if rows:
            self.add("", rows[0][1])
        for line, place in rows:
            self.add(line, place)
        if rows:
            self.add("", rows[-1][1])

    def finished(self) -> ArticleText:
        """The text, which ends in one newline."""
        while self.lines and not self.lines[-1]:
            self.lines.pop()
            self.places.pop()
        return ArticleText("\n".join([*self.lines, ""]), tuple(self.places))

"""Split an HTML page into tags and texts, in linear time.

`html.parser` is not used: it searches to the end of the page for every unclosed tag or comment.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

MOST_NAME = 60  # the maximum length of the name of a tag or attribute

RAW_TEXT = ("script", "style", "textarea", "title", "iframe", "noembed", "xmp")
"""Elements whose content is text up to their end tag, even if it contains tags."""

_TAG = re.compile(
    r"""<(?P<end>/?)(?P<name>[A-Za-z][^\s/<>]{0,60}+)
    (?P<attributes>(?:[^<>="']++|=\s*+(?:"[^"]*+"|'[^']*+')?+|["'])*+)>""",
    re.VERBOSE,
)
_ATTRIBUTE = re.compile(
    r"""([^\s"'<>/=]{1,60}+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'<>]*+)))?+"""
)
_ENTITY = re.compile(
    r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31})(?![0-9A-Za-z]);?"
)


@dataclass(frozen=True)
class HtmlToken:
    """A start tag, an end tag or a text, and its line number in the page, counted from 1.

    ``value`` is the name of the tag in lower case without a namespace, or the text.
    """

    kind: Literal["start", "end", "text"]
    value: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)


def unescape(text: str) -> str:
    """Replace entities of at most 32 characters; `html.unescape` parses longer ones as numbers.

    Example:
        >>> unescape("a &lt; b &#" + "9" * 9 + ";")
        'a < b &#999999999;'
    """
    return _ENTITY.sub(lambda match: html.unescape(match.group()), text) if "&" in text else text


def tokens(page: str) -> Iterator[HtmlToken]:
    """Yield every tag and text of a page, without comments, declarations and CDATA marks.

    Example:
        >>> [(t.kind, t.value) for t in tokens("<p class=a>1 &lt; 2<!-- no --></P>")]
        [('start', 'p'), ('text', '1 < 2'), ('end', 'p')]
    """
    return _Scanner(page).run()


class _Scanner:
    """A scanner that reads a page once and does not repeat an unsuccessful search."""

    def __init__(self, page: str) -> None:
        self.page, self.position, self.line = page, 0, 1
        self.absent: set[str] = set()

    def run(self) -> Iterator[HtmlToken]:
        while self.position < len(self.page):
            yield from self._next()

    def _next(self) -> Iterator[HtmlToken]:
        page, start = self.page, self.position
        if page[start] != "<":
            end = page.find("<", start)
            yield from self._text(len(page) if end < 0 else end)
        elif page.startswith("<!--", start):
            self._skip("-->")
        elif page.startswith("<![CDATA[", start):
            yield from self._text(self._find("]]>", start), start + 9)
            self._move(min(self.position + 3, len(page)))
        elif page.startswith(("<!", "<?"), start):
            self._skip(">")
        else:
            yield from self._tag()

    def _tag(self) -> Iterator[HtmlToken]:
        match = _TAG.match(self.page, self.position)
        if match is None:
            end = self.page.find("<", self.position + 1)
            yield from self._text(len(self.page) if end < 0 else end)
            return
        name = match["name"].lower().rpartition(":")[2]
        if match["end"]:
            yield HtmlToken("end", name, self.line)
            self._move(match.end())
            return
        yield HtmlToken("start", name, self.line, _attributes(match["attributes"]))
        self._move(match.end())
        if name in RAW_TEXT:
            yield from self._text(self._find(f"</{name}", self.position))
        elif match["attributes"].endswith("/"):
            yield HtmlToken("end", name, self.line)

    def _text(self, end: int, start: int | None = None) -> Iterator[HtmlToken]:
        text = self.page[self.position if start is None else start : end]
        if text:
            yield HtmlToken("text", unescape(text), self.line)
        self._move(end)

    def _skip(self, mark: str) -> None:
        end = self._find(mark, self.position)
        self._move(min(end + len(mark), len(self.page)))

    def _find(self, mark: str, start: int) -> int:
        """Return the next position of a mark, ignoring case, or the end of the page."""
        if mark in self.absent:
            return len(self.page)
        match = re.compile(re.escape(mark), re.IGNORECASE).search(self.page, start)
        if match is None:
            self.absent.add(mark)
            return len(self.page)
        return match.start()

    def _move(self, position: int) -> None:
        self.line += self.page.count("\n", self.position, position)
        self.position = position


def _attributes(source: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(source):
        value = next((group for group in match.groups()[1:] if group is not None), "")
        result.setdefault(match[1].lower(), unescape(value))
    return result

"""Read Word documents: paragraphs, tables as Markdown tables, and formulas as LaTeX.

The archive and its XML are not trusted. One entry of limited size is read as a stream. A document
type raises an error, because it could declare entities.
"""

import io
import zipfile
from typing import IO
from xml.parsers import expat

from headwise.document.reading.article_text import ArticleText, LineWriter
from headwise.document.reading.math_elements import FormulaBuilder
from headwise.errors import BadFile
from headwise.lang import Text

MOST_BYTES = 32 * 2**20  # the maximum size of the XML in the archive
MOST_ENTRIES = 10_000
CHUNK = 2**20

_DOCUMENT = "word/document.xml"
_MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"
_MATH_STRICT = "http://purl.oclc.org/ooxml/officeDocument/math"
_SKIPPED = {"del", "moveFrom", "Fallback", "instrText", "fldData", "pict", "drawing", "object"}
_SKIPPED |= {"delText", "binData"}
"""Elements with deleted text, fallback versions, field codes, and pictures."""


def is_docx(raw: bytes) -> bool:
    """Return whether the bytes are a ZIP archive that contains a Word document."""
    return raw.startswith(b"PK\x03\x04") and _DOCUMENT.encode() in raw


def read(raw: bytes) -> ArticleText:
    """Return the text of a document; lines are placed by paragraph, or by table and row.

    Raises:
        BadFile: if the archive or the XML is damaged, too large, or declares a document type.
    """
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = _refuse
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.buffer_text = True
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            if len(archive.infolist()) > MOST_ENTRIES:
                raise _too_large()
            with archive.open(_DOCUMENT) as entry:
                _feed(parser, entry)
    except (BadFile, MemoryError):
        raise
    except (NotImplementedError, RuntimeError) as error:  # encrypted, or an unknown compression
        raise BadFile(
            "the Word document is encrypted; save the document without a password"
        ) from error
    except Exception as error:  # any error of the parsers on a hostile archive means a bad file
        raise BadFile("the Word document is damaged; save the document again as .docx") from error
    return reader.writer.finished()


def _feed(parser: expat.XMLParserType, entry: IO[bytes]) -> None:
    """Parse an entry of the archive in pieces, and check its actual size."""
    read = 0
    while piece := entry.read(CHUNK):
        read += len(piece)
        if read > MOST_BYTES:
            raise _too_large()
        parser.Parse(piece, False)
    parser.Parse(b"", True)


def _too_large() -> BadFile:
    return BadFile(
        "expected a Word document of at most {most:,} bytes when decompressed, got a larger one; "
        "extract the worked example",
        most=MOST_BYTES,
    )


def _refuse(*_declaration: object) -> None:
    raise BadFile(
        "the XML of the Word document declares a document type, which is not supported; save the "
        "document again as .docx"
    )


class _Reader:
    """A handler of the XML elements of the document, in order."""

    def __init__(self) -> None:
        self.writer = LineWriter()
        self.buffer: list[str] = []
        self.heading = self.paragraphs = self.tables = self.rows = 0
        self.skipped = 0  # the depth inside an element that is left out, or 0
        self.formula: FormulaBuilder | None = None
        self.nested = 0  # the depth inside nested tables
        self.cells: list[str] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Handle the start of an element."""
        space, _, tag = name.rpartition(" ")
        values = {key.rpartition(" ")[2]: value for key, value in attributes.items()}
        if self.skipped or tag in _SKIPPED:
            self.skipped += 1
        elif self.formula is not None and space in (_MATH, _MATH_STRICT):
            self.formula.start(tag, values)
        elif tag == "oMath":
            self.formula = FormulaBuilder()
        elif tag in ("tab", "br", "cr") and self.formula is None:
            self._break(tag)
        elif tag == "p" and not self.nested:
            self.paragraphs, self.buffer, self.heading = self.paragraphs + 1, [], 0
        elif tag == "pStyle" and values.get("val", "").lower().startswith("heading"):
            self.heading = int(values["val"][-1]) if values["val"][-1] in "123456" else 1
        elif tag in ("tbl", "tr", "tc"):
            self._start_of_table(tag)
        elif tag == "gridSpan" and self.nested == 1 and values.get("val", "") in "23456789":
            self.cells += [""] * (int(values["val"]) - 1)

    def _start_of_table(self, tag: str) -> None:
        if tag == "tbl":
            self.nested += 1
            if self.nested == 1:
                self.tables, self.rows = self.tables + 1, 0
                self.writer.add("", Text("table {table}, row {row}", table=self.tables, row=1))
        elif self.nested == 1 and tag == "tr":
            self.rows, self.cells = self.rows + 1, []
        elif self.nested == 1:
            self.buffer = []

    def _break(self, tag: str) -> None:
        if tag != "tab" and not self.nested:
            self._end_line()
        else:
            self.buffer.append(" ")

    def text(self, text: str) -> None:
        """Handle text in the innermost element."""
        if not self.skipped:
            if self.formula is not None:
                self.formula.text(text)
            else:
                self.buffer.append(text.replace("\n", " "))

    def end(self, name: str) -> None:
        """Handle the end of an element."""
        tag = name.rpartition(" ")[2]
        if self.skipped:
            self.skipped -= 1
        elif self.formula is not None:
            if tag == "oMath":
                self.buffer.append(f" ${self.formula.latex()}$ ")
                self.formula = None
            elif name.startswith((_MATH, _MATH_STRICT)):
                self.formula.end(tag)
        elif tag == "p":
            if self.nested:
                self.buffer.append(" ")
            else:
                self._end_line()
        elif tag in ("tbl", "tr", "tc"):
            self._end_of_table(tag)

    def _end_line(self) -> None:
        marks = "#" * self.heading + " " if self.heading else ""
        line = marks + " ".join("".join(self.buffer).split())
        self.buffer = []
        self.writer.add(line, Text("paragraph {number}", number=self.paragraphs))

    def _end_of_table(self, tag: str) -> None:
        if tag == "tbl":
            self.nested = max(self.nested - 1, 0)
            self.buffer = [" "] if self.nested else []
        elif self.nested == 1 and tag == "tc":
            self.cells.append(" ".join("".join(self.buffer).split()))
        elif self.nested == 1:
            place = Text("table {table}, row {row}", table=self.tables, row=self.rows)
            self.writer.add(f"| {' | '.join(self.cells)} |", place)

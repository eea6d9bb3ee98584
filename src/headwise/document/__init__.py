"""Documents: blocks that a command builds, and the formats into which they are rendered."""

from headwise.document.blocks import (
    Block,
    Code,
    Document,
    Formula,
    Heading,
    HeatMap,
    Matrix,
    Notice,
    Paragraph,
    SideBySide,
    Table,
    Working,
)

__all__ = ["Block", "Code", "Document", "Formula", "Heading", "HeatMap", "Matrix"]
__all__ += ["Notice", "Paragraph", "SideBySide", "Table", "Working"]

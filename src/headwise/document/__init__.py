"""Documents: blocks that a face builds, and the formats they are rendered to."""

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

"""Documents in notebooks: HTML that Jupyter shows for the value of a cell."""

from headwise.document import Document
from headwise.errors import MissingExtra


def in_notebook(document: Document) -> str | None:
    """The document as a section of HTML, without style or script of its own.

    None without the packages of the extra ``html``; the notebook then shows the text.
    """
    from headwise.document import html

    try:
        return html.fragment(document)
    except MissingExtra:
        return None

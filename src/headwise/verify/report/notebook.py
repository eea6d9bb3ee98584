"""Convert a document to the HTML that Jupyter shows for the value of a cell."""

from headwise.document import Document
from headwise.errors import MissingExtra
from headwise.lang import Lang


def in_notebook(document: Document, lang: Lang = "en") -> str | None:
    """Return a document as an HTML section in one language, without styles or scripts.

    Return None if the extra ``html`` is not installed; the notebook then shows plain text.
    """
    from headwise.document import html

    try:
        return html.fragment(document, lang)
    except MissingExtra:
        return None

"""Documents in notebooks: HTML that Jupyter shows for the value of a cell."""

from headwise.document import Document
from headwise.errors import MissingExtra
from headwise.lang import Lang


def in_notebook(document: Document, lang: Lang = "en") -> str | None:
    """The document as a section of HTML in one language, without style or script of its own.

    None without the packages of the extra ``html``; the notebook then shows the text.
    """
    from headwise.document import html

    try:
        return html.fragment(document, lang)
    except MissingExtra:
        return None

"""Read the visible text of articles in many file formats.

article_file    the entry point: converts a path or bytes of limited size to an `ArticleText`
article_text    the text, and the place of each line in the file
text_encoding   decodes UTF-8, UTF-16, GB18030, Big5, Shift JIS and Latin encodings
markup          Markdown, LaTeX and reStructuredText
html_text       HTML, with tables as Markdown tables
math_elements   the formulas of HTML (MathML) and of Word (OMML) as LaTeX
notebook        Jupyter notebooks: the cells and the text of their outputs
docx            Word documents
"""

from headwise.document.reading.article_file import from_bytes, read_article, source_name
from headwise.document.reading.article_text import ArticleText

__all__ = ["ArticleText", "from_bytes", "read_article", "source_name"]

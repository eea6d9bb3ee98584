"""Reading articles: the text of a file as a person sees it, whatever the file's format.

article_file    the entry: from a path or bytes to an `ArticleText`, bounded in size
article_text    the text, and where each of its lines stands in the file
text_encoding   bytes to text: UTF-8, UTF-16, GB18030, Big5, Shift JIS, Latin
markup          Markdown, LaTeX and reStructuredText
html_text       HTML, with tables as Markdown tables
math_elements   the formulas of HTML (MathML) and of Word (OMML) as LaTeX
notebook        Jupyter notebooks: cells and the text of their outputs
docx            Word documents
"""

from headwise.document.reading.article_file import from_bytes, read_article, source_name
from headwise.document.reading.article_text import ArticleText

__all__ = ["ArticleText", "from_bytes", "read_article", "source_name"]

"""Articles in the formats in which strangers keep them."""

import codecs
import contextlib
import gc
import io
import json
import time
import zipfile

import pytest

from headwise.document.reading import from_bytes, html_text, read_article
from headwise.errors import BadFile

SENTENCE = "Scores, Gewichte: größer, punktów wąsko, 查询与键的点积 −0.5\r\n[[1, 2]]\r"
READ = SENTENCE.replace("\r\n", "\n").replace("\r", "\n")


def text(raw, suffix=".md"):
    return from_bytes(raw if isinstance(raw, bytes) else raw.encode(), suffix).text


def places(raw, suffix):
    article = from_bytes(raw if isinstance(raw, bytes) else raw.encode(), suffix)
    lines = article.text.rstrip("\n").split("\n")
    return {line: article.place(i).en for i, line in enumerate(lines, 1) if line.strip()}


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_every_unicode_encoding_with_and_without_a_mark(encoding):
    assert text(SENTENCE.encode(encoding)) == READ


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_utf_16_ascii_with_a_mark(mark):
    encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    assert text(mark + "X = [[1]]".encode(encoding)) == "X = [[1]]"


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("gb18030", "自注意力手算：查询、键和值，缩放分数为 0.707。注意力权重如下 [0.5, 0.5]"),
        ("big5", "自注意力手算：查詢、鍵和值，縮放分數為 0.707。注意力權重如下 [0.5, 0.5]"),
        ("shift_jis", "注意の計算：クエリとキーの内積をスケールする。重みは [0.5, 0.5] です。"),
        ("euc_jp", "注意の計算：クエリとキーの内積をスケールする。重みは [0.5, 0.5] です。"),
        ("cp1252", "Schlüssel, größere Gewichte; la atención, según las puntuaciones: 0,5 × 2"),
        ("cp1250", "Wagi uwagi: mnożenie zapytań i kluczy, każdy wiersz sumuje się do 1. Źródło."),
    ],
)
def test_a_national_encoding_is_recognised(encoding, said):
    assert text(said.encode(encoding)) == said


PAGE = """<!DOCTYPE html>
<html><head><title>t 9.9</title><style>p { margin: 1.5em }</style></head><body>
<script>var x = [[0.1, 0.2]];</script><!-- old: 0.3 -->
<nav>1.1</nav><p hidden>2.2</p><p style="display: none">3.3</p>
<h2>Scores</h2>
<p>QK<sup>T</sup>/&radic;d<sub>k</sub><sup><a href="#f1">7</a></sup> &minus;0.5 &lt; 1</p>
<table><tr><th>q<th>a<th>b
<tr><td>a<td>1.0<td>2.0
<tr><td>b<td colspan=2>3.0</table>
<pre>[[1 2]
 [3 4]]</pre>
<img alt="0.4" src="data:image/png;base64,iVBORw0KGgo9.9"></body></html>"""


def test_a_page_is_what_a_reader_sees():
    assert text(PAGE, ".html") == (
        "## Scores\n\nQK^{T}/√d_{k} −0.5 < 1\n\n| q | a | b |\n| --- | --- | --- |\n"
        "| a | 1.0 | 2.0 |\n| b | 3.0 |  |\n\n```\n[[1 2]\n [3 4]]\n```\n"
    )


def test_the_lines_of_a_page_are_those_of_its_source():
    found = places(PAGE, ".html")
    assert found["| a | 1.0 | 2.0 |"] == "8"
    assert found[" [3 4]]"] == "11"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            "X = <table><tr><th><th>p<tr><th>a<td>1<td>2<tr><th>b<td>3<td>4</table>",
            "[[1, 2],\n[3, 4]]",
        ),
        ("<table><tr><td rowspan=2>h<td>1<tr><td>2</table>", "| h | 1 |\n|  | 2 |"),
        (
            "<table><tr><td><h2>A</h2><table><tr><td>1<td>2</table><td>end</table>",
            "| 1 | 2 |\n\nend",
        ),
        ("<table><caption>A</caption><tbody><tr><td>1</td></tr></tbody></table>", "A\n\n| 1 |"),
    ],
)
def test_tables(table, expected):
    assert expected in text(f"<html>{table}</html>", ".html")


_TEX = '<annotation encoding="application/x-tex">'


def _rows(table, row, cell, values):
    lines = ["".join(f"<{cell}><mn>{v}</mn></{cell}>" for v in line) for line in values]
    return f"<{table}>{''.join(f'<{row}>{line}</{row}>' for line in lines)}</{table}>"


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("<mfrac><mn>1</mn><msqrt><mn>2</mn></msqrt></mfrac>", r"\frac{1}{\sqrt{2}}"),
        ("<msub><mi>d</mi><mi>k</mi></msub><mo>=</mo><mn>2</mn>", "d_{k} = 2"),
        ("<mover><mi>S</mi><mo>~</mo></mover>", r"\tilde{S}"),
        ("<mi>a</mi><mo>=</mo><mo>-</mo><mn>0.5</mn><mo>-</mo><mn>1</mn>", "a = -0.5 - 1"),
        ("<mn>0</mn><mo>.</mo><mn>5</mn>", "0.5"),
        (
            "<mi>h</mi><mo>[</mo><mn>2</mn><mo>]</mo><mo>=</mo><mo>(</mo><mo>-</mo><mn>1</mn>",
            "h[2] = (-1",
        ),
        (
            _rows("mtable", "mtr", "mtd", [["1", "2"], ["3", "4"]]),
            r"\begin{matrix} 1 & 2 \\ 3 & 4 \end{matrix}",
        ),
        (
            f"<semantics><mrow><mi>x</mi></mrow>{_TEX}\\frac{{1}}{{2}}</annotation></semantics>",
            r"\frac{1}{2}",
        ),
    ],
)
def test_mathml_is_latex(formula, expected):
    assert text(f"<p><math>{formula}</math></p>", ".html") == f"${expected}$\n"


def test_katex_and_mathjax_are_read_once():
    katex = (
        '<span class="katex"><span class="katex-mathml"><math><semantics><mn>5</mn>'
        '<annotation encoding="application/x-tex">x=5</annotation></semantics></math></span>'
        '<span class="katex-html" aria-hidden="true">x=5</span></span>'
    )
    assert text(f"<p>{katex}</p>", ".html") == "$x=5$\n"
    assert text('<p>a<script type="math/tex">y=6</script></p>', ".html") == "a $y=6$\n"


def notebook(*cells, **more):
    return json.dumps({"nbformat": 4, "cells": list(cells), **more})


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ0123456789" * 20


def test_a_notebook_is_its_cells_and_what_they_print():
    shown = {"data": {"image/png": PNG, "text/plain": "<Figure size 640x480 with 1 Axes>"}}
    page = "<style>.a { width: 0.1 }</style><table><tr><th>w<th>a<tr><th>b<td>0.5</table>"
    frame = {"data": {"text/html": page, "text/plain": "     a\nb  0.5"}}
    latex = {
        "data": {"text/latex": "$A = 0.25$", "text/plain": "<IPython.core.display.Math object>"}
    }
    printed = {"output_type": "stream", "name": "stdout", "text": ["\x1b[31mS =\n", "[[1 2]]\n"]}
    warned = {"output_type": "stream", "name": "stderr", "text": "v 1.2.3 is old"}
    failed = {"output_type": "error", "traceback": ["line 12"]}
    cells = [
        {"cell_type": "markdown", "source": ["# T\n", f"![p](data:image/png;base64,{PNG})"]},
        code("print(S)", printed, warned, failed, shown),
        code("", frame, latex),
    ]
    assert text(notebook(*cells), ".ipynb") == (
        "# T\n![p]()\n\n```\nprint(S)\n```\n\n```\nS =\n[[1 2]]\n```\n\n"
        "| w | a |\n| --- | --- |\n| b | 0.5 |\n\n$A = 0.25$\n"
    )
    found = places(notebook(*cells), ".ipynb")
    assert found["[[1 2]]"] == "cell 2, output line 2"
    assert found["![p]()"] == "cell 1, line 2"


def test_an_old_notebook_and_one_without_its_suffix():
    old = {
        "cell_type": "code",
        "input": ["x"],
        "outputs": [{"output_type": "pyout", "text": ["7"]}],
    }
    assert "x" in text(json.dumps({"nbformat": 3, "worksheets": [{"cells": [old]}]}), ".ipynb")
    assert text(notebook(code("x")), "") == "```\nx\n```\n"


def docx(body, *, before="", name="word/document.xml", compress=zipfile.ZIP_DEFLATED):
    namespaces = (
        'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
        'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
        'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    )
    body = f"<w:body>{body}</w:body>"
    xml = f'<?xml version="1.0"?>{before}<w:document {namespaces}>{body}</w:document>'
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compress) as archive:
        archive.writestr(name, xml)
    return content.getvalue()


def paragraph(words, style=""):
    kind = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{kind}<w:r><w:t>{words}</w:t></w:r></w:p>"


def test_a_word_document():
    row = "".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in ("a", "0.5", "-1"))
    letter, two = ("<m:r><m:t>S</m:t></m:r>", "<m:r><m:t>2</m:t></m:r>")
    root = f"<m:rad><m:radPr><m:degHide m:val='1'/></m:radPr><m:deg/><m:e>{two}</m:e></m:rad>"
    fraction = f"<m:f><m:num>{letter}</m:num><m:den>{root}</m:den></m:f>"
    body = (
        paragraph("Part", "Heading2")
        + "<w:p><w:del><w:r><w:delText>0.9</w:delText></w:r></w:del><w:r><w:t>kept </w:t></w:r>"
        + f"<m:oMath>{fraction}</m:oMath></w:p>"
        + "<w:p><mc:AlternateContent><mc:Choice><w:r><w:t>once</w:t></w:r></mc:Choice>"
        + "<mc:Fallback><w:r><w:t>twice</w:t></w:r></mc:Fallback></mc:AlternateContent></w:p>"
        + f"<w:tbl><w:tr>{row}</w:tr><w:tr>{row}</w:tr></w:tbl>"
    )
    raw = docx(body)
    assert text(raw, ".docx") == (
        "## Part\nkept $\\frac{S}{\\sqrt{2}}$\nonce\n\n| a | 0.5 | -1 |\n| a | 0.5 | -1 |\n"
    )
    assert places(raw, ".docx")["once"] == "paragraph 3"
    assert text(raw, "") == text(raw, ".docx")


RST = """Title
=====

.. note:: shown
.. image:: a.png
   :width: 12.5

Weights :math:`A = 0.5` and ``x``::

    [[1, 2]]

.. list-table:: Queries
   :header-rows: 0

   * - 1
     - 2

+---+---+
| q | k |
+===+===+
| 3 | 4 |
+---+---+
"""


def test_restructured_text():
    assert text(RST, ".rst") == (
        "# Title\n\nshown\n\nWeights $A = 0.5$ and `x`:\n```\n    [[1, 2]]\n```\n\n"
        "Queries\n| 1 | 2 |\n\n"
        "| q | k |\n| --- | --- |\n| 3 | 4 |\n"
    )
    assert places(RST, ".rst")["| 1 | 2 |"] == "15"


def test_latex_keeps_its_lines():
    begin, end = "\\begin{document}", "\\end{document}"
    start = f"\\documentclass{{a}}\n\\newlength{{0.5}}\n{begin}"
    layout = (
        r"\vspace{2.5em}\includegraphics[width=0.8\textwidth]{a1}\arraycolsep=2pt\label{eq:1.2}"
    )
    source = f"{start}\n% 0.3\n60\\% {layout}% 0.4\n{end}\n0.7"
    assert text(source, ".tex").split("\n") == [*("", "", begin, "", "60\\% ", end)]


def test_markdown_keeps_its_lines():
    front, style = "---\ndate: 2024-01-02\n---", "a <style>\np { 1.5 }\n</style> b"
    source = f"{front}\n{style}\n<!-- 3\n4 --> c\n[i]: <data:image/png;base64,AAAA9999>"
    assert text(source).split("\n") == ["", "", "", "a ", "", " b", "", " c", "[i]: <>"]


def test_a_rule_at_the_top_is_no_front_matter():
    source = "---\n\n# Title\n\nX = [[1]]\n\n---\nend"
    assert text(source) == source


def test_an_output_that_is_a_program_is_left_out(monkeypatch):
    monkeypatch.setattr(html_text, "MOST_TOKENS", 100)
    page = "<table>" + "<b>" * 101
    shown = {"data": {"text/html": page, "text/plain": "array([7])"}}
    assert text(notebook(code("x", shown)), ".ipynb").count("array([7])") == 1


@pytest.mark.parametrize(
    ("raw", "suffix", "message"),
    [
        (b"%PDF-1.7 0.5", ".pdf", r"got PDF; save the article in one"),
        (b"PK\x03\x04 xl/workbook.xml", ".xlsx", r"got ZIP"),
        (b"\0\1\2\3", ".md", r"expected text in UTF-8, UTF-16"),
        (b"\x89PNG\r\n", "", r"got PNG"),
        (b"{", ".ipynb", r"expected a notebook in JSON, .* in line 1"),
        (b"{}", ".ipynb", r"the notebook has no cells"),
        (b"[" * 200_000, ".ipynb", r"cannot read the notebook: a number"),
        (b'{"nbformat": ' + b"9" * 10_000 + b"}", ".ipynb", r"cannot read the notebook: a number"),
        (b"PK\x03\x04 word/document.xml", ".docx", r"Word document is damaged"),
        (docx("<w:p>"), ".docx", r"Word document is damaged"),
        (docx("", before='<!DOCTYPE a [<!ENTITY b "c">]>'), ".docx", r"declares a document type"),
        (docx(paragraph("x" * 1_000_001)), ".docx", r"at most 1,000,000 characters"),
        (docx(" " * (33 * 2**20)), ".docx", r"at most 33,554,432 bytes when decompressed"),
        (b" " * 1_000_001, ".md", r"at most 1,000,000 characters, got a longer text"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(raw, suffix, message):
    with pytest.raises(BadFile, match=message) as caught:
        from_bytes(raw, suffix)
    assert "\n" not in str(caught.value)
    assert caught.value.text.zh != caught.value.text.en


def test_a_file_is_named_in_the_error(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(BadFile, match=r"a\.ipynb: "):
        read_article(path)


HOSTILE = {
    "open tags": ("<a ", ".html"),
    "open quotes": ('<a b="', ".html"),
    "open comments": ("<!--", ".html"),
    "declarations": ("<!", ".html"),
    "equals": ("<a =", ".html"),
    "scripts": ("<script>", ".html"),
    "nested": ("<div><table><tr><td>", ".html"),
    "formulas": ("<math><mrow>", ".html"),
    "fractions": ("<mfrac><mi>x</mi>", ".html"),
    "entities": ("&#9", ".html"),
    "ampersands": ("&a", ".html"),
    "spans": ("<table><tr><td rowspan=9999 colspan=9999>", ".html"),
    "indices": ("<sub>", ".html"),
    "styles": ("<style", ".md"),
    "base64": ("A" * 199 + " ", ".md"),
    "slashes": ("data:a/", ".md"),
    "backslashes": ("\\", ".tex"),
    "conditions": ("\\iffalse", ".tex"),
    "verbatim": ("\\begin{verbatim}%\n", ".tex"),
    "roles": (":math:`", ".rst"),
    "rules": ("== ==\n", ".rst"),
    "directives": (".. math::\n", ".rst"),
    "colons": ("a::\n", ".rst"),
    "front matter": ("---\n", ".md"),
    "bytes": ("\xff", ".txt"),
}


def seconds(unit, suffix, length):
    raw = ("<html>" if suffix == ".html" else "") + unit * (length // len(unit))
    raw = raw.encode("latin-1")
    gc.disable()  # which runs more often the more is kept
    start = time.process_time()
    with contextlib.suppress(BadFile):
        from_bytes(raw, suffix)
    gc.enable()
    return time.process_time() - start


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_in_a_moment(name):
    assert seconds(*HOSTILE[name], 200_000) < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_the_time_grows_no_faster_than_the_length(name):
    short = min(seconds(*HOSTILE[name], 100_000) for _ in range(3))
    long = min(seconds(*HOSTILE[name], 1_000_000) for _ in range(3))
    assert long <= 15 * short + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_ten_megabytes_end_in_seconds(name):
    assert seconds(*HOSTILE[name], 10_000_000) < 20


@pytest.mark.slow
def test_ten_megabytes_of_a_notebook_and_of_a_document():
    big = notebook(code("x", {"data": {"image/png": "A" * 10_000_000}, "text": "1"}))
    start = time.process_time()
    assert text(big, ".ipynb") == "```\nx\n```\n\n```\n1\n```\n"
    with pytest.raises(BadFile):
        text(docx("<w:tbl>" * 400_000 + "</w:tbl>" * 400_000 + paragraph("y" * 1_000_001)), ".docx")
    assert time.process_time() - start < 20

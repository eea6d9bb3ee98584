import math
import re
import shutil
import subprocess

import pytest

from headwise.document import Document, Formula, HeatMap, Matrix, Paragraph, Working
from headwise.document.latex import escape, render
from headwise.lang import same
from tests.document.attack import EMPTY, EVIL, everywhere


def commands(source):
    return set(re.findall(r"\\([A-Za-z]+)", source))


@pytest.mark.parametrize("text", EVIL)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_text_adds_no_command_that_acts(text, lang):
    added = commands(render(everywhere(text), lang)) - commands(render(everywhere("calm"), lang))
    drawn = {name for name in added if name.startswith("text") or name == "ensuremath"}
    assert added - drawn <= {"usepackage", "cdot", "lt", "gt"}
    assert render(everywhere(text), lang).count("\\end{document}") == 1


def test_braces_stay_balanced_whatever_the_text():
    for text in EVIL:
        bare = re.sub(r"\\[\\{}$&#_%]", "", render(everywhere(text)))
        assert bare.count("{") == bare.count("}")


def test_special_characters_are_written_out():
    assert escape("a_b & 5% {x} ≈") == r"a\_b \& 5\% \{x\} \ensuremath{\approx}"


def test_ctex_is_for_chinese_and_an_english_page_with_chinese_tokens_can_show_them():
    plain = Document(same("t"), (Paragraph(same("word")),))
    mixed = Document(same("t"), (Paragraph(same("我")),))
    assert "{ctexart}" in render(plain, "zh")
    assert "ctex" not in render(mixed, "en")
    assert "xeCJK" in render(mixed, "en")
    assert "xeCJK" not in render(plain, "en")


def test_a_wide_matrix_is_cut_and_every_number_is_there():
    matrix = Matrix(Formula("W", "W"), [[j + 0.5 for j in range(37)]])
    source = render(Document(same("t"), (matrix,), 1))
    assert source.count("\\begin{bmatrix}") > 1
    assert re.findall(r"\d+\.5", source.split("\\maketitle")[1]) == [f"{j}.5" for j in range(37)]


def test_a_long_line_of_a_working_can_break_at_commas():
    line = Formula("a", "[1, 2, 3]_{0,1}")
    source = render(Document(same("t"), (Working([line]),)))
    assert r"[1,\allowbreak 2,\allowbreak 3]_{0,1}" in source


def test_a_heat_map_is_a_table_of_percentages_or_a_note():
    small = HeatMap(same("m"), [[0.376, math.nan]], ["q"], ["a", "b"])
    assert "q & 38 & $\\cdot$" in render(Document(same("t"), (small,)))
    names = [str(i) for i in range(13)]
    large = HeatMap(same("m"), [[0.0] * 13] * 13, names, names)
    assert "13" in render(Document(same("t"), (large,)))
    assert "tabular" not in render(Document(same("t"), (large,)))


def test_empty_blocks_are_fine():
    assert "\\end{document}" in render(EMPTY)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xelatex") is None, reason="xelatex is not installed")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_compiles_whatever_the_text(tmp_path, lang):
    blocks = [block for text in EVIL for block in everywhere(text).blocks]
    (tmp_path / "a.tex").write_text(render(Document(same("t"), blocks), lang), encoding="utf-8")
    words = ["xelatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "a.pdf").stat().st_size > 0

import unicodedata

import pytest
from rich.cells import cell_len

from headwise.document import Document, Formula, HeatMap, Matrix, Notice, Paragraph
from headwise.document.terminal import render
from headwise.lang import Translated, same
from tests.document.attack import EMPTY, EVIL, everywhere


@pytest.mark.parametrize("text", EVIL)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nothing_in_a_text_reaches_the_terminal_as_a_command(text, lang):
    shown = render(everywhere(text), lang)
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs")} <= {"\n"}


def test_color_is_ours_alone():
    shown = render(everywhere("\x1b[31m"), "en", color=True)
    codes = {part.split("m")[0] for part in shown.split("\x1b[")[1:]}
    assert codes == {"0", "1", "32", "31"}
    assert shown.count("\x1b[31m") == 1  # the notice that is not good


def test_columns_line_up_by_the_width_characters_have():
    matrix = Matrix(
        Formula("A", "A"), [[0.5, -10.25], [float("-inf"), 3.0]], ["我爱你", "e"], ["你", "token"]
    )
    lines = render(Document(same("t"), (matrix,), 2)).splitlines()[4:]
    assert lines == [
        "               你   token",
        "  我爱你 [   0.50  -10.25 ]",
        "  e      [   -inf    3.00 ]",
    ]
    assert cell_len(lines[1]) == cell_len(lines[2]) == cell_len(lines[0]) + 2


def test_a_wide_matrix_is_cut_into_parts_that_fit():
    matrix = Matrix(Formula("W", "W"), [[float(j) for j in range(53)]])
    text = render(Document(same("t"), (matrix,), 1), "zh", width=61)
    assert max(map(cell_len, text.splitlines())) <= 61
    numbers = [word for word in text.split() if word.replace(".", "").isdigit() and "." in word]
    assert numbers == [f"{j}.0" for j in range(53)]


def test_each_language_is_spoken():
    document = Document(Translated("title", "标题"), (Paragraph(Translated("one", "一")),))
    assert "one" in render(document, "en")
    assert "一" not in render(document, "en")
    assert "标题" in render(document, "zh")
    assert "one" not in render(document, "zh")


def test_a_verdict_has_a_sign_and_not_colour_alone():
    text = render(Document(same("t"), (Notice(True, same("a")), Notice(False, same("b")))))
    assert "✓ a" in text
    assert "✗ b" in text


def test_a_heat_map_is_shaded_and_a_large_one_pooled():
    small = HeatMap(same("m"), [[1.0, float("nan")], [0.0, 0.5]], ["a", "b"], ["a", "b"])
    assert "│██··│" in render(Document(same("t"), (small,)))
    size = 131
    rows = [[float(i == j) for j in range(size)] for i in range(size)]
    names = [str(i) for i in range(size)]
    text = render(Document(same("t"), (HeatMap(same("m"), rows, names, names),)))
    assert "3 × 3" in text
    assert max(map(cell_len, text.splitlines())) <= 100 + 10
    assert text.count("██") >= 131 // 3


def test_empty_blocks_are_fine():
    assert "E = []" in render(EMPTY)

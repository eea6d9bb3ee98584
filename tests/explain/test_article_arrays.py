"""X from an article, in whatever form it is printed."""

import json

import pytest

from headwise.errors import BadFile
from headwise.explain.array_files import read_matrix
from headwise.explain.article_arrays import find_array

ROWS = [[1.0, 0.5], [-2.0, 3.0]]

FORMS = {
    "lists": "Take X = [[1, 0.5], [-2, 3]] and d = 2.",
    "several lines": "X = np.array([\n    [1.0, 0.5],\n    [-2.0, 3.0],\n])",
    "numpy": "X =\n[[ 1.   0.5]\n [-2.   3. ]]",
    "torch": "X = tensor([[ 1.0000,  0.5000],\n        [-2.0000,  3.0000]])",
    "latex": "$$\nX = \\begin{bmatrix} 1 & 1/2 \\\\ −2 & 3 \\end{bmatrix}\n$$",
    "array": r"\[\mathbf{X} = \left[\begin{array}{cc} 1 & .5 \\ \hline -2 & 3 \end{array}\right]\]",
    "table": "The input X:\n\n| token | p | q |\n| --- | ---: | --- |\n| a | 1 | 50% |\n"
    "| **b** | $-2$ | 3 |\n",
    "bare table": "X\n\n| 1 | 0.5 |\n| -2 | 3 |\n",
    "with sizes": "X (2×2) = [[1, 0.5], [-2, 3]]",
    "chinese": "输入：\n[[1, 0.5], [-2, 3]]",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("around", ["%s", "S = [[9, 9], [9, 9]]\n\n%s\n\nA = [[7]]"])
def test_every_form(form, around):
    assert find_array(around % FORMS[form], None).rows == ROWS


def test_tokens_come_from_the_table():
    assert find_array(FORMS["table"], None).tokens == ("a", "b")


def test_an_array_by_its_name(tmp_path):
    cell = {"cell_type": "code", "source": "W_Q = [[5, 6]]\nX = [[1, 2]]", "outputs": []}
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": [cell]}), encoding="utf-16")
    assert read_matrix(str(path)).values.tolist() == [[1, 2]]
    assert read_matrix(f"{path}:W_Q").values.tolist() == [[5, 6]]
    with pytest.raises(BadFile, match=r"a\.ipynb: .*the array V, found 2 arrays: W_Q, X; add the"):
        read_matrix(f"{path}:V")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing 1 2 3", r"the array X, found 0 arrays; add"),
        ("A = [[1]] B = [[2]]", r"the array X, found 2 arrays: A, B"),
        ("X = [[1, …], [2, 3]]", r"found 0 arrays"),
        ("X = [[1, 2], [3]]", r"found 0 arrays"),
    ],
)
def test_what_is_not_there_is_asked_for(text, message):
    with pytest.raises(BadFile, match=message):
        find_array(text, None)


@pytest.mark.parametrize(
    "unit", ["[[", "[[1,", "\\begin{matrix}", "| 1 |\n", "X = ", "[[1][", "| --"]
)
def test_hostile_texts_take_no_time(unit):
    with pytest.raises(BadFile):
        find_array(unit * (100_000 // len(unit)) + "[[1]] B = [[1]]", "Y")

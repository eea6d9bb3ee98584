import sys

import pytest

from headwise.check import CheckOptions, check, read_article
from headwise.errors import BadFile, BadValue
from headwise.masks import causal
from tests.check.corpus import ARTICLES, PUBLISHED, computed, line_of, planted, text_of

STRIDE = 17
"""Every how manieth number of an article has an error planted in it in the quick test."""

MISSED = {
    ("token_rows.zh.md", 45): "weights in running text, named by their tokens",
    ("latex_document.en.tex", 31): "a sum that is said to be 1, which rounding alone may miss",
}
"""Lines whose errors are not found, and why."""


def wrong(report):
    return [(found.line, found.printed, found.right, found.what.en) for found in report.findings]


def name(path):
    return path.name


def corrected(text):
    """The published example with each wrong figure replaced by the right one."""
    for old, new in (
        ("[0.325, 0.421, 0.254]", "[0.376, 0.449, 0.175]"),
        ("0.325×", "0.376×"),
        ("0.421×", "0.449×"),
        ("0.254×", "0.175×"),
        ("0.201 & 0.233", "0.200 & 0.233"),
        ("0.201 & 0.242", "0.200 & 0.234"),
        ("0.498", "0.499"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def published():
    if not PUBLISHED.exists():
        pytest.skip("the published example stays outside the repository, in ../shared/data")
    return read_article(PUBLISHED)


def test_the_published_example_has_exactly_these_wrong(published):
    report = check(published)
    softmax = [("0.325", "0.376"), ("0.421", "0.449"), ("0.254", "0.175")]
    row = [
        (19, old, new, f"head 1, softmax, row 0, column {j}")
        for j, (old, new) in enumerate(softmax)
    ]
    used = [(20, old, new, f"{what}, as used in the sum") for _, old, new, what in row]
    assert len({f.root for f in report.findings if f.verdict == "wrong"}) == 3
    assert [f.verdict for f in report.findings].count("follows") == 6
    assert wrong(report) == [
        *row,
        *used,
        (24, "0.201", "0.200", "head 2, output of the head, row 0, column 0"),
        (25, "0.201", "0.200", "head 2, output of the head, row 1, column 0"),
        (25, "0.242", "0.234", "head 2, output of the head, row 1, column 1"),
        (32, "0.201", "0.200", "output, row 0, column 2"),
        (33, "0.201", "0.200", "output, row 1, column 2"),
        (33, "0.242", "0.234", "output, row 1, column 3"),
        (34, "0.498", "0.499", "output, row 2, column 1"),
    ]
    assert not report.unmatched


def test_a_corrected_copy_has_nothing_wrong(published):
    report = check(corrected(published))
    assert not report.findings
    assert not report.unmatched
    assert report.checked == check(published).checked


@pytest.mark.parametrize("path", ARTICLES, ids=name)
def test_a_right_article_has_nothing_wrong(path):
    report = check(read_article(path))
    assert wrong(report) == []
    assert [each.text for each in report.unmatched] == []
    assert report.checked >= len(computed(path))


def plant(path, matches):
    """How many planted errors were found alone, found, and planted where they should be found."""
    text = text_of(path)
    alone = found = expected = 0
    for match in matches:
        report = check(planted(text, match))
        here = [each for each in report.findings if match.start() - 1 <= each.start < match.end()]
        known = (path.name, line_of(text, match)) in MISSED
        if not here and not known:
            sys.stderr.write(
                f"{path.name}:{line_of(text, match)} {match.group()} {wrong(report)}\n"
            )
        found += bool(here)
        alone += bool(here) and len(report.findings) == 1
        expected += not known
    return alone, found, expected


@pytest.mark.parametrize("path", ARTICLES, ids=name)
def test_a_planted_error_is_found_and_nothing_else(path):
    matches = computed(path)[:: STRIDE if len(computed(path)) > STRIDE else 3]
    alone, found, expected = plant(path, matches)
    assert (alone, found) == (expected, expected)


@pytest.mark.slow
@pytest.mark.parametrize("path", ARTICLES, ids=name)
def test_every_planted_error_is_found_and_nothing_else(path):
    matches = computed(path)
    alone, found, expected = plant(path, matches)
    sys.stderr.write(f"{path.name}: {found} of {len(matches)} found, {alone} of them alone\n")
    assert (alone, found) == (expected, expected)


X = "One head. X = [[1.0, 2.0], [0.5, 1.5], [2.0, 0.5]]\n"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("scores = [[5.0, 3.5, 3.1], [3.5, 2.5, 1.75], [3.0, 1.75, 4.25]]", ("3.1", "3.0")),
        ("S_{01} = 1.0×0.5 + 2.0×1.5 = 3.6", ("3.6", "3.5")),
        ("S_{01} = 1.0×0.6 + 2.0×1.5 = 3.5", ("0.6", "0.5")),
        ("Scores, row 0: [50e-1, 3.5, 3.1e0]", ("3.1e0", "3.0e0")),
        ("Softmax of row 0 = [67.6%, 16.4%, 16.5%]", None),
        ("1/3 of it, and 0.30 + 0.21 = 0.52", ("0.52", "0.51")),
        ("e^{0.5} = 1.66", ("1.66", "1.65")),
        ("d_k = 4", ("4", "2")),
        ("d_{model} = 3", ("3", "2")),
    ],
)
def test_one_wrong_number_of_each_kind(said, found):
    report = check(X + said)
    if found is None:
        assert len(report.findings) > 0
    else:
        assert [(each.printed, each.right) for each in report.findings] == [found]


def test_what_nothing_names_is_listed_and_not_guessed():
    report = check(X + "The list was [0.123, 0.456, 0.789, 0.111] at 0.37 of the way.")
    assert not report.findings
    assert [each.text for each in report.unmatched] == ["0.123, 0.456, 0.789, 0.111"]
    assert {each.line for each in report.unmatched} == {2}


def test_a_truncated_number_is_wrong_and_a_tie_may_go_either_way():
    half = "One head. X = [[0.5, 0.25], [1.0, 0.25]]\n"
    assert not check(half + "S_{00} = 0.3125, so S_{00} ≈ 0.312 or S_{00} ≈ 0.313").findings
    assert len(check(half + "S_{00} ≈ 0.31, S_{01} ≈ 0.56, S_{11} ≈ 1.05").findings) == 1


@pytest.mark.parametrize("base", [0, 1])
def test_indices_count_from_what_the_article_counts_from(base):
    rows = ("[5.0, 3.5, 3.0]", "[3.5, 2.5, 1.75]", "[3.0, 1.75, 4.25]")
    said = "\n".join(f"scores, row {i + base}: {row}" for i, row in enumerate(rows))
    report = check(X + said)
    assert not report.findings
    assert f"rows from {base}" in report.notes[-1].en


def test_options_stand_in_for_what_the_article_leaves_out():
    import torch

    said = "Softmax: [[1.00, 0.00], [0.27, 0.73]]"
    x = torch.eye(2, dtype=torch.float64)
    given = CheckOptions(x=x, heads=1, scale=1.0, mask=lambda *_: causal())
    assert not check(said, given).findings
    assert len(check(said, CheckOptions(x=x, heads=1, scale=1.0)).findings) == 2


def test_one_token():
    assert not check("One head, X = [[0.5, 1.5]]. Softmax: [[1.0]]. Output: [[0.5, 1.5]]").findings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no numbers at all", "no input X found.*--x FILE"),
        ("X = [[1, 2], [3]]", "no input X found"),
        ("X = [[1, 2], [3, 4]] with 3 heads", "heads"),
        ("X = [[1, 2], [3, 4]], h = 0", "heads: line 1 states 0"),
        (X + "1.5 " * 100_001, "more than 100000 words and numbers"),
        ("X = [" + "[1, 2], " * 16 + "[3, 4]]\n" + "The score: s = 1.5\n" * 900, "too many arrays"),
        ("X = [[1e200, 2], [3, 1e200]]", "products are finite"),
        ("X = [" + ", ".join(["[1, 2]"] * 65) + "]", "at most 64 rows"),
        (X + "W^Q = [[1, 2, 3], [1, 2, 3], [4, 5, 6], [7, 8, 9]]", r"W\^Q: expected a matrix"),
    ],
)
def test_an_article_that_cannot_be_used(text, message):
    with pytest.raises(BadValue, match=message):
        check(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        "[" * 30_000 + "1" + "]" * 30_000,
        "(" * 30_000 + "1.5" + ")" * 30_000,
        r"\frac{" * 12_000 + "1" + "}" * 12_000,
        "\\sqrt{" * 20 + "1.5" + "}" * 20 + " = 1.2",
        "9" * 500_000,
        "1." * 30_000,
        "_" * 60_000,
        "<a" * 30_000,
        "\\begin{bmatrix}" * 9_000,
        "a" * 900_000,
        "$$" * 40_000,
        "| 1.5 | 2.5 |\n" * 9_000,
        "softmax([1.5, 2.5, 1.0]) = " * 500,
        "√" * 30_000,
        "e^" * 30_000,
        "[1," * 8_000,
        "x[0," * 8_000,
        "A(B," * 8_000,
        "- " * 30_000,
        "> " * 30_000,
        "# H\n" * 8_000,
        "mask scaled. " * 8_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_ends(text):
    """Each of these once could have been slow or deep; pytest's own time limit is the judge."""
    report = check(X + text)
    assert report.source == "article"


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "a.md"
    path.write_bytes(b"\x00\x01\x02")
    with pytest.raises(BadFile, match="expected text in UTF-8"):
        read_article(path)
    path.write_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(BadFile, match="expected text in UTF-8"):
        read_article(path)
    path.write_bytes(b" " * 1_000_001)
    with pytest.raises(BadFile, match="at most 1,000,000 characters"):
        read_article(path)
    with pytest.raises(BadFile, match="expected a readable text file"):
        read_article(tmp_path / "missing.md")
    with pytest.raises(BadFile, match="expected a readable text file"):
        read_article(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "a.md"
    path.write_bytes("单头，Ｘ＝［［１，２］，［３，４］］".encode(encoding))
    assert check(read_article(path)).checked == 0


@pytest.mark.parametrize(
    "label",
    [
        "MultiHead(X)",
        "MHA(X, X, X)",
        "MultiHeadAttention(X)",
        "SelfAttention(X)",
        "Attn(X)",
        "Attention(X)",
        "Attention(X, X, X)",
        "多头(X)",
        "多头注意力(X)",
        "自注意力(X)",
    ],
)
@pytest.mark.parametrize("shape", ["{} = {}", "$${} = {}$$", "The result is {} = {}"])
def test_a_function_of_x_is_its_result(label, shape):
    import torch

    x = torch.tensor([[1.0, 2.0], [0.5, 1.5], [2.0, 0.5]], dtype=torch.float64)
    right = (x @ x.T / 2**0.5).softmax(-1) @ x
    printed = str([[f"{value:.2f}" for value in row] for row in right.tolist()]).replace("'", "")
    tex = r"\mathrm{" + label.replace("(", "}(", 1) if "$" in shape else label
    said = shape.format(tex, printed)
    for text in (X + said, said + "\n\n" + X):
        report = check(text)
        assert (report.checked, report.findings, report.unmatched) == (6, (), ())
    last = printed[-3]
    wrong_text = said.replace(printed, printed[:-3] + str((int(last) + 3) % 10) + "]]")
    assert ["output" in f.what.en for f in check(X + wrong_text).findings] == [True]


TWO = "X = [[1.0, 2.0], [0.5, 1.5], [2.0, 0.5]]\nHead 2 scores: S_{01} = 3.00\n"


@pytest.mark.parametrize(
    "said",
    [
        "GPT-3 has 96 heads. In our toy example we use 2 heads.",
        "GPT-3 has 96 heads, d_model = 12288 and d_k = 128; in our toy example we use 2 heads.",
        "BERT uses h = 12. Here, h = 2.",
        "The original Transformer has 8 heads and d_model = 512. Two heads are enough for us.",
        "GPT-3 有 96 个头。本例用 2 个头。",
        "There are 3 ways and 7 heads in a hydra. h = 2",
    ],
)
def test_the_heads_of_another_model_are_not_those_of_the_example(said):
    for text in (f"{said}\n\n{TWO}", f"{TWO}\n{said}"):
        report = check(text)
        assert report.notes[0].en == "heads: 2"
        assert wrong(report) == []


def test_given_heads_outdo_what_the_article_says():
    report = check("We use 7 heads.\n" + TWO, CheckOptions(heads=2))
    assert (report.notes[0].en, report.findings) == ("heads: 2", ())


def test_the_verdict_counts_what_could_not_be_matched():
    from headwise.check.checker import verdict

    said = X + "S_{01} = 3.5\nThe list was [0.123, 0.456, 0.789, 0.111] at 0.37 of the way."
    report = check(said)
    assert report.unmatched_count == 4
    assert verdict(report).en.endswith("nothing wrong, 1 numbers checked, 4 could not be matched")
    assert verdict(report).zh.endswith("没有错误，共检查 1 个数，4 个无法对应")
    assert "nothing was checked" in verdict(check(X)).en


INPUT_TABLE = """One head. The input embeddings:

| token | d1 | d2 |
|---|---|---|
| the | 1.0 | 0.5 |
| cat | 0.2 | 1.1 |
| key | 0.7 | 0.3 |

"""
SCORES = ("1.25 | 0.75 | 0.85", "0.75 | 1.25 | 0.47", "0.85 | 0.47 | 0.58")


@pytest.mark.parametrize("caption", ["Scores:", "## Raw scores\n", "The scores before scaling"])
@pytest.mark.parametrize("corner", ["", "query", r"query \ key", "token"])
@pytest.mark.parametrize(
    "words",
    [
        ("the", "cat", "key"),
        ("cat", "sat", "down"),
        ("a", "value", "output"),
        ("my", "key", "weights"),
        ("query", "key", "value"),
    ],
)
def test_words_in_the_margin_of_a_table_are_tokens(caption, corner, words):
    head = f"| {corner} | {' | '.join(words)} |\n|---|---|---|---|\n"
    rows = "".join(f"| {word} | {row} |\n" for word, row in zip(words, SCORES, strict=True))
    text = f"{INPUT_TABLE}{caption}\n\n{head}{rows}"
    report = check(text)
    assert (report.checked, report.findings, report.unmatched) == (9, (), ())
    report = check(text.replace("0.58", "0.57"))
    assert [found.printed for found in report.findings] == ["0.57"]
    assert "scores, row 2, column 2" in report.findings[0].what.en


@pytest.mark.parametrize(("printed", "wrong"), [("6, 5", []), ("6, 7", [("7", "5")])])
def test_a_row_written_as_a_sum_of_columns_of_the_keys(printed: str, wrong: list) -> None:
    """The head dim is larger than the number of tokens, so rows and columns differ in number."""
    article = (
        "X = [[1, 0, 2, 1], [0, 1, 1, 3]], one head, identity projections.\n\n"
        f"Scores: S[0] = 1 [1, 0] + 0 [0, 1] + 2 [2, 1] + 1 [1, 3] = [{printed}]\n"
    )
    report = check(article)
    assert [(finding.printed, finding.right) for finding in report.findings] == wrong
    assert not report.unmatched

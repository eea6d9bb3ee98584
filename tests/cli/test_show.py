"""The command ``headwise show``: pictures and counts of masks, compared with their rules."""

import json

import pytest
import torch

from headwise.cli import main
from headwise.cli.reporting import FORMATS
from headwise.cli.show import LONGEST
from headwise.drawing import CELLS, DRAWN, EXAMPLES, Shown
from headwise.masks import MASKS
from headwise.masks.expression import parse
from headwise.shapes import AttentionShape
from tests.browser import open_page


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder and in English."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWISE_LANG", "en")
    return tmp_path


def run(capsys, *words):
    status = main(["show", *words])
    out, err = capsys.readouterr()
    return status, out, err


def data(capsys, *words):
    status, out, err = run(capsys, *words, "--format", "json")
    assert (status, err) == (0, "")
    return json.loads(out)


def dense(text: str, queries: int, keys: int, batch: int = 1, heads: int = 1) -> torch.Tensor:
    place = AttentionShape(batch, heads, queries, keys, keys - queries, torch.device("cpu"))
    return parse(text).dense(place).expand(batch, heads, queries, keys)


def test_a_mask_is_drawn_pair_by_pair_with_its_counts(capsys):
    status, out, err = run(capsys, "causal() & window(3, 0)", "--queries", "7", "--keys", "9")
    assert (status, err) == (0, "")
    drawn = parse("causal() & window(3, 0)").draw(7, 9)
    assert "\n".join(f"    {line}" for line in drawn.splitlines()) in out
    assert "allowed keys per query           3 to 4, 3.86 on average" in out
    assert "pairs that may attend            42.86%" in out  # 27 of 63
    assert "fully masked queries (output 0)  0 of 7" in out


def test_blind_queries_are_counted(capsys):
    _, out, _ = run(capsys, "causal()", "--queries", "7", "--keys", "5")
    assert "fully masked queries (output 0)  2 of 7" in out


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("words", [[], ["~causal() | window(1, 0)"]])
def test_every_format_in_both_languages(capsys, words, kind, lang):
    status, out, err = run(capsys, *words, "--format", kind, "--lang", lang)
    assert (status, err) == (0, "")
    if kind in ("text", "markdown"):
        assert ("行是查询" in out or "所有掩码" in out) == (lang == "zh")


def test_without_a_mask_every_mask_is_listed_with_a_drawing(capsys):
    names = [mask.__name__ for mask in MASKS]
    assert [text.partition("(")[0] for text in EXAMPLES] == names
    _, out, _ = run(capsys)
    for text, what in EXAMPLES.items():
        assert f"▸ {text}\n\n{what.en}\n\n    " in out
    listed = data(capsys)["masks"]
    assert [mask["name"] for mask in listed] == names
    assert listed[names.index("causal")]["drawing"] == parse("causal()").draw(8).splitlines()


@pytest.mark.parametrize(
    ("text", "queries", "keys", "batch", "heads"),
    [
        ("causal() & window(3, 0)", 13, 17, 1, 1),
        ("~padding([3, 7, 0])", 5, 7, 3, 1),
        ("per_head([causal(), window(1, 1)]) & padding([5, 0, 2])", 7, 7, 3, 2),
        ("every(3) | global_tokens([5])", 101, 131, 1, 1),
        ("from_tensor([[True, False, True], [False, False, False]])", 2, 3, 1, 1),
        ("documents([150, 149])", 299, 299, 1, 1),
        ("random_blocks(3, 2, seed=5)", 29, 31, 1, 1),
    ],
)
def test_the_numbers_are_those_of_the_rule_written_out(capsys, text, queries, keys, batch, heads):
    got = data(capsys, text, "--queries", str(queries), "--keys", str(keys))
    allowed = dense(text, queries, keys, batch, heads)
    seen = allowed.sum(-1)
    assert (got["batch"], got["heads"]) == (batch, heads)
    assert got["keys_seen"]["min"] == seen.min()
    assert got["keys_seen"]["max"] == seen.max()
    assert got["keys_seen"]["mean"] == seen.sum().item() / seen.numel()
    assert got["share"] == allowed.sum().item() / allowed.numel()
    assert got["blind"] * batch * heads == int((seen == 0).sum()) * len(rows_of(got, text))
    tiles = got["tiles"]
    assert sum(tiles.values()) == -(-queries // 128) * -(-keys // 128)


def rows_of(got: dict, text: str) -> range:
    """As many as the samples and heads that the rule tells apart."""
    shown = Shown.of(text, got["queries"], got["keys"])
    return range(len(shown.rows) // got["queries"])


def test_a_size_that_the_mask_holds_needs_no_option(capsys):
    assert data(capsys, "documents([2, 3])")["keys"] == 5
    assert data(capsys, "from_tensor([[True, False, True], [False, True, False]])")["queries"] == 2
    assert data(capsys, "causal()", "--keys", "7")["queries"] == 7
    assert data(capsys, "causal()", "--queries", "7")["keys"] == 7
    assert data(capsys, "causal()")["keys"] == 16


def test_a_large_mask_is_pooled_and_each_cell_is_the_share_of_its_pairs(capsys):
    got = data(capsys, "causal() & window(30, 0)", "--keys", "101")["drawing"]
    step = got["pairs_on_a_side"]
    assert step == 3
    allowed = dense("causal() & window(30, 0)", 101, 101)[0, 0].double()
    for i, row in enumerate(got["share"]):
        for j, share in enumerate(row):
            part = allowed[i * step : (i + 1) * step, j * step : (j + 1) * step]
            assert round(share * part.numel()) == part.sum()
    _, out, _ = run(capsys, "causal() & window(30, 0)", "--keys", "101")
    assert "A cell is 3 × 3 pairs" in out
    assert {"■", "▒", "·"} <= set(out)


def test_a_huge_mask_is_drawn_by_what_it_says_of_rectangles(capsys):
    got = data(capsys, "causal()", "--keys", str(LONGEST))
    assert got["keys_seen"] == {"min": 1, "mean": (LONGEST + 1) / 2, "max": LONGEST}
    drawn = got["drawing"]["share"]
    assert len(drawn) <= CELLS["json"]
    assert all(row[i] == 0.5 for i, row in enumerate(drawn))
    assert all(
        row[j] == (1 if j < i else 0)
        for i, row in enumerate(drawn)
        for j in range(48 - 1)
        if i != j < len(row)
    )
    _, out, _ = run(capsys, "causal()", "--keys", str(LONGEST))
    assert "not evaluated singly" in out


def test_what_is_too_much_to_count_is_bounded_and_said(capsys):
    words = ("every(3) & padding([16001, 1])", "--keys", "16001")
    got = data(capsys, *words)
    assert (got["share"], got["keys_seen"], got["blind"]) == (None, None, None)
    least, most = got["share_between"]
    assert least < 1 / 6 < most
    _, out, _ = run(capsys, *words)
    assert "not counted, since mixed tiles" in out


def test_no_more_than_some_heads_are_drawn_and_it_is_said(capsys):
    heads = ", ".join(f"window({n}, 0)" for n in range(DRAWN + 3))
    _, out, _ = run(capsys, f"per_head([{heads}])")
    assert out.count("▸ head ") == DRAWN
    assert "3 more drawings are omitted." in out


@pytest.mark.browser
def test_the_figure_opens_without_an_error_in_both_languages(capsys, folder):
    status, out, err = run(capsys, "per_head([causal(), window(2, 1)])", "--output", "mask.html")
    assert (status, out, err) == (0, "", "written: mask.html\n")
    for lang in ("en", "zh"):
        dom, console = open_page(folder / "mask.html", lang)
        assert console == []
        assert dom.count("<canvas") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["causal"], r"expected causal(), with parentheses, got 'causal' at character 1"),
        (["window(-1, 0)"], "window: left must be >= 0, got -1"),
        (["documents([2, 3])", "--keys", "7"], "documents: made for (B, Lk) = (1, 5), called with"),
        (["causal()", "--keys", "0"], "0 is not in the range 1<=x<=262144"),
        (["causal()", "--queries", "262145"], "262145 is not in the range"),
        (["--keys", "3"], "keys: expected a mask for keys 3, got none; write the mask first"),
        (["--queries", "3"], "queries: expected a mask for queries 3, got none"),
        (["causal()", "--output", "missing/mask.html"], "output: expected a file in an existing"),
        (["random_blocks(1, 1, seed=0)", "--keys", "100000"], "use larger blocks"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, folder, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []

"""The command ``headwise plan`` prints the result of `headwise.plan`."""

import json

import pytest
import torch

import headwise as hw
from headwise.cli import main
from headwise.cli.plan import POSITIONS
from headwise.cli.reporting import FORMATS


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder and in English."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWISE_LANG", "en")
    return tmp_path


def run(capsys, *words):
    status = main(["plan", *words])
    out, err = capsys.readouterr()
    return status, out, err


def data(capsys, *words):
    status, out, err = run(capsys, *words, "--format", "json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("need", [(), ("weights",), ("weights", "logsumexp")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_is_that_of_the_library(capsys, need, dtype):
    words = ["--length", "301", "--queries", "211", "--heads", "6", "--kv-heads", "3", "--head-dim"]
    words += ["13", "--batch", "2", "--dtype", dtype, "--mask", "causal() & window(100, 0)"]
    got = data(capsys, *words, *(part for word in need for part in ("--need", word)))
    kind = getattr(torch, dtype)
    q, k = torch.zeros(2, 6, 211, 13, dtype=kind), torch.zeros(2, 3, 301, 13, dtype=kind)
    plan = hw.plan(q, k, k, mask=hw.causal() & hw.window(100, 0), need=need)
    assert (got["q"], got["k"]) == ([2, 6, 211, 13], [2, 3, 301, 13])
    assert (got["engine"], got["tiles"], got["share"]) == (plan.engine, plan.tiles, plan.share)
    assert (got["flops"], got["bytes"]) == (plan.flops, plan.bytes)
    for name, reasons in plan.refused.items():
        assert [reason["en"] for reason in got["refused"][name]] == [r.en for r in reasons]
        assert [reason["zh"] for reason in got["refused"][name]] == [r.zh for r in reasons]


def test_a_long_plan_needs_no_memory(capsys):
    got = data(capsys, "--length", "131072", "--mask", "causal() & window(511, 0)")
    assert got["q"] == [1, 8, 131072, 64]
    rows = 131072 // 128
    edges = rows + (rows - 4)  # the diagonal, and where the window begins
    assert got["tiles"]["mixed"] == edges
    assert got["tiles"]["full"] == 3 * rows - 1 - 2 - 3
    assert sum(got["tiles"].values()) == rows**2


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_can_be_planned(capsys, position):
    got = data(capsys, "--length", "7", "--position", position)
    assert got["position"] == position


def test_sizes_that_the_mask_holds_need_no_option(capsys):
    got = data(capsys, "--length", "7", "--mask", "per_head([causal(), full()]) & padding([3, 5])")
    assert got["q"] == [2, 2, 7, 64]


def test_an_engine_can_be_asked_for(capsys):
    assert data(capsys, "--length", "7", "--engine", "eager")["engine"] == "eager"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_in_both_languages(capsys, kind, lang):
    words = ("--length", "300", "--need", "weights", "--format", kind, "--lang", lang)
    status, out, err = run(capsys, *words)
    assert (status, err) == (0, "")
    assert {"en": "it does not return weights", "zh": "它不返回 weights"}[lang] in out


def test_the_plan_is_told_in_words(capsys):
    _, out, _ = run(capsys, "--length", "300", "--mask", "causal()", "--position", "alibi")
    assert (
        "q (1, 8, 300, 64), k (1, 8, 300, 64), v (1, 8, 300, 64), float32, causal(), alibi" in out
    )
    assert "3 empty, 3 mixed, 3 full" in out
    _, out, _ = run(capsys, "--length", "300", "--mask", "causal()", "--lang", "zh")
    assert "3 空，3 混合，3 满" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing option '--length'"),
        (["--length", "0"], "0 is not in the range 1<=x<=262144"),
        (["--length", "7", "--heads", "5000"], "5000 is not in the range 1<=x<=4096"),
        (["--length", "7", "--mask", "casual()"], "one of the masks: causal, got 'casual'"),
        (["--length", "7", "--kv-heads", "3"], "H must be a multiple of G"),
        (["--length", "7", "--mask", "documents([2, 3])"], "documents: made for (B, Lk) = (1, 5)"),
        (["--length", "7", "--engine", "cuda"], "engine: unknown 'cuda'; expected one of 'auto'"),
        (["--length", "7", "--engine", "sdpa", "--need", "weights"], "it does not return weights"),
        (["--length", "7", "--position", "rotary", "--head-dim", "3"], "rotary_dim must be even"),
        (["--length", "7", "--position", "x"], "'x' is not one of 'none', 'alibi'"),
    ],
)
def test_bad_input_is_one_line(capsys, folder, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []

"""The command ``headwise ablate``: its numbers, its report and its errors."""

import copy
import csv
import io
import json
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.cli import BAD_INPUT, main
from headwise.cli.ablate import METHODS as NAMES
from headwise.errors import BadValue
from headwise.heads.ablation import (
    METHODS,
    How,
    against_random,
    compared,
    curve,
    effect,
    every_head,
    next_token_loss,
    sites,
)
from headwise.heads.ablation.experiment import AblationOptions, as_json, run_experiment
from headwise.heads.ablation.experiment.ablation_report import faults, schema
from headwise.heads.ablation.experiment.texts import TOGETHER, pieces, together
from headwise.heads.ablation.loss_effects import Interval
from headwise.heads.corpus.probe import TIMES, TOKENS, sequences
from headwise.heads.models import is_cached, model_named
from headwise.heads.models.load import Loaded, load
from headwise.heads.names import Head, parse_heads
from headwise.lang import Text, Translated
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny
from tests.heads.ablation.families import made, silenced

HEADS = "L1H2,L0H5,L0H1"
ROOM = 113
"""Tokens that the tiny model takes: enough for the probe."""

UNKNOWN = "[UNK]"

LONG = "a" * 5000
"""A name that no file system takes."""


def words(count: int = 41) -> list[str]:
    return [f"w{number}" for number in range(count)]


def tokenizer() -> Any:
    """One token a word, and no special ones."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate([UNKNOWN, *words()])}
    built = Tokenizer(WordLevel(numbers, unk_token=UNKNOWN))
    built.pre_tokenizer = Split(" ", "removed")
    return PreTrainedTokenizerFast(tokenizer_object=built, unk_token=UNKNOWN)


def causal() -> nn.Module:
    """Two layers of six heads and a projection of their own, which no embedding is."""
    from transformers import LlamaForCausalLM

    config = tiny.llama().config
    config.vocab_size, config.max_position_embeddings = 42, ROOM
    return made(LlamaForCausalLM(config))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    causal().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def loaded(model: str) -> Loaded:
    return load(model, predicting=True)


def lines(count: int, length: int = 7, seed: int = 5) -> list[str]:
    make = torch.Generator().manual_seed(seed)
    drawn = torch.randint(41, (count, length), generator=make).tolist()
    return [" ".join(words()[number] for number in line) for line in drawn]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("texts") / "a.txt"
    file.write_text("\n".join(lines(12)), encoding="utf-8")
    return str(file)


def run(*given: str, lang: str = "en") -> int:
    return main(["--lang", lang, "ablate", *given])


def found(capsys: pytest.CaptureFixture[str], *given: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(*given, "--format", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert faults(said) == []
    return dict(said)


def texts(loaded: Loaded, corpus: str) -> list[dict[str, Tensor]]:
    """Each line as the model is given it."""
    read = Path(corpus).read_text(encoding="utf-8").splitlines()
    return [dict(loaded.tokenizer(line, return_tensors="pt")) for line in read]


def batch(given: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([each[name] for each in given]) for name in given[0]}


def interval(said: dict[str, Any]) -> Interval:
    return Interval(said["mean"], said["low"], said["high"], 0.95, said["examples"])


def test_python_has_the_same_experiment_and_report(
    capsys: pytest.CaptureFixture[str], model: str, loaded: Loaded, corpus: str
) -> None:
    options = AblationOptions(corpus=Path(corpus), heads=HEADS, against="random", seeds=2)
    result = run_experiment(loaded, options)
    given = ("--corpus", corpus, "--heads", HEADS, "--against", "random", "--seeds", "2")
    assert json.loads(as_json(result)) == found(capsys, model, *given)
    with pytest.raises(BadValue, match="length: expected at least 2, got 1"):
        run_experiment(loaded, replace(options, length=1))
    with pytest.raises(BadValue, match="order: unknown 'random'"):
        run_experiment(loaded, replace(options, order="random"))


# The numbers are those of the Python calls, to the bit.


@pytest.mark.parametrize("order", ["given", "importance"])
@pytest.mark.parametrize("how", NAMES)
def test_the_curve_is_that_of_python(
    model: str,
    loaded: Loaded,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    how: str,
    order: str,
) -> None:
    asked = ("--heads", HEADS, "--how", how, "--order", order, "--seed", "3")
    said = found(capsys, model, "--corpus", corpus, *asked)
    each = texts(loaded, corpus)
    split = how in ("mean", "resample")
    measured, others = (each[::2], each[1::2]) if split else (each, [])
    given = How(how, [batch(others)] if others else (), 3)
    points = curve(loaded.model, batch(measured), order=order, heads=HEADS, how=given)
    assert [step["count"] for step in said["steps"]] == [0, 1, 2, 3]
    for step, point in zip(said["steps"], points, strict=True):
        assert interval(step["loss"]) == point.loss
        assert interval(step["rise"]) == point.rise
        assert step["share"] == point.share == step["count"] / 12
        assert step["against_random"] is None
    assert said["heads"] == [str(head) for head in points[-1].removed]
    assert (said["heads"] == HEADS.split(",")) == (order == "given")
    last = effect(loaded.model, batch(measured), HEADS, how=given)
    assert interval(said["steps"][-1]["rise"]) == last.interval
    assert (said["read"]["texts"], said["read"]["other_texts"]) == (len(measured), len(others))


def test_the_comparison_is_that_of_python(
    model: str, loaded: Loaded, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--heads", HEADS, "--against", "random", "--seeds", "3", "--seed", "7")
    said = found(capsys, model, "--corpus", corpus, *asked)
    each = texts(loaded, corpus)
    python = against_random(
        loaded.model, lambda seed: batch(each[seed - 7 :: 3]), HEADS, seeds=range(7, 10)
    )
    last = said["steps"][-1]["against_random"]
    assert interval(last["theirs"]) == python.theirs
    assert interval(last["random"]) == python.random
    assert interval(last["more"]) == python.more
    assert said["steps"][0]["against_random"] is None
    assert (said["seed"], said["seeds"], said["read"]["texts"]) == (7, 3, 12)


def test_the_probe_is_of_the_repetitions(
    model: str, loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--probe", "repeated", "--texts", "9", "--heads", HEADS, "--seed", "2")
    said = found(capsys, model, *given)
    ids = torch.tensor(sequences(loaded, 2)[:9])
    assert ids.shape == (9, TOKENS * TIMES)
    size = TOGETHER // (TOKENS * TIMES)
    batches = [{"input_ids": part} for part in ids.split(size)]
    loss = partial(next_token_loss, start=TOKENS)
    points = curve(loaded.model, batches, loss, order="given", heads=HEADS, how=How(seed=2))
    assert [interval(step["loss"]) for step in said["steps"]] == [each.loss for each in points]
    assert said["read"]["start"] == TOKENS
    assert said["read"]["tokens"] == 9 * TOKENS * TIMES


def test_every_head_goes_and_is_held_against_a_random_order(
    model: str, loaded: Loaded, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--heads", "all", "--order", "importance", "--steps", "4", "--against", "random")
    said = found(capsys, model, "--corpus", corpus, *asked, "--seeds", "2")
    each = texts(loaded, corpus)
    points = curve(loaded.model, batch(each), step=1 / 4)
    assert [interval(step["loss"]) for step in said["steps"]] == [each.loss for each in points]
    assert [step["count"] for step in said["steps"]] == [0, 3, 6, 9, 12]
    every = every_head(sites(loaded.model))
    python = compared(
        loaded.model,
        lambda seed: batch(each[seed::2]),
        [point.removed for point in points[1:]],
        seeds=range(2),
        others=every,
    )
    for step, one in zip(said["steps"][1:], python, strict=True):
        assert interval(step["against_random"]["random"]) == one.random
    assert said["steps"][-1]["against_random"]["more"]["mean"] == 0  # all of them, either way


# And the heads are out, and the random ones are others: an oracle that shares no code with it.


def losses(model: nn.Module, given: list[dict[str, Tensor]]) -> Tensor:
    """The loss of each text, by transformers' own sum."""
    with torch.no_grad():
        return torch.stack(
            [model(input_ids=x["input_ids"], labels=x["input_ids"]).loss for x in given]
        )


def drawn(heads: tuple[Head, ...], seed: int) -> list[Head]:
    """As many heads that are not among these."""
    others = [Head.parse(f"L{layer}H{head}") for layer in range(2) for head in range(6)]
    others = [head for head in others if head not in heads]
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed)).tolist()
    return [others[number] for number in order[: len(heads)]]


def agrees(said: dict[str, Any], model: nn.Module, given: list[dict[str, Tensor]]) -> None:
    """The losses are those of copies whose heads have no output weights.

    Raises:
        AssertionError: if they are not.
    """
    heads, seeds = parse_heads(HEADS), said["seeds"]
    wide = copy.deepcopy(model).double()

    def of(each: nn.Module) -> Tensor:
        steps = [losses(silenced(each, heads[:n]), given).mean() for n in range(4)]
        rises = []
        for seed in range(seeds):
            share = given[seed::seeds]
            clean = losses(each, share).mean()
            random = silenced(each, tuple(drawn(heads, seed)))
            chosen = silenced(each, heads)
            rises.append([losses(twin, share).mean() - clean for twin in (chosen, random)])
        return torch.stack([*steps, *torch.tensor(rises).double().mean(0)])

    last = said["steps"][-1]["against_random"]
    numbers = [step["loss"]["mean"] for step in said["steps"]]
    numbers += [last["theirs"]["mean"], last["random"]["mean"]]
    accept(torch.tensor(numbers), of(model).float(), of(wide).double())


ASKED = ("--heads", HEADS, "--against", "random", "--seeds", "3")


def test_the_heads_are_out_and_the_random_ones_are_others(
    model: str, loaded: Loaded, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = found(capsys, model, "--corpus", corpus, *ASKED)
    agrees(said, loaded.model, texts(loaded, corpus))


def not_removed(patch: pytest.MonkeyPatch) -> None:
    place = sys.modules[curve.__module__]
    patch.setattr(place, "ablate", lambda *_, **__: nullcontext())


def one_too_few(patch: pytest.MonkeyPatch) -> None:
    place = sys.modules[effect.__module__]
    real = place.ablate
    patch.setattr(place, "ablate", lambda model, heads, *a, **k: real(model, heads[:1], *a, **k))


def drawn_from_the_chosen(patch: pytest.MonkeyPatch) -> None:
    place = sys.modules[against_random.__module__]
    patch.setattr(place, "_shuffled", lambda *_: list(parse_heads(HEADS)))


def the_same_for_every_seed(patch: pytest.MonkeyPatch) -> None:
    place = sys.modules[against_random.__module__]
    real = place._shuffled
    patch.setattr(place, "_shuffled", lambda pool, _: real(pool, 0))


@pytest.mark.parametrize(
    "mistake", [not_removed, one_too_few, drawn_from_the_chosen, the_same_for_every_seed]
)
def test_a_mistake_is_seen(
    model: str,
    loaded: Loaded,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    mistake: Callable[[pytest.MonkeyPatch], None],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        said = found(capsys, model, "--corpus", corpus, *ASKED)
    with pytest.raises(AssertionError, match=r"max\|X-O\|"):
        agrees(said, loaded.model, texts(loaded, corpus))


@pytest.mark.parametrize("steps", ["3", "4", "7", f"1{400 * '0'}"])
def test_a_step_takes_one_head_at_least(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str], steps: str
) -> None:
    said = found(capsys, model, "--corpus", corpus, "--heads", HEADS, "--steps", steps)
    assert [step["heads"] for step in said["steps"]] == [[], *([h] for h in HEADS.split(","))]


# What is read.


def test_a_text_is_cut_into_pieces(
    model: str, loaded: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = " ".join(lines(6))
    (tmp_path / "a.txt").write_text(whole, encoding="utf-8")
    given = ("--text", str(tmp_path / "a.txt"), "--length", "10", "--heads", HEADS)
    said = found(capsys, model, *given)
    ids = loaded.tokenizer(whole, return_tensors="pt")["input_ids"][0]
    assert ids.shape == (42,)
    points = curve(loaded.model, ids[:40].view(4, 10), order="given", heads=HEADS)
    assert [interval(step["loss"]) for step in said["steps"]] == [each.loss for each in points]
    assert said["read"]["length"] == 10
    assert found(capsys, model, whole, *given[2:])["steps"] == said["steps"]


def test_pieces_have_the_special_tokens_of_a_text() -> None:
    toy = Loaded("toy", "directory", tiny.bert(), tiny.tokenizer())
    cut = pieces(toy, "the cat sat on a mat the", 5)
    assert [text["input_ids"].tolist() for text in cut] == [[[2, 5, 6, 7, 3]], [[2, 8, 9, 10, 3]]]


def test_documents_may_be_cut_to_one_length(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\n".join([*lines(3), *lines(3, 5)]), encoding="utf-8")
    given = (model, "--corpus", str(tmp_path / "a.txt"), "--heads", HEADS, "--how", "resample")
    assert run(*given) == BAD_INPUT
    said = capsys.readouterr().err
    assert "how: 'resample' needs texts of equal length, got 5 to 7 tokens; use --length" in said
    read = found(capsys, *given, "--length", "3")["read"]
    assert (read["texts"], read["other_texts"]) == (5, 4)  # two of each 7, one of each 5


def test_only_so_many_are_read(model: str, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    read = found(capsys, model, "--corpus", corpus, "--texts", "5", "--heads", HEADS)["read"]
    assert read["texts"] == 5
    asked = ("--heads", HEADS, "--against", "random", "--seeds", "5")
    read = found(capsys, model, "--corpus", corpus, *asked)["read"]
    assert read["texts"] == 10  # two for each seed, and two are left out


# Which heads: those that a saved run has named so.


@pytest.fixture
def json_run(tmp_path: Path) -> Path:
    """What a run of ``inspect --probe`` says, made by hand: its layout is checked when read."""
    part: dict[str, Any] = {"values": {}}
    head = {"head": "L0H0", "part": "", "layer": 0, "number": 0, **part}
    named = {
        "criterion": "", "first_half": None, "second_half": None, "bar": None, "uniform": None,
        "random": None, "offset": None, "texts": 0, "chance": 1.0,
    }  # fmt: skip
    names = [("L0H5", "induction"), ("L1H2", "induction"), ("L0H0", "local")]
    said = {
        "schema": "headwise.inspect.corpus/1",
        "headwise": "0",
        "model": {
            "name": "x", "source": "directory", "class": "LlamaModel", "type": "llama",
            "parameters": 1, "layers": 2, "heads": 12,
        },
        "corpus": {
            "file": "25 random tokens, 4 times, seed 0",
            "sha256": "", "documents": 48, "paragraphs": False,
            "truncate": False, "tokens": 4800, "cut": 0,
        },
        "metrics": [
            {"name": "n", "title": "t", "formula": "f", "source": "s", "share": True}
        ],
        "heads": [head],
        "uniform": [{"layer": "L0", **part}],
        "standing_out": [],
        "halves": [[], []],
        "alignment": [],
        "names": [{"head": head, "name": name, **named} for head, name in names],
    }  # fmt: skip
    file = tmp_path / "run.json"
    file.write_text(json.dumps(said), encoding="utf-8")
    return file


def changed(file: Path, **values: Any) -> Path:
    said = json.loads(file.read_text(encoding="utf-8"))
    for key, value in values.items():
        said[key] = {**said[key], **value} if isinstance(value, dict) else value
    file.write_text(json.dumps(said), encoding="utf-8")
    return file


def test_heads_that_a_run_has_named(
    model: str, corpus: str, json_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--open", str(json_run), "--named", "induction")
    said = found(capsys, model, "--corpus", corpus, *asked)
    assert said["heads"] == ["L0H5", "L1H2"]
    plain = found(capsys, model, "--corpus", corpus, "--heads", "L0H5,L1H2")
    assert said["steps"] == plain["steps"]


@pytest.mark.parametrize(("seed", "warned"), [("0", True), ("1", False)])
def test_the_texts_that_named_them_are_warned_of(
    model: str, json_run: Path, capsys: pytest.CaptureFixture[str], seed: str, warned: bool
) -> None:
    asked = ("--open", str(json_run), "--named", "induction", "--texts", "2", "--seed", seed)
    assert run(model, "--probe", "repeated", *asked) == 0
    out = capsys.readouterr().out
    assert ("The heads were named on these same texts" in out) == warned
    assert run(model, "--probe", "repeated", *asked, lang="zh") == 0
    out = capsys.readouterr().out
    assert f"重复 {TIMES} 次的 {TOKENS} 个随机词元，种子 {seed}" in out
    assert ("这些头正是在同样的文本上命名的" in out) == warned


def test_a_probes_run_calls_its_texts_so(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.heads.corpus import probe
    from headwise.heads.corpus.measurement import Measurer

    monkeypatch.setattr(probe, "SEQUENCES", 1)
    done = probe.probed(Measurer.of(loaded, truncate=False, names=False), seed=4)
    assert done.corpus["file"] == "25 random tokens, 4 times, seed 4"


def test_a_folder_that_save_has_written(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    assert main(["--lang", "en", "inspect", model, "--corpus", corpus, "--save", folder]) == 0
    asked = ("--open", folder, "--named", "unexplained")
    said = found(capsys, model, "--corpus", corpus, *asked)
    names = json.loads(json_of(folder, capsys))["names"]
    assert said["heads"] == [each["head"] for each in names if each["name"] == "unexplained"]
    assert run(model, "--corpus", corpus, "--open", folder, "--named", "x") == BAD_INPUT
    assert "has no head named 'x'; the names in it are: " in capsys.readouterr().err
    assert run(model, "--corpus", corpus, *asked) == 0
    assert "on these same texts" in capsys.readouterr().out


def json_of(folder: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["inspect", "--open", folder, "--format", "json"]) == 0
    return capsys.readouterr().out


# What it says.


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("en", ("tiny without 3 of its 12 heads", "random heads", "difference")),
        ("zh", ("移除 12 个头中的 3 个", "随机头", "差值", "该头的输出为 0")),
    ],
)
def test_it_prints_a_report(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str], lang: str, said: tuple[str, ...]
) -> None:
    assert run(model, "--corpus", corpus, *ASKED, lang=lang) == 0
    out, err = capsys.readouterr()
    assert all(each in out for each in said)
    assert [line for line in out.splitlines() if line.startswith(("1    ", "1       "))]
    assert all(line.endswith("…") for line in err.splitlines())
    texts_read = 12 * (1 + 3 + 1 + 2 * 3)
    assert f"{texts_read}" in err.splitlines()[-1]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("more", [(), ("--against", "random", "--seeds", "3")])
def test_tables_fit_a_narrow_terminal(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str], lang: str, more: tuple[str, ...]
) -> None:
    from rich.cells import cell_len

    assert run(model, "--corpus", corpus, "--heads", HEADS, *more, lang=lang) == 0
    rows = capsys.readouterr().out.splitlines()
    rules = [line for line in rows if set(line) == {"─", " "}]
    assert rules
    assert all(cell_len(line) <= 80 for line in rules[1:])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_importance_says_on_which_texts_and_several_heads_say_their_order(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str], lang: str
) -> None:
    asked = ("--heads", "all", "--order", "importance", "--steps", "2")
    assert run(model, "--corpus", corpus, *asked, lang=lang) == 0
    out = capsys.readouterr().out
    words = {
        "en": (
            "without its 12 heads, step by step",
            "Heads in order of removal: L",
            "by gradients on the same",
            "6 heads",
        ),
        "zh": ("逐步移除全部 12 个头", "头的移除顺序：L", "同样文本上的梯度", "6 个头"),
    }
    assert all(each in out for each in words[lang])


def test_markdown_and_html(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, "--corpus", corpus, "--heads", HEADS, "--format", "markdown") == 0
    out = capsys.readouterr().out
    assert out.startswith("# ")
    assert "| L0H5 |" in out
    file = tmp_path / "a.html"
    assert run(model, "--corpus", corpus, "--heads", HEADS, "--output", str(file)) == 0
    page = file.read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert "移除 12 个头中的 3 个" in page


def test_csv_has_the_numbers_of_the_json(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.csv"
    assert run(model, "--corpus", corpus, *ASKED, "--output", str(file)) == 0
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    steps = found(capsys, model, "--corpus", corpus, *ASKED)["steps"]
    assert [row["heads"] for row in rows] == ["", "L1H2", "L0H5", "L0H1"]
    for row, step in zip(rows, steps, strict=True):
        compared = step["against_random"] or {}
        parts = {
            "loss": step["loss"], "rise": step["rise"], "rise_over_seeds": compared.get("theirs"),
            "random": compared.get("random"), "more": compared.get("more"),
        }  # fmt: skip
        for name, each in parts.items():
            for end, column in (("mean", name), ("low", f"{name}_low"), ("high", f"{name}_high")):
                assert row[column] == ("" if each is None else repr(each[end]))


def test_the_schema_asks_for_every_key_and_the_page_names_it(
    model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = found(capsys, model, "--corpus", corpus, *ASKED)
    for key in said:
        assert faults({name: each for name, each in said.items() if name != key}), key
    assert set(said) == set(schema()["required"])
    page = (Path(__file__).parents[2] / "docs" / "ablation.md").read_text(encoding="utf-8")
    keys = {*said, *said["read"], *said["how"], *said["steps"][1], *said["steps"][1]["loss"]}
    keys |= set(said["steps"][1]["against_random"])
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_the_ways_are_those_that_there_are() -> None:
    assert tuple(method.name for method in METHODS) == NAMES


def test_a_figure_has_the_numbers(
    model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "pictures"
    given = (model, "--corpus", corpus, *ASKED, "--figures", str(folder))
    assert run(*given) == 0
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["ablation.png", "ablation.svg"]
    assert f"2 figures written to: {folder}" in capsys.readouterr().err


@pytest.mark.parametrize(("heads", "label"), [(HEADS, "removed heads"), ("all", "removed heads")])
def test_the_figure_draws_the_rise_of_both(
    model: str,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    heads: str,
    label: str,
) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []

    def kept(made: Any, _: Path) -> list[Any]:
        drawn.extend(made)
        return drawn

    monkeypatch.setattr("headwise.plots.album.write", kept)
    asked = ("--heads", heads, "--against", "random", "--seeds", "3", "--figures", "x")
    said = found(capsys, model, "--corpus", corpus, *asked)
    ((name, figure),) = drawn
    axes = figure.axes[0]
    assert name == "ablation"
    compared = [step["against_random"] for step in said["steps"][1:]]
    for line, part in zip(axes.lines, ("theirs", "random"), strict=True):
        assert list(line.get_ydata()) == [0.0, *(each[part]["mean"] for each in compared)]
        out = "share" if heads == "all" else "count"
        times = 100 if heads == "all" else 1
        assert list(line.get_xdata()) == [times * step[out] for step in said["steps"]]
    assert axes.get_xlabel().startswith(label)
    assert axes.get_xlabel().endswith("%") == (heads == "all")


# What it refuses: one line that names the option, and nothing is written.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["M", "--heads", "L0H0"], "sentence: expected exactly one of SENTENCE, --text, --corpus"),
        (["M", "w1", "--text", "a", "--heads", "L0H0"], "got SENTENCE and --text; --probe"),
        (["M", "--corpus", "C"], "heads: expected either --heads or --open, got neither; use -"),
        (["M", "--corpus", "C", "--heads", "L0H0", "--open", "r"], "--open, got both; use --heads"),
        (["M", "--corpus", "C", "--open", "r"], "open: --open requires --named; leave out -"),
        (["M", "w1", "--heads", "L0H0", "--named", "x"], "named: --named requires --open"),
        (["M", "w1", "--heads", "L0H0", "--seeds", "2"], "seeds: --seeds requires --against"),
        (["M", "w1", "--heads", "L0H0", "--truncate"], "truncate: --truncate requires --corpus"),
        (["M", "w1", "--heads", "L0H0", "--paragraphs"], "paragraphs: --paragraphs requires --co"),
        (
            ["M", "--probe", "repeated", "--length", "9", "--heads", "L0H0"],
            "length: --length requires SENTENCE, --text or --corpus",
        ),
        (["M", "--corpus", "C", "--heads", "cats"], "heads: expected names such as L0H2"),
        (["M", "--corpus", "C", "--heads", "L0H6"], "heads: L0H6 does not exist; this model has"),
        (["M", "--corpus", "C", "--heads", "L2H0"], "heads: L2H0 does not exist; this model has"),
        (["M", "--corpus", "C", "--heads", "cross.L0H0"], "heads: cross.L0H0 does not exist"),
        (["M", "--corpus", "C", "--heads", ""], "heads: expected names such as L0H2"),
        (["M", "--corpus", "E", "--heads", "L0H0"], "has no document; use a file with some text"),
        (["M", "--corpus", "/no/a.txt", "--heads", "L0H0"], "corpus: cannot read /no/a.txt"),
        (["M", "--corpus", "a.doc", "--heads", "L0H0"], "corpus: expected the file extension"),
        (["M", "--corpus", "O", "--heads", "L0H0"], "a.txt:1: expected at least 2 tokens, got 1"),
        (["M", "--text", "/no/a.txt", "--heads", "L0H0"], "text: cannot read /no/a.txt"),
        (["M", "", "--heads", "L0H0"], "sentence: expected some text, got an empty one"),
        (["M", "w1 w2 w3", "--heads", "L0H0"], "sentence: expected at least 2 texts for the lo"),
        (["M", "w1 w2", "--length", "114", "--heads", "L0H0"], "length: got 114 tokens"),
        (["M", "w1 w2", "--length", "1", "--heads", "L0H0"], "'--length': 1 is not in the range"),
        (["M", "w1", "--heads", "L0H0", "--how", "none"], "'--how': 'none' is not one of"),
        (["M", "w1", "--heads", "L0H0", "--order", "x"], "'--order': 'x' is not one of"),
        (["M", "w1", "--heads", "L0H0", "--seed", "-1"], "'--seed': -1 is not in the range"),
        (
            ["M", "--corpus", "C", "--heads", "L0H0", "--against", "random"],
            ("corpus: expected at least 20 texts for the loss, got 12; use more text or a smaller "
            "--length, or fewer --seeds"),
        ),
        (
            ["M", "--probe", "repeated", "--texts", "3", "--heads", "L0H0", "--how", "mean",
             "--against", "random", "--seeds", "2"],
            ("probe: expected at least 4 texts for the loss and as many reference texts for "
            "--how mean, got 2; use a larger --texts"),
        ),
        (
            ["M", "--corpus", "C", "--heads", ",".join(f"L{i}H{j}" for i in range(2)
             for j in range(4)), "--against", "random", "--seeds", "2"],
            "against: cannot sample 8 random heads from the 4 others of 12; choose fewer heads",
        ),
        (["M", "w1", "--heads", "L0H0", "--format", "parquet"], "'parquet' is not one of"),
        (["M", "--corpus", "C", "--heads", "L0H0", "--output", "C"], "output: expected a file"),
        (["M", "w1", "--heads", "L0H0", "--output", "M/config.json"], "output: expected a file"),
        (["M", "w1", "--heads", "L0H0", "--figures", "C"], "figures: cannot write into the folder"),
        (["M", "w1", "--heads", "L0H0", "--figures", LONG], "figures: cannot write into the"),
        (["M", "w1", "--open", LONG, "--named", "x"], "File name too long"),
        (["M", "w1", "--open", "C", "--named", "x"], "open: expected a folder from `inspect --sa"),
        (["M", "w1", "--open", "/no", "--named", "x"], "`--probe`, got /no: No such file"),
        (["M", "w1", "--open", "D", "--named", "x"], "open: expected a folder from --save, got"),
        (["./nowhere", "w1", "--heads", "L0H0"], "model: './nowhere' is not a directory"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(
    model: str,
    corpus: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    said: str,
) -> None:
    for name, content in (("empty", " \n\n"), ("one", "w1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(content, encoding="utf-8")
    places = {
        "M": model, "C": corpus, "D": str(tmp_path), "M/config.json": f"{model}/config.json",
        "E": str(tmp_path / "empty" / "a.txt"), "O": str(tmp_path / "one" / "a.txt"),
    }  # fmt: skip
    config = Path(model, "config.json").read_bytes()
    output = () if "--output" in given else ("--output", str(tmp_path / "out.json"))
    assert run(*(places.get(word, word) for word in given), *output) == BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    assert said in err
    errors = [line for line in err.splitlines() if not line.endswith("…")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert not (tmp_path / "out.json").exists()
    assert Path(model, "config.json").read_bytes() == config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"schema": "headwise.run/1"}, "`--probe`, got"),
        ({"names": []}, "has no head named 'induction'; the names in it are: –"),
        ({"names": 3}, "`--probe`, got"),
        (
            {"model": {"heads": 72}},
            "open: the run measured a model with type llama, layers 2, heads",
        ),
        ({"model": {"type": "bert"}}, "open: the run measured a model with type bert, layers"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(
    model: str,
    corpus: str,
    json_run: Path,
    capsys: pytest.CaptureFixture[str],
    values: dict[str, Any],
    said: str,
) -> None:
    asked = ("--open", str(changed(json_run, **values)), "--named", "induction")
    assert run(model, "--corpus", corpus, *asked) == BAD_INPUT
    assert said in capsys.readouterr().err


def saved(folder: Path, made: nn.Module, *, special: bool = False) -> str:
    made.save_pretrained(folder)
    tiny.tokenizer(special=special).save_pretrained(folder)
    return str(folder)


def without_projection() -> nn.Module:
    return tiny.llama()


def unknown() -> nn.Module:
    from transformers import FNetConfig, FNetModel

    config = FNetConfig(
        vocab_size=31, hidden_size=21, num_hidden_layers=1, intermediate_size=13,
        max_position_embeddings=37,
    )  # fmt: skip
    return FNetModel(config)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("cats", "/run.json: heads: expected names such as L0H2"),
        ("L9H9", "open: the run measured another model (heads: L9H9 does not exist; this model"),
        ("cross.L0H0", "open: the run measured another model (heads: cross.L0H0 does not ex"),
    ],
)
def test_a_head_of_a_run_that_is_none_is_the_runs_mistake(
    model: str,
    corpus: str,
    json_run: Path,
    capsys: pytest.CaptureFixture[str],
    head: str,
    said: str,
) -> None:
    named = json.loads(json_run.read_text(encoding="utf-8"))["names"][0]
    file = changed(json_run, names=[{**named, "head": head}])
    asked = ("--open", str(file), "--named", "induction")
    assert run(model, "--corpus", corpus, *asked) == BAD_INPUT
    err = capsys.readouterr().err
    assert "error: open: " in err
    assert said in err


@pytest.mark.parametrize("times", [7, 12])
def test_a_head_that_a_run_names_several_times_goes_once(
    model: str, corpus: str, json_run: Path, capsys: pytest.CaptureFixture[str], times: int
) -> None:
    """Seven of twelve would leave too few others, and twelve be all there are."""
    named = json.loads(json_run.read_text(encoding="utf-8"))["names"][0]
    file = changed(json_run, names=[named] * times)
    asked = (model, "--corpus", corpus, "--against", "random", "--seeds", "3")
    said = found(capsys, *asked, "--open", str(file), "--named", "induction")
    assert said == found(capsys, *asked, "--heads", named["head"])


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("w1", "--probe", "repeated"),
        ("--probe", "repeated", "--length", "9"),
        ("w1", "--paragraphs"),
        ("w1", "--truncate"),
        ("w1", "--named", "x"),
        ("w1", "--seeds", "2"),
    ],
)
def test_what_does_not_go_together_is_said_in_chinese(
    model: str, capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
) -> None:
    assert run(model, *given, "--heads", "L0H0", lang="zh") == BAD_INPUT
    said = capsys.readouterr().err.partition("；")[0].partition("：")[2]
    words = re.sub(r"--[a-z]+|^[a-z]+：|SENTENCE", "", said)
    assert not re.search("[A-Za-z]", words), said


def test_another_layout_is_said_in_chinese(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "one.json")
    assert main(["inspect", model, "w1 w2 w3", "--output", file]) == 0
    for lang, said in (("en", "its schema is not "), ("zh", "其 schema 不是 ")):
        assert run(model, "w1", "--open", file, "--named", "x", lang=lang) == BAD_INPUT
        assert f"{said}headwise.inspect.corpus/1" in capsys.readouterr().err


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    ("make", "en", "zh"),
    [
        (tiny.bert, "model: M does not predict the next token (encoder.layer.0.attention",
         "model：M 不预测下一词元（encoder.layer.0"),
        (without_projection, "next token (it returns no logits, and its embeddings are not tied)",
         "不预测下一词元（它不返回 logits，且未共享词嵌入与输出权重）；请使用"),
        (unknown, "model: FNetModel has no attention with a supported layout of projections; su",
         "model：FNetModel 中没有投影结构受支持的注意力"),
        (tiny.bart, "text: M is an encoder-decoder, which needs a target for each text; use",
         "text：M 是编码器-解码器，每个文本都需要目标"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_measured_says_why_and_the_way_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[], nn.Module],
    en: str,
    zh: str,
    lang: str,
) -> None:
    model = saved(tmp_path / "m", make())
    (tmp_path / "a.txt").write_text("the cat sat on a mat the mat", encoding="utf-8")
    heads = "encoder.L0H0" if make is tiny.bart else "L0H0"
    given = (model, "--text", str(tmp_path / "a.txt"), "--length", "4", "--heads", heads)
    assert run(*given, "--output", str(tmp_path / "a.json"), lang=lang) == BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    assert (en if lang == "en" else zh) in err.replace(model, "M")
    assert not (tmp_path / "a.json").exists()


def test_an_encoder_decoder_is_measured_on_whole_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import BartForConditionalGeneration

    model = saved(tmp_path / "m", made(BartForConditionalGeneration(tiny.bart().config)))
    rows = [{"text": "the cat sat", "target": "a mat on"}, {"text": "a mat", "target": "the cat"}]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    said = found(capsys, model, "--corpus", str(file), "--heads", "cross.L1H0,decoder.L2H2")
    loaded = load(model, predicting=True)
    numbers = []
    for row in rows:
        read, wrote = (
            loaded.tokenizer(row[key], return_tensors="pt")["input_ids"]
            for key in ("text", "target")
        )
        start = torch.full((1, 1), loaded.config.decoder_start_token_id)
        behind = torch.cat((start, wrote[:, :-1]), 1)
        given = {"input_ids": read, "decoder_input_ids": behind}
        numbers.append(next_token_loss(loaded.model, given).double())
    assert said["steps"][0]["loss"]["mean"] == torch.cat(numbers).mean().item()
    assert run(model, "--corpus", str(file), "--length", "2", "--heads", "all") == BAD_INPUT
    assert "length: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("heads", "target", "stack"),
    [
        ("encoder.L0H0", "a mat", Translated("encoder", "编码器")),
        ("cross.L0H0", "a mat on", Translated("decoder", "解码器")),
        ("cross.L0H0", "a mat", None),
    ],
)
@pytest.mark.parametrize("drawn", [False, True])
def test_resampling_wants_one_length_in_the_stacks_whose_heads_may_go(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    heads: str,
    target: str,
    stack: Text | None,
    drawn: bool,
) -> None:
    """The encoder's texts are not of one length; where heads are drawn, its may be."""
    from transformers import BartForConditionalGeneration

    model = saved(tmp_path / "m", made(BartForConditionalGeneration(tiny.bart().config)))
    rows = [{"text": text, "target": "a mat"} for text in 7 * ["the cat", "the cat sat"]]
    rows[3]["target"] = target
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    against = ("--against", "random", "--seeds", "2") if drawn else ()
    given = (model, "--corpus", str(file), "--heads", heads, "--how", "resample", *against)
    if stack is None and not drawn:
        assert found(capsys, *given)["read"]["texts"] == 7
        return
    first = stack or Translated("encoder", "编码器")
    for lang, said in (
        ("en", f"needs texts of equal length, got 2 to 3 tokens in the {first.en}; use --how mean"),
        ("zh", f"收到 2 到 3 个词元（{first.zh}）；请用 --how mean"),
    ):
        capsys.readouterr()
        assert run(*given, lang=lang) == BAD_INPUT
        err = capsys.readouterr().err
        assert said in err
        assert re.search(r"how(: |：)'resample'", err)


@pytest.mark.parametrize("against", [(), ("--against", "random", "--seeds", "3")])
def test_resampling_says_before_the_work_that_too_much_would_be_kept(
    model: str,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    against: tuple[str, ...],
) -> None:
    """To the number that is refused while it is read."""
    given = (model, "--corpus", corpus, "--heads", HEADS, "--how", "resample", *against)
    kept = 6 * 7 * 3 * 10  # texts, tokens, heads, and what each puts out
    monkeypatch.setattr("headwise.heads.ablation.methods.MOST_NUMBERS", kept)
    monkeypatch.setattr("headwise.heads.ablation.experiment.texts.MOST_NUMBERS", kept)
    found(capsys, *given)
    monkeypatch.setattr("headwise.heads.ablation.methods.MOST_NUMBERS", kept - 1)
    assert run(*given) == BAD_INPUT
    assert "stores at most 1259 values of reference" in capsys.readouterr().err
    monkeypatch.setattr("headwise.heads.ablation.experiment.texts.MOST_NUMBERS", kept - 1)
    assert run(*given) == BAD_INPUT
    err = capsys.readouterr().err
    assert "how: 'resample' would store 1260 values of reference outputs; the limit is 1259" in err
    assert "removing heads" not in err


def test_a_pass_is_no_larger_where_the_encoder_reads_more() -> None:
    text = {
        "input_ids": torch.zeros(1, TOGETHER // 3),
        "attention_mask": torch.ones(1, TOGETHER // 3),
        "decoder_input_ids": torch.zeros(1, 2),
    }
    assert [batch["input_ids"].shape[0] for batch in together([text] * 7)] == [3, 3, 1]
    sound = {"input_features": torch.zeros(1, 5, TOGETHER), "decoder_input_ids": torch.zeros(1, 2)}
    assert [batch["input_features"].shape[0] for batch in together([sound] * 2)] == [1, 1]


def test_uniform_names_the_option_where_it_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import T5ForConditionalGeneration

    config = tiny.t5().config
    config.decoder_start_token_id = 0
    model = saved(tmp_path / "m", made(T5ForConditionalGeneration(config)))
    asked = ("--heads", "decoder.L0H0", "--how", "uniform")
    assert run(model, "--corpus", "a.txt", *asked) == BAD_INPUT
    assert "error: how: 'uniform' sets queries" in capsys.readouterr().err


def test_a_missing_matplotlib_is_said_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    asked = ("--heads", "all", "--figures", "x")
    assert run("./no-such-model", "the cat", *asked) == BAD_INPUT
    assert "pip install 'headwise[plots]'" in capsys.readouterr().err


def test_a_bar_is_drawn_on_a_terminal(
    model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert run(model, "--corpus", corpus, "--heads", "L0H0", lang="zh") == 0
    assert "文本" in screen.getvalue()
    assert "24/24" in screen.getvalue()


@pytest.mark.slow
def test_an_induction_head_of_a_trained_model_costs_more_than_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not is_cached(model_named("smollm2")):
        pytest.skip("smollm2 is not here: headwise models get smollm2")
    asked = ("--heads", "L18H6,L11H4", "--against", "random", "--seeds", "2", "--seed", "1")
    said = found(capsys, "smollm2", "--probe", "repeated", "--texts", "4", *asked)
    last = said["steps"][-1]["against_random"]
    assert last["more"]["low"] > 0.5  # nats
    assert last["random"]["high"] < last["theirs"]["low"]
    loaded = load("smollm2")
    ids = torch.tensor(sequences(loaded, 1)[:4])
    python = against_random(
        loaded.model,
        lambda seed: {"input_ids": ids[seed - 1 :: 2], "attention_mask": torch.ones(2, 100)},
        "L18H6,L11H4",
        partial(next_token_loss, start=TOKENS),
        seeds=(1, 2),
    )
    assert interval(last["more"]) == python.more


@pytest.mark.slow
def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    if not is_cached(model_named("rxnmapper")):
        pytest.skip("rxnmapper is not here: headwise models get rxnmapper")
    page = (Path(__file__).parents[2] / "docs" / "ablation.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "ablation.md", "exec"), space)  # noqa: S102 - our own text
    assert capsys.readouterr().out.splitlines()[2].startswith("2 ")
    assert (tmp_path / "curve.png").stat().st_size > 0

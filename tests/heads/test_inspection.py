"""The inspection of one text with a tiny model: values, heat maps, files and errors."""

import json
import math

import pytest
import torch

from headwise.document import HeatMap, Paragraph, Table, html, markdown, terminal
from headwise.errors import BadFile, BadValue
from headwise.heads.inspection import Inspection, highlights, inspect
from headwise.heads.inspection_export import SCHEMA, as_json
from headwise.heads.inspection_report import MOST_TOKENS, report
from headwise.heads.metrics import MEASURED, METRICS, KeyContext, Rows
from headwise.heads.models.load import Loaded, load
from headwise.heads.names import Head, Layer, parse_heads
from headwise.heads.statistics import Statistics
from headwise.lang import LANGS
from headwise.verify.oracle.tolerance import accept
from tests.heads.tiny import HOSTILE, bart, bert, gpt2, saved, t5, tokenizer

SENTENCE = "the cat sat on a mat"
LONG = " ".join(["cat"] * 41)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(saved(tmp_path_factory.mktemp("models") / "tiny")))


def test_tokens_and_every_head_are_there(loaded: Loaded) -> None:
    seen = inspect(loaded, SENTENCE)
    assert seen.tokens == ("[CLS]", *SENTENCE.split(), "[SEP]")
    assert seen.targets == seen.tokens
    assert [str(head) for head in seen.statistics.heads()] == [
        f"L{layer}H{head}" for layer in range(2) for head in range(3)
    ]


def test_maps_are_the_weights_of_the_heads_asked_for(loaded: Loaded) -> None:
    seen = inspect(loaded, SENTENCE, heads=parse_heads("L1H2,L0H1"))
    assert [str(head) for head in seen.maps] == ["L1H2", "L0H1"]
    ids = loaded.tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        plain = bert("eager")(input_ids=ids, output_attentions=True).attentions
        oracle = bert("eager").double()(input_ids=ids, output_attentions=True).attentions
    for head, weights in seen.maps.items():
        layer, number = head.layer.number, head.number
        accept(weights, plain[layer][0, number], oracle[layer][0, number])


def test_all_asks_for_every_head(loaded: Loaded) -> None:
    assert len(inspect(loaded, SENTENCE, heads="all").maps) == 6


def test_a_causal_model_has_nan_where_nothing_is_allowed() -> None:
    given = Loaded("toy", "directory", gpt2(), tokenizer(special=False))
    seen = inspect(given, SENTENCE, heads=parse_heads("L0H0"))
    weights = seen.maps[Head.parse("L0H0")]
    assert bool(weights.isnan().equal(torch.ones(6, 6, dtype=torch.bool).triu(1)))
    assert "null" in as_json(seen)


def test_a_tokenizer_without_special_tokens_has_no_separators() -> None:
    given = Loaded("toy", "directory", gpt2(), tokenizer(special=False))
    seen = inspect(given, SENTENCE)
    assert seen.tokens == tuple(SENTENCE.split())
    values = json.loads(as_json(seen))["heads"][0]["values"]
    assert values["separators"] is None
    assert values["next"] is None
    assert values["first"] is not None


@pytest.mark.parametrize("make", [bart, t5], ids=lambda make: make.__name__)
def test_an_encoder_decoder_reads_the_text_twice(make) -> None:
    given = Loaded("toy", "directory", make(), tokenizer())
    heads = parse_heads("encoder.L0H0,decoder.L0H0,cross.L2H2")
    seen = inspect(given, SENTENCE, heads=heads)
    assert seen.targets[1:] == seen.tokens[:-1]
    assert seen.sides(heads[0]) == (seen.tokens, seen.tokens)
    assert seen.sides(heads[1]) == (seen.targets, seen.targets)
    assert seen.sides(heads[2]) == (seen.targets, seen.tokens)
    assert "shifted by one token" in terminal.render(report(seen), "en")


def test_one_token_is_enough() -> None:
    given = Loaded("toy", "directory", gpt2(), tokenizer(special=False))
    seen = inspect(given, "cat")
    assert seen.tokens == ("cat",)
    for lang in LANGS:
        assert terminal.render(report(seen), lang)


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_text_is_refused(loaded: Loaded, text: str) -> None:
    with pytest.raises(BadValue, match=r"sentence: expected some text, got an empty one"):
        inspect(loaded, text)


def test_a_text_without_tokens_is_refused() -> None:
    def none(*text: str, **how: object) -> dict[str, list[int]]:
        return {"input_ids": []}

    empty = Loaded("toy", "directory", gpt2(), none)
    with pytest.raises(BadValue, match="the tokenizer of toy returns no tokens"):
        inspect(empty, SENTENCE)


def test_a_long_text_is_refused_or_cut(loaded: Loaded) -> None:
    with pytest.raises(BadValue, match=r"43 tokens, but .* accepts at most 37; .*--truncate"):
        inspect(loaded, LONG)
    seen = inspect(loaded, LONG, truncate=True)
    assert (len(seen.tokens), seen.whole) == (37, 43)
    assert seen.tokens[-1] == "[SEP]"
    assert "The text has 43 tokens and was truncated" in terminal.render(report(seen), "en")


@pytest.mark.parametrize("name", ["L2H0", "L0H3", "cross.L0H0"])
def test_a_head_that_does_not_exist_is_refused(loaded: Loaded, name: str) -> None:
    with pytest.raises(BadValue, match=rf"heads: {name} does not exist; .* L0H0 … L1H2, counted"):
        inspect(loaded, SENTENCE, heads=parse_heads(name))


def test_a_word_in_place_of_heads_is_refused(loaded: Loaded) -> None:
    with pytest.raises(BadValue, match="heads: expected heads or 'all', got 'L0H2'"):
        inspect(loaded, SENTENCE, heads="L0H2")


def test_more_weights_than_can_be_drawn_are_refused(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.heads import inspection

    monkeypatch.setattr(inspection, "MOST_CELLS", 200)
    with pytest.raises(BadValue, match=r"6 heads on 8 tokens have 384 weights.* choose 3 heads"):
        inspect(loaded, SENTENCE, heads="all")
    assert len(inspect(loaded, SENTENCE).maps) <= 3


def test_a_tokenizer_of_another_model_is_one_clear_line() -> None:
    class Shifted:
        unk_token_id = mask_token_id = None
        all_special_ids = ()
        model_max_length = 37

        def __call__(self, text: str, **how: object) -> dict[str, object]:
            ids = [1000 + len(text), 1001]
            return {"input_ids": torch.tensor([ids]) if "return_tensors" in how else ids}

    given = Loaded("toy", "directory", bert(), Shifted())
    with pytest.raises(BadFile, match=r"toy does not run on this text \(IndexError.*own tokenizer"):
        inspect(given, SENTENCE)


def constructed(pattern: torch.Tensor, heads: int = 5) -> Statistics:
    """A layer whose head 3 has that pattern, and whose others attend to everything alike."""
    length = pattern.shape[0]
    weights = torch.full((1, heads, length, length), 1.0 / length, dtype=torch.float64)
    weights[0, 3] = pattern
    statistics = Statistics()
    context = KeyContext(
        allowed=torch.ones(1, 1, length, length, dtype=torch.bool),
        counts=torch.ones(1, length, dtype=torch.bool),
        position=torch.arange(length),
        first=torch.tensor([0]),
    )
    statistics.add(Layer("", 0), Rows(weights=weights, context=context))
    return statistics


@pytest.mark.parametrize(
    ("order", "name"),
    [([0, 0, 1, 2, 3, 4, 5], "previous"), ([1, 2, 3, 4, 5, 6, 6], "next"), ([0] * 7, "first")],
)
def test_a_constructed_head_stands_out_and_alone(order: list[int], name: str) -> None:
    (fact,) = highlights(constructed(torch.eye(7)[order]))
    assert (str(fact.head), fact.metric.name, fact.value) == ("L0H3", name, 1.0)
    assert fact.uniform == fact.usual


def test_what_a_uniform_head_would_show_as_well_does_not_stand_out() -> None:
    assert highlights(constructed(torch.tensor([[0.4, 0.6], [0.6, 0.4]]))) == ()


def test_a_model_without_any_share_has_no_facts() -> None:
    statistics = Statistics()
    one = torch.ones(1, 1, 1, 1)
    context = KeyContext(
        allowed=one.bool(),
        counts=torch.zeros(1, 1, dtype=torch.bool),
        position=None,
        first=torch.tensor([0]),
    )
    statistics.add(Layer("cross", 0), Rows(weights=one, context=context))
    assert highlights(statistics) == ()


def test_random_weights_name_no_neighbour_at_all() -> None:
    """A fresh model of MiniLM's shape: its best previous-token head on a normal sentence."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=31, hidden_size=48, num_hidden_layers=6, num_attention_heads=12,
        intermediate_size=59, max_position_embeddings=37,
    )  # fmt: skip
    given = Loaded("fresh", "directory", BertModel(config).eval(), tokenizer())
    seen = inspect(given, " ".join(["the cat sat on a mat 我 爱 你"] * 3))
    previous = next(metric for metric in METRICS if metric.name == "previous")
    best = max(seen.statistics.value(previous, head) for head in seen.statistics.heads())
    assert best < 0.05
    assert highlights(seen.statistics) == ()
    assert "No head gives most of its attention" in terminal.render(report(seen), "en")


def test_json_says_all_and_is_stable(loaded: Loaded) -> None:
    seen = inspect(loaded, SENTENCE, heads=parse_heads("L0H1"))
    found = json.loads(as_json(seen))
    assert list(found) == [
        "schema", "headwise", "model", "text", "tokens", "targets", "tokens_in_text", "metrics",
        "heads", "uniform", "standing_out", "weights",
    ]  # fmt: skip
    assert found["schema"] == SCHEMA == "headwise.inspect/1"
    assert found["text"] == SENTENCE
    assert found["tokens"] == list(seen.tokens)
    assert found["model"]["heads"] == len(found["heads"]) == 6
    assert found["model"]["parameters"] == sum(w.numel() for w in loaded.model.parameters())
    names = [metric.name for metric in MEASURED]
    assert [entry["name"] for entry in found["metrics"]] == names
    assert all(list(entry["values"]) == names for entry in found["heads"] + found["uniform"])
    (drawn,) = found["weights"]
    assert drawn["head"] == "L0H1"
    assert torch.equal(torch.tensor(drawn["rows"]), seen.maps[Head.parse("L0H1")])
    assert as_json(inspect(loaded, SENTENCE, heads=parse_heads("L0H1"))) == as_json(seen)


@pytest.fixture(scope="module")
def hostile(loaded: Loaded) -> Inspection:
    return inspect(loaded, " ".join(HOSTILE), heads="all")


@pytest.mark.parametrize("lang", LANGS)
def test_hostile_tokens_are_shown_and_not_obeyed(hostile: Inspection, lang) -> None:
    assert hostile.tokens[1:-1] == HOSTILE
    document = report(hostile)
    page = html.render(document, lang)
    assert "<b>bold" not in page
    assert page.count("</script>") == page.count("<script")
    for render in (terminal.render, markdown.render, html.render):
        written = render(document, lang)
        assert "\x1b" not in written
        assert "\u202e" not in written
        assert "bold" in written
    assert as_json(hostile).isascii()


@pytest.mark.parametrize("lang", LANGS)
def test_the_report_speaks_one_language(loaded: Loaded, lang) -> None:
    written = terminal.render(report(inspect(loaded, SENTENCE)), lang)
    assert ("注意力" in written) == (lang == "zh")
    assert ("attention" in written) == (lang == "en")


def test_the_report_has_a_row_for_every_head_and_one_for_a_uniform_one(loaded: Loaded) -> None:
    seen = inspect(loaded, SENTENCE, heads=parse_heads("L0H1"))
    tables = [block for block in report(seen).blocks if isinstance(block, Table)]
    labels = [str(row[0]) for table in tables for row in table.rows]
    assert [label for label in labels if label == "uniform" or label.startswith("L")][-7:] == [
        "uniform",
        "L0H0",
        "L0H1",
        "L0H2",
        "L1H0",
        "L1H1",
        "L1H2",
    ]
    (drawn,) = [block for block in report(seen).blocks if isinstance(block, HeatMap)]
    assert list(drawn.rows) == list(seen.tokens)
    assert str(drawn.title).startswith("L0H1")


def test_of_many_heads_only_the_extremes_are_shown(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.heads import inspection_report

    monkeypatch.setattr(inspection_report, "MOST_ROWS", 5)
    seen = inspect(loaded, SENTENCE)
    written = terminal.render(report(seen), "en")
    assert "Highest and lowest of 6 heads" in written
    entropy = next(metric for metric in METRICS if metric.name == "entropy")
    best = max(seen.statistics.heads(), key=lambda head: seen.statistics.value(entropy, head))
    (table,) = [
        block
        for block in report(seen).blocks
        if isinstance(block, Table) and str(block.head[1]) == "highest"
    ]
    assert str(table.rows[0][1]).startswith(f"{best} ")


def test_layers_with_different_windows_have_baselines_of_their_own() -> None:
    from tests.heads.tiny import gemma2

    seen = inspect(Loaded("toy", "directory", gemma2(), tokenizer()), " ".join(["cat"] * 11))
    written = terminal.render(report(seen), "en")
    assert "uniform L0…L0" in written
    assert "uniform L1…L1" in written


def test_long_texts_and_tokens_are_shortened_in_the_list(loaded: Loaded) -> None:
    seen = inspect(loaded, SENTENCE)
    many = Inspection(seen.loaded, SENTENCE, ("x" * 99,) * 300, ("x",), 300, seen.statistics, {})
    listed = max((str(b.text) for b in report(many).blocks if isinstance(b, Paragraph)), key=len)
    assert listed.count(":") == MOST_TOKENS
    assert listed.endswith("…")
    assert "x" * 41 not in listed


def test_values_that_cannot_be_shown_are_null(loaded: Loaded) -> None:
    given = Loaded("toy", "directory", gpt2(), tokenizer(special=False))
    found = json.loads(as_json(inspect(given, "cat")))
    assert found["heads"][0]["values"]["entropy"] is None
    assert math.isfinite(found["heads"][0]["values"]["self"])


def test_every_share_that_a_head_can_stand_out_by_has_a_name() -> None:
    from headwise.heads.inspection_report import PLACES

    assert {metric.name for metric in METRICS if metric.share} == set(PLACES)

"""Losses with and without heads, their intervals, and the intervals of differences."""

import copy
import runpy
from collections import Counter
from functools import partial
from math import log
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.heads.ablation import (
    How,
    ablate,
    against_random,
    bootstrap,
    effect,
    effects,
    next_token_loss,
    repeated,
)
from headwise.heads.names import parse_heads
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny
from tests.heads.ablation.families import made, silenced, text

EXAMPLE = Path(__file__).parents[3] / "examples" / "induction_heads.py"


def causal(kind: str = "LlamaForCausalLM") -> nn.Module:
    import transformers

    config = {"Llama": tiny.llama, "GPT2LM": tiny.gpt2, "Bart": tiny.bart, "BertFor": tiny.bert}
    make = next(make for name, make in config.items() if kind.startswith(name))
    return made(getattr(transformers, kind)(make().config))


def test_the_loss_is_the_models_own_for_each_text() -> None:
    model = causal()
    batch = text()
    found = next_token_loss(model, batch)
    wide = copy.deepcopy(model).double()
    for row, real in ((0, 13), (1, 11)):
        ids = batch["input_ids"][row : row + 1, :real]
        with torch.no_grad():
            oracle, plain = (each(input_ids=ids, labels=ids).loss for each in (wide, model))
        accept(found[row], plain, oracle)


def test_without_its_last_projection_tied_embeddings_serve() -> None:
    model = causal("GPT2LMHeadModel")
    assert model.config.tie_word_embeddings
    wide = copy.deepcopy(model).double()
    found = next_token_loss(model.transformer, text())
    accept(found, next_token_loss(model, text()), next_token_loss(wide, text()))


def test_a_decoders_loss_is_on_the_decoders_tokens() -> None:
    model = causal("BartForConditionalGeneration")
    ids = text(4)["input_ids"]
    batch = {"input_ids": text()["input_ids"], "decoder_input_ids": ids[:, :7]}
    found = next_token_loss(model, batch)
    with torch.no_grad():
        logits = copy.deepcopy(model).double()(**batch).logits.log_softmax(-1)
        plain = model(**batch).logits.log_softmax(-1)
    each = [-x[:, :-1].gather(2, ids[:, 1:7, None]).squeeze(2).mean(1) for x in (plain, logits)]
    accept(found, *each)


def test_only_tokens_from_the_start_on_count() -> None:
    """Later tokens are certain, earlier ones were a guess."""

    class Known(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            logits = torch.zeros(1, 4, 2)
            logits[0, 2] = torch.tensor([0.0, -torch.inf])
            return logits

    ids = torch.zeros(1, 4, dtype=torch.long)
    assert next_token_loss(Known(), ids, start=3).item() == 0
    thirds = next_token_loss(Known(), ids).double() * 3
    exact = torch.tensor([2 * log(2)], dtype=torch.float64)
    accept(thirds.float(), exact.float(), exact)


def test_padding_on_the_left_predicts_nothing() -> None:
    class Bad(nn.Module):
        def forward(self, **_: Tensor) -> Tensor:
            logits = torch.zeros(1, 4, 2)
            logits[0, :2] = torch.tensor([-1e9, 0.0])  # wrong, from padding on
            return logits

    mask = torch.tensor([[0, 0, 1, 1]])
    batch = {"input_ids": torch.zeros(1, 4, dtype=torch.long), "attention_mask": mask}
    found = next_token_loss(Bad(), batch)
    exact = torch.tensor([log(2)], dtype=torch.float64)
    accept(found, exact.float(), exact)


@pytest.mark.parametrize(
    ("make", "batch", "message"),
    [
        (tiny.bert, text(), r"BertModel does not predict the next token \(encoder.layer.0.att"),
        (partial(causal, "BertForMaskedLM"), text(), "BertForMaskedLM does not predict"),
        (tiny.llama, text(), "its embeddings are not tied"),
        (causal, {"inputs_embeds": torch.zeros(1, 3, 24)}, r"needs input_ids \(B, L\)"),
        (causal, {"input_ids": text()["input_ids"][:, :1]}, "no token to predict at index 1"),
    ],
)
def test_where_nothing_is_predicted_it_is_said(make, batch, message) -> None:
    with pytest.raises(BadValue, match=message):
        next_token_loss(make(), batch)


def test_logits_that_do_not_fit_are_refused() -> None:
    class Flat(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            return torch.zeros(1, 3)

    with pytest.raises(BadValue, match=r"loss: expected logits of shape \(1, 3, 'V'\), got \(1, 3"):
        next_token_loss(Flat(), torch.zeros(1, 3, dtype=torch.long))


def test_capped_logits_are_not_guessed() -> None:
    model = tiny.gemma2()
    model.config.tie_word_embeddings = True
    with pytest.raises(BadValue, match="its tied embeddings alone do not give its logits"):
        next_token_loss(model, text())


def test_an_interval_of_two_values_is_known_exactly() -> None:
    """Resampled means are 0, 1/2, 1 with 1/4, 1/2, 1/4."""
    values = torch.tensor([0.0, 1.0])
    wide, narrow = bootstrap(values), bootstrap(values, confidence=0.4)
    assert (wide.low, wide.mean, wide.high) == (0.0, 0.5, 1.0)
    assert (narrow.low, narrow.high) == (0.5, 0.5)
    middle = bootstrap(values, confidence=0.6)
    assert (middle.low, middle.high) == (0.0, 1.0)
    assert (wide.examples, wide.confidence) == (2, 0.95)


def test_an_interval_holds_the_mean_about_as_often_as_it_says() -> None:
    torch.manual_seed(5)
    samples = torch.randn(200, 25)
    held = [bootstrap(row, resamples=400, confidence=0.9) for row in samples]
    count = sum(each.low <= 0 <= each.high for each in held)
    assert 160 <= count <= 190  # 180 expected, a few fewer for so few values


def test_the_seed_says_how_values_are_drawn(monkeypatch) -> None:
    values = torch.randn(40)
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1)
    assert bootstrap(values, seed=1) != bootstrap(values, seed=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(1), "values: expected at least 2 examples for an interval, got 1"),
        (torch.tensor([0.0, torch.nan]), "values: expected finite losses, got NaN"),
    ],
)
def test_no_interval_is_made_up(values, message) -> None:
    with pytest.raises(BadValue, match=message):
        bootstrap(values)


def test_an_effect_is_the_loss_without_less_the_loss_with() -> None:
    model, batches = causal(), [text(1), text(2)]
    found = effect(model, batches, "L0H1,L1H5")
    twin = silenced(model, parse_heads("L0H1,L1H5"))
    wide, wide_twin = copy.deepcopy(model).double(), copy.deepcopy(twin).double()
    with torch.no_grad():
        for one, plain, exact in ((found.clean, model, wide), (found.ablated, twin, wide_twin)):
            each = [torch.cat([next_token_loss(m, b) for b in batches]) for m in (plain, exact)]
            accept(one.float(), *each)
    assert found.interval == bootstrap(found.ablated - found.clean)
    assert (found.kind.name, [str(head) for head in found.heads]) == ("zero", ["L0H1", "L1H5"])


def test_groups_are_taken_out_one_after_the_other() -> None:
    model, how = causal(), How("mean", text(8), seed=3)
    several = effects(model, text(), ["L0H1", ["L1H0", "L1H1"]], how=how)
    for found, heads in zip(several, ("L0H1", "L1H0,L1H1"), strict=True):
        alone = effect(model, text(), heads, how=how)
        assert torch.equal(found.ablated, alone.ablated)
        assert found.interval == alone.interval
        assert found.kind.name == "mean"


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda *_: torch.tensor(1.0), r"loss: expected a tensor \(B,\).*shape \(\)"),
        (lambda *_: 1.0, r"loss: expected a tensor \(B,\).*got float"),
        (lambda *_: torch.tensor([torch.nan]), "loss: expected finite numbers"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss, message) -> None:
    with pytest.raises(BadValue, match=message):
        effect(tiny.llama(), text(), "L0H0", loss)


def test_dropout_is_not_measured_along() -> None:
    with pytest.raises(BadValue, match=r"model: expected eval mode"):
        effect(causal().train(), text(), "L0H0")


def test_the_corpus_must_be_one() -> None:
    with pytest.raises(BadType, match=r"batches: expected batches, got int"):
        effect(causal(), 3, "L0H0")
    with pytest.raises(BadValue, match=r"batches: expected at least one batch"):
        effect(causal(), [], "L0H0")


@pytest.fixture(scope="module")
def example() -> dict:
    return runpy.run_path(str(EXAMPLE))


def test_the_heads_that_induce_matter_more_than_others(example) -> None:
    model = example["ByHand"]().eval()
    loss = partial(next_token_loss, start=example["PERIOD"])

    def batch(seed: int) -> Tensor:
        return repeated(example["TOKENS"], period=example["PERIOD"], times=3, seed=seed)

    whole = effect(model, batch(0), "L0H2", loss)
    assert whole.clean.mean() < log(example["TOKENS"]) / 2  # it does predict what came before
    found = against_random(model, batch, "L0H0,L1H0", loss, seeds=range(4))
    assert found.more.low > 1
    assert found.random.high < found.theirs.low
    first = effect(model, batch(0), "L0H0,L1H0", loss)
    assert found.theirs.examples == 4
    again = against_random(model, batch, "L0H0,L1H0", loss, seeds=[0, 0])
    rise = (first.ablated - first.clean).mean().item()
    assert again.theirs.low == again.theirs.high == rise


def test_random_heads_are_others_and_as_many(example) -> None:
    model = example["ByHand"]().eval()
    taken = []
    loss_calls = Counter()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        loss_calls["runs"] += 1
        return torch.zeros(len(batch))

    import headwise.heads.ablation.loss_effects as measured

    real = measured.ablate

    def watched(model, heads, *args, **kwargs):
        taken.append(heads)
        return real(model, heads, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "ablate", watched)
        against_random(model, lambda _: repeated(5), "L0H0,L1H0", loss, seeds=range(5))
    chosen = set(parse_heads("L0H0,L1H0"))
    drawn = [frozenset(each) for each in taken[1::2]]
    assert all(set(each) == chosen for each in taken[::2])
    assert all(len(each) == 2 and not each & chosen for each in drawn)
    assert len(set(drawn)) > 1
    assert loss_calls["runs"] == 15


def test_too_few_others_are_said(example) -> None:
    model = example["ByHand"]().eval()
    heads = ",".join(f"L{layer}H{head}" for layer in range(2) for head in range(3))
    with pytest.raises(BadValue, match=r"heads: need 6 other heads to sample, got 2 of 8"):
        against_random(model, lambda seed: repeated(5, seed=seed), heads)


def test_repeated_tokens_repeat() -> None:
    ids = repeated([7, 9, 11], texts=3, period=5, times=4, seed=2)
    assert ids.shape == (3, 20)
    assert torch.equal(ids[:, :15], ids[:, 5:])
    assert set(ids.flatten().tolist()) == {7, 9, 11}
    assert torch.equal(ids, repeated([7, 9, 11], texts=3, period=5, times=4, seed=2))
    assert not torch.equal(ids, repeated([7, 9, 11], texts=3, period=5, times=4, seed=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 0}, "vocabulary: expected at least 1, got 0"),
        ({"vocabulary": 3, "texts": 0}, "texts: expected at least 1"),
        ({"vocabulary": 3, "period": 0}, "period: expected at least 1"),
        ({"vocabulary": 3, "times": 1}, "times: expected at least 2 occurrences"),
    ],
)
def test_nothing_is_not_repeated(options, message) -> None:
    with pytest.raises(BadValue, match=message):
        repeated(**options)


def test_an_effect_inside_an_ablation_is_of_what_is_left() -> None:
    model = causal()
    with ablate(model, "L0H0"):
        found = effect(model, text(), "L1H1")
    both = effect(model, text(), "L0H0,L1H1")
    assert torch.equal(found.ablated, both.ablated)


def test_pytorchs_attention_is_ablated_inside_an_ablation() -> None:
    layer = nn.MultiheadAttention(6, 3, batch_first=True).eval()
    x = torch.randn(1, 4, 6)
    with ablate(layer, "L0H0"), ablate(layer, "L0H2"):
        found, _ = layer(x, x, x)
    with ablate(layer, "L0H0,L0H2"):
        both, _ = layer(x, x, x)
    assert torch.equal(found, both)
    assert not torch.equal(both, layer(x, x, x)[0])
    assert isinstance(hw.convert(layer).model, hw.MultiheadAttention)

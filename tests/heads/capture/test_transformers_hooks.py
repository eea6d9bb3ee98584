"""Captured weights equal the weights of the model, and a capture does not change the output."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.capture import block_weights, capture
from headwise.heads.capture import transformers_hooks as capture_file
from headwise.heads.capture.transformers_hooks import OWN
from headwise.heads.metrics import METRICS
from headwise.heads.names import Head, Layer, parse_heads
from headwise.verify.oracle.tolerance import accept
from tests.heads.ablation.families import LENGTH, REAL, text, two_texts
from tests.heads.tiny import (
    ONE_STACK,
    PLAIN_ONLY,
    TWO_STACKS,
    Make,
    albert,
    bart,
    bert,
    gemma2,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    t5,
)


def answer(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def every_head(parts: dict[str, tuple[int, int]]) -> tuple[Head, ...]:
    return tuple(
        Head(Layer(part, layer), head)
        for part, (layers, heads) in parts.items()
        for layer in range(layers)
        for head in range(heads)
    )


def exact_copy(model: nn.Module, make: Make) -> nn.Module:
    """The same weights in float64, run by transformers' own eager attention: the oracle."""
    twin = make("eager").double()
    twin.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    return twin


def eager_weights(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
    """Weights by part, as transformers' eager attention returns them."""
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    if getattr(out, "encoder_attentions", None) is not None:
        return {
            "encoder": out.encoder_attentions,
            "decoder": out.decoder_attentions,
            "cross": out.cross_attentions,
        }
    return {"": out.attentions}


def real_rows(part: str, inputs: dict[str, Tensor]) -> Tensor:
    name = "decoder_attention_mask" if part in ("decoder", "cross") else "attention_mask"
    return inputs[name].bool()


def check_weights(make: Make, inputs: dict[str, Tensor], implementation: str) -> None:
    model = make(implementation)
    twin = make("eager")
    twin.load_state_dict(model.state_dict())
    plain = eager_weights(twin, inputs)
    oracle = eager_weights(exact_copy(model, make), inputs)
    parts = {part: (len(layers), layers[0].shape[1]) for part, layers in oracle.items()}
    heads = every_head(parts)
    with capture(model, heads=heads) as seen:
        answer(model, inputs)
    assert set(seen.weights) == set(heads)
    assert set(seen.statistics.heads()) == set(heads)
    for head in heads:
        part, layer = head.layer.part, head.layer.number
        real = real_rows(part, inputs)
        accept(
            seen.weights[head][real],
            plain[part][layer][:, head.number][real],
            oracle[part][layer][:, head.number][real],
        )


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("make", ONE_STACK, ids=lambda make: make.__name__)
def test_weights_are_those_of_eager_attention(make: Make, implementation: str) -> None:
    check_weights(make, text(), implementation)


@pytest.mark.parametrize("make", PLAIN_ONLY, ids=lambda make: make.__name__)
def test_soft_caps_and_sinks_are_honoured(make: Make) -> None:
    check_weights(make, text(), "eager")


@pytest.mark.parametrize("make", TWO_STACKS, ids=lambda make: make.__name__)
def test_encoder_decoder_and_cross_attention_are_told_apart(make: Make) -> None:
    check_weights(make, two_texts(), "sdpa")


def test_a_sink_takes_its_share() -> None:
    model = gpt_oss()
    head = Head.parse("L0H0")
    with capture(model, heads=[head]) as seen:
        answer(model, text())
    rows = seen.weights[head][0].sum(-1)
    assert bool((rows < 1).all())
    assert bool((rows > 0).all())


def test_without_padding_causal_order_is_still_kept() -> None:
    ids = text()["input_ids"]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    check_weights(llama, inputs, "sdpa")
    check_weights(gpt2, inputs, "sdpa")


@pytest.mark.parametrize(
    "make", [*ONE_STACK, *PLAIN_ONLY, *TWO_STACKS], ids=lambda make: make.__name__
)
def test_the_answer_stays_the_same_and_the_model_is_left_as_it_was(make: Make) -> None:
    model = make()
    inputs = two_texts() if make in TWO_STACKS else text()
    name = model.config._attn_implementation
    before = answer(model, inputs)
    with capture(model):
        during = answer(model, inputs)
    after = answer(model, inputs)
    accept(during, before, answer(exact_copy(model, make), inputs))
    assert torch.equal(during, before)
    assert torch.equal(after, before)
    assert model.config._attn_implementation == name
    assert not model._forward_pre_hooks


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    model = bert()
    with pytest.raises(RuntimeError, match="in between"), capture(model):
        raise RuntimeError("in between")
    assert model.config._attn_implementation == "sdpa"
    assert not model._forward_pre_hooks
    with capture(model) as seen:
        answer(model, text())
    assert seen.statistics.layers


def plain_row(metric: str, row: Tensor, seen: Tensor, i: int) -> tuple[float, float]:
    """Numerator and denominator of one query, by the metric's formula."""
    shift = {"previous": -1, "next": 1, "self": 0, "first": -i}.get(metric)
    if shift is not None:
        there = 0 <= i + shift < len(row) and bool(seen[i + shift])
        return (row[i + shift].item(), 1) if there else (0, 0)
    if metric == "max":
        return row.max().item(), 1
    if metric == "distance":
        return (row * (torch.arange(len(row)) - i).abs()).sum().item(), row.sum().item()
    if seen.sum() < 2:
        return 0, 0
    entropy = -sum(a * math.log(a) for a in row.tolist() if a > 0)
    return entropy if metric == "entropy" else math.exp(entropy), 1


def plain_mean(metric: str, weights: Tensor, allowed: Tensor, real: Tensor) -> float:
    """A metric over whole matrices (B, Lq, Lk), query by query."""
    pairs = [
        plain_row(metric, weights[b, i].double(), allowed[b, i], i)
        for b, i in real.nonzero().tolist()
    ]
    above, below = (sum(side) for side in zip(*pairs, strict=True))
    return above / below if below else math.nan


@pytest.mark.parametrize("make", [bert, llama, mistral], ids=lambda make: make.__name__)
def test_statistics_are_the_plain_formulas_on_eager_weights(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        block_weights, "WEIGHTS_OF_BLOCK", 500
    )  # several blocks of queries for each layer
    model, inputs = make(), text()
    real = inputs["attention_mask"].bool()
    oracle = eager_weights(exact_copy(model, make), inputs)[""]
    twin = make("eager")
    twin.load_state_dict(model.state_dict())
    plain = eager_weights(twin, inputs)[""]
    with capture(model) as seen:
        answer(model, inputs)
    for metric in METRICS:
        if metric.name in ("separators", "duplicate", "induction"):
            continue  # they look at tokens: test_metrics
        got, near, exact = [], [], []
        for head in seen.statistics.heads():
            at = head.layer.number
            allowed = oracle[at][:, head.number] > 0
            exact.append(plain_mean(metric.name, oracle[at][:, head.number], allowed, real))
            near.append(plain_mean(metric.name, plain[at][:, head.number], allowed, real))
            got.append(seen.statistics.value(metric, head))
        accept(torch.tensor(got).float(), torch.tensor(near), torch.tensor(exact).double())


@pytest.mark.parametrize("make", [bert, llama, gpt2], ids=lambda make: make.__name__)
def test_padding_changes_no_statistic(make: Make) -> None:
    model = make()
    ids = text()["input_ids"][1:]
    padded = {"input_ids": ids, "attention_mask": text()["attention_mask"][1:]}
    bare = {"input_ids": ids[:, :REAL], "attention_mask": torch.ones(1, REAL, dtype=torch.long)}
    with capture(model, separators=[3, 5, 7]) as with_padding:
        answer(model, padded)
    with capture(model, separators=[3, 5, 7]) as without:
        answer(model, bare)
    with capture(exact_copy(model, make), separators=[3, 5, 7]) as exact:
        answer(exact.model, bare)
    for layer, sums in with_padding.statistics.layers.items():
        other, oracle = without.statistics.layers[layer], exact.statistics.layers[layer]
        assert sums.queries == other.queries == REAL
        accept(sums.above.float(), other.above.float(), oracle.above)
        accept(sums.below.float(), other.below.float(), oracle.below)


def test_left_padding_moves_the_first_token() -> None:
    model = bert()
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[:, :4] = 0
    with capture(model, heads=parse_heads("L0H0")) as seen:
        answer(model, {"input_ids": text()["input_ids"][:1], "attention_mask": mask})
    first = next(metric for metric in METRICS if metric.name == "first")
    weights = seen.weights[Head.parse("L0H0")][0].double()
    assert seen.statistics.value(first, Head.parse("L0H0")) == weights[4:, 4].mean().item()


def test_shared_layers_are_counted_by_call() -> None:
    model = albert()
    with capture(model) as seen:
        answer(model, text())
    assert list(seen.statistics.layers) == [Layer("", n) for n in range(5)]


def test_two_passes_add_up_and_merge() -> None:
    model, one, two = bert(), text(1), text(2)
    with capture(model) as both:
        answer(model, one)
        answer(model, two)
    with capture(model) as left:
        answer(model, one)
    with capture(model) as right:
        answer(model, two)
    left.statistics.merge(right.statistics)
    assert list(left.statistics.layers) == list(both.statistics.layers)
    for layer, sums in both.statistics.layers.items():
        merged = left.statistics.layers[layer]
        assert torch.equal(merged.above, sums.above)
        assert torch.equal(merged.below, sums.below)
        assert merged.queries == sums.queries == 2 * (LENGTH + REAL)


def test_statistics_of_two_models_do_not_merge() -> None:
    with capture(bert()) as three:
        answer(three.model, text())
    with capture(llama()) as six:
        answer(six.model, text())
    with pytest.raises(BadValue, match="expected 3 heads in a layer, got 6; use one Statistics"):
        three.statistics.merge(six.statistics)


def test_a_capture_of_another_model_may_stand_inside() -> None:
    model, other = bert(), llama()
    with capture(model) as outer:
        with capture(other) as inner:
            answer(other, text())
        answer(model, text())
    assert (len(outer.statistics.heads()), len(inner.statistics.heads())) == (6, 12)


def test_a_mask_may_differ_from_head_to_head() -> None:
    """Head h of a (B, H, L, L) mask sees itself and h keys before; the capture tells them apart."""
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    mask = torch.stack([(j <= i) & (i - j <= h) for h in range(3)])[None]
    heads = parse_heads("L1H0,L1H1,L1H2")
    model = bert()
    with capture(model, heads=heads) as seen:
        answer(model, {"input_ids": text()["input_ids"][:1], "attention_mask": mask})
    for head in heads:
        assert torch.equal(seen.allowed[head][0], mask[0, head.number])
        assert torch.equal(seen.weights[head][0] > 0, mask[0, head.number])


def test_another_model_inside_the_capture_is_not_measured() -> None:
    model, other = bert(), llama()
    with capture(model) as seen:
        answer(other, text())
        answer(model, text())
    assert len(seen.statistics.heads()) == 6


def test_a_model_that_is_not_of_transformers_is_refused() -> None:
    with (
        pytest.raises(BadValue, match="Linear called no attention that can be captured"),
        capture(nn.Linear(3, 5).eval()),
    ):
        pass


def test_training_mode_is_refused() -> None:
    with (
        pytest.raises(BadValue, match=r"expected eval mode.*call model.eval"),
        capture(bert().train()),
    ):
        pass


def test_a_capture_inside_a_capture_of_the_same_model_is_refused() -> None:
    model = bert()
    with capture(model) as seen:
        with pytest.raises(BadValue, match="already being captured"), capture(model):
            pass
        answer(model, text())
    assert len(seen.statistics.heads()) == 6


def test_another_implementation_is_refused() -> None:
    model = llama()
    model.config._attn_implementation = "flex_attention"
    with (
        pytest.raises(
            BadValue, match="implementations 'sdpa', 'eager' and 'headwise', got 'flex_attention'"
        ),
        capture(model),
    ):
        pass


def test_a_model_that_is_never_run_is_an_error() -> None:
    with (
        pytest.raises(BadValue, match="BertModel called no attention that can be captured"),
        capture(bert()),
    ):
        pass


def test_a_term_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.bert import modeling_bert

    inner = modeling_bert.eager_attention_forward

    def scaled(module, query, key, value, mask, **options):
        return inner(module, query * 1.01, key, value, mask, **options)

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", scaled)
    model = bert("eager")
    with pytest.raises(BadValue, match="output of L0 differs from softmax"), capture(model):
        answer(model, text())


def test_a_model_without_eager_attention_to_call_is_refused() -> None:
    one = torch.ones(1, 1, 1, 1)
    with pytest.raises(BadValue, match="the eager attention of Linear is not a separate"):
        capture_file._record_eager(nn.Linear(2, 3), one, one, one, None)


def test_capturing_registers_each_name_once() -> None:
    from transformers import AttentionInterface

    with capture(bert()) as seen:
        answer(seen.model, text())
    names = AttentionInterface().valid_keys()
    assert [name for name in names if "headwise_over" in name] == list(OWN.values())


def test_configurations_of_parts_are_restored_each_to_its_own() -> None:
    model = bart()
    decoder = copy.deepcopy(model.config)
    decoder._attn_implementation = "eager"
    for module in model.decoder.modules():
        if hasattr(module, "config"):
            module.config = decoder
    before = answer(model, two_texts())
    with capture(model):
        during = answer(model, two_texts())
    assert torch.equal(during, before)
    assert model.config._attn_implementation == "sdpa"
    assert decoder._attn_implementation == "eager"


def test_t5_and_gemma_name_their_parts() -> None:
    with capture(t5()) as seen:
        answer(seen.model, two_texts())
    parts = {str(layer) for layer in seen.statistics.layers}
    assert {"encoder.L0", "decoder.L2", "cross.L2"} <= parts
    with capture(gemma2()) as seen:
        answer(seen.model, text())
    assert {str(layer) for layer in seen.statistics.layers} == {"L0", "L1"}


def test_a_window_is_reported_as_not_allowed() -> None:
    head = Head.parse("L0H0")
    with capture(mistral(), heads=[head]) as seen:
        answer(seen.model, text())
    allowed = seen.allowed[head][0]
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    assert torch.equal(allowed, (j <= i) & (i - j < 5))


def test_nan_that_spreads_from_padding_is_told() -> None:
    """transformers' eager attention in float64 makes NaN of padding on the left."""
    model = llama("eager").double()
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :3] = 0
    given = {"input_ids": text()["input_ids"], "attention_mask": mask}
    assert bool(answer(model, given)[1, 3:].isnan().any()), "it still does"
    with pytest.raises(BadValue, match="L1 outputs NaN for tokens"), capture(model):
        answer(model, given)

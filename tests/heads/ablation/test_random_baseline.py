"""The curve and the comparison with random heads, for a selection of heads."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headwise.errors import BadValue
from headwise.heads.ablation import (
    How,
    against_random,
    bootstrap,
    compared,
    curve,
    effect,
    every_head,
    importance,
    next_token_loss,
    sites,
    unpredicting,
)
from headwise.heads.names import parse_heads
from tests.heads import tiny
from tests.heads.ablation.families import made, text, two_texts
from tests.heads.ablation.test_loss_effects import causal

HEADS = "L1H2,L0H5,L0H1,L1H0"


def test_given_heads_go_in_their_order() -> None:
    model, batches = causal(), [text(1), text(2)]
    points = curve(model, batches, order="given", heads=HEADS, step=0.5)
    assert [len(point.removed) for point in points] == [0, 2, 4]
    assert points[-1].removed == parse_heads(HEADS)
    assert points[-1].share == 4 / 12
    for point in points[1:]:
        alone = effect(model, batches, point.removed)
        assert point.rise == alone.interval
        assert point.loss == bootstrap(alone.ablated)
    whole = points[0]
    assert whole.rise is not None
    assert (whole.rise.low, whole.rise.high) == (0.0, 0.0)


def test_without_heads_every_one_goes_layer_by_layer() -> None:
    points = curve(causal(), text(), order="given", step=0.5)
    assert [str(head) for head in points[1].removed] == [f"L0H{head}" for head in range(6)]


@pytest.mark.parametrize("order", ["importance", "random"])
def test_no_other_head_goes(order: str) -> None:
    points = curve(causal(), [text(1), text(2)], order=order, heads=HEADS, how=How(seed=4))
    assert set(points[-1].removed) == set(parse_heads(HEADS))
    assert [len(point.removed) for point in points] == [0, 1, 2, 3, 4]


def test_the_least_important_of_them_goes_first() -> None:
    model, batches = causal(), [text(1), text(2)]
    ranked = [head for head in importance(model, batches).ranking() if head in parse_heads(HEADS)]
    points = curve(model, batches, heads=HEADS)
    assert points[1].removed == (ranked[0],)


def test_a_head_that_is_not_there_is_said() -> None:
    with pytest.raises(BadValue, match="heads: L0H6 does not exist"):
        curve(causal(), text(), heads="L0H6")


def test_several_groups_are_compared_as_each_would_be() -> None:
    model, groups = causal(), [HEADS[:4], HEADS]
    both = compared(model, text, groups, seeds=range(3))
    alone = against_random(model, text, HEADS, seeds=range(3))
    assert both[1] == alone
    first = compared(model, text, groups[:1], seeds=range(3), others=others(HEADS))
    assert both[0] == first[0]


def others(heads: str) -> list[str]:
    every = [f"L{layer}H{head}" for layer in range(2) for head in range(6)]
    return [head for head in every if head not in heads.split(",")]


def test_what_is_drawn_from_may_be_said() -> None:
    """Of one other head alone each seed draws that one."""
    model = causal()
    found = compared(model, lambda _: text(), ["L0H0"], seeds=(1, 2), others="L1H3")[0]
    alone = effect(model, text(), "L1H3")
    assert found.random.low == found.random.high == (alone.ablated - alone.clean).mean().item()
    with pytest.raises(BadValue, match="heads: need 2 other heads to sample, got 1 of 12"):
        compared(model, text, ["L0H0,L0H1"], others="L1H3")


def test_no_group_and_nothing_to_draw_from_are_refused() -> None:
    """An empty choice is no wish for every other head."""
    with pytest.raises(BadValue, match="groups: expected at least one group, got none; pass"):
        compared(causal(), lambda _: text(), [])
    with pytest.raises(BadValue, match="heads: expected at least one head, got none"):
        compared(causal(), lambda _: text(), ["L0H0"], others=[])


SIZES = {
    "vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 26,
}  # fmt: skip


def capped_in_its_decoder() -> tuple[Any, Any]:
    from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration

    return T5GemmaForConditionalGeneration, T5GemmaConfig(
        encoder=SIZES, decoder=SIZES, vocab_size=31, tie_word_embeddings=True
    )


def capped() -> tuple[Any, Any]:
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    return RecurrentGemmaForCausalLM, RecurrentGemmaConfig(**SIZES, lru_width=24)


def multiplied() -> tuple[Any, Any]:
    from transformers import FalconH1Config, FalconH1ForCausalLM

    return FalconH1ForCausalLM, FalconH1Config(
        **SIZES, mamba_d_ssm=24, mamba_n_heads=2, mamba_d_head=12, mamba_d_state=4,
        tie_word_embeddings=True, lm_head_multiplier=0.3,
    )  # fmt: skip


@pytest.mark.parametrize("make", [capped_in_its_decoder, capped, multiplied])
def test_a_loss_without_the_last_projection_is_that_with_it_or_refused(
    make: Callable[[], tuple[Any, Any]],
) -> None:
    kind, config = make()
    model, ids = made(kind(config)), {"input_ids": text()["input_ids"]}
    if config.is_encoder_decoder:
        ids["decoder_input_ids"] = ids["input_ids"][:, :5]
    assert next_token_loss(model, ids).isfinite().all()
    with pytest.raises(BadValue, match="its tied embeddings alone do not give its logits"):
        next_token_loss(model.model, ids)


def test_a_projection_that_scales_is_not_made_up() -> None:
    """T5 divides what goes into its last projection where that is its embeddings."""
    from transformers import T5ForConditionalGeneration

    config = tiny.t5().config
    config.scale_decoder_outputs = True
    model = made(T5ForConditionalGeneration(config))
    bare = model.get_decoder()
    assert bare is not None
    with torch.no_grad():
        assert unpredicting(model, model(**two_texts())) is None
        inner = tiny.t5()
        inner.config.scale_decoder_outputs = True
        reason = unpredicting(inner, inner(**two_texts()))
    assert reason is not None
    assert reason.en == "its tied embeddings alone do not give its logits"
    with pytest.raises(BadValue, match="its tied embeddings alone do not give its logits"):
        next_token_loss(inner, two_texts())


def test_anarciis_attentions_are_numbered_as_capture_numbers_them() -> None:
    """Its modules all end in multihead_attn, which is elsewhere the word for another text."""
    from headwise.heads.capture import capture
    from headwise.heads.models.anarcii import Anarcii, Sizes

    config = SimpleNamespace(is_encoder_decoder=True)
    model = made(Anarcii(Sizes(residues=11, numbers=13, width=12, layers=2, heads=3), config))
    ids = {"input_ids": torch.tensor([[1, 5, 4]]), "decoder_input_ids": torch.tensor([[1, 6]])}
    with capture(model, want=["entropy"]) as seen, torch.no_grad():
        model(**ids)
    assert every_head(sites(model)) == tuple(sorted(seen.statistics.heads()))
    assert {head.layer.part for head in every_head(sites(model))} == {"encoder", "decoder", "cross"}
    names = {str(site.layers[0]): site.name for site in sites(model)}
    assert names["cross.L1"] == "decoder.layers.1.encoder_attention.multihead_attn"
    assert names["decoder.L0"] == "decoder.layers.0.self_attention.multihead_attn"

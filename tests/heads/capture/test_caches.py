"""With a cache, and in `generate`, the values equal those of a single pass over the whole text."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.heads.capture import Recorder, capture
from headwise.heads.metrics import (
    DISTANCE,
    DUPLICATE,
    FIRST,
    MEASURED,
    METRICS,
    PREVIOUS,
    SINK,
    Metric,
)
from headwise.heads.metrics.distances import PROFILES
from headwise.heads.names import Head
from headwise.verify.oracle.tolerance import accept
from tests.heads.tiny import bart, llama, mistral

LENGTH = 13
CHUNKS = (5, 1, 4, 3)


def _name() -> str:
    """What this version of transformers calls the cache."""
    from transformers import LlamaForCausalLM

    known = inspect.signature(LlamaForCausalLM.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


CACHE = _name()


def ids(batch: int = 2, length: int = LENGTH) -> Tensor:
    torch.manual_seed(4)
    return torch.randint(3, 9, (batch, length))  # few words: they come again


def causal(make: Callable[..., nn.Module]) -> nn.Module:
    """With its head of words, so that it generates."""
    from transformers import AutoModelForCausalLM

    inner = make()
    model = AutoModelForCausalLM.from_config(inner.config).eval()
    model.model.load_state_dict(inner.state_dict())
    return model


def value(seen: Recorder, metric: Metric) -> Tensor:
    heads = seen.statistics.heads()
    return torch.tensor([seen.statistics.value(metric, head) for head in heads])


def whole(model: nn.Module, tokens: Tensor, mask: Tensor | None = None) -> Recorder:
    with torch.no_grad(), capture(model) as seen:
        model(input_ids=tokens, attention_mask=mask, use_cache=False)
    return seen


def chunked(model: nn.Module, tokens: Tensor, cache: Any, mask: Tensor | None = None) -> Recorder:
    """The text in pieces, each seeing those before it in the cache."""
    start, times = 0, tokens.shape[1] // LENGTH
    with torch.no_grad(), capture(model) as seen:
        for size in CHUNKS * times:
            given = None if mask is None else mask[:, : start + size]
            out = model(
                input_ids=tokens[:, start : start + size],
                attention_mask=given,
                use_cache=True,
                **{CACHE: cache},
            )
            cache, start = out.past_key_values, start + size
    return seen


def check(one: Recorder, other: Recorder, make: Callable[..., nn.Module]) -> None:
    """The same sums, to the rounding of float32; the oracle is one pass in float64."""
    exact = make().double()
    exact.load_state_dict({k: v.double() for k, v in one.model.model.state_dict().items()})
    oracle = whole(exact, ids())
    assert len(one.statistics.heads()) == len(other.statistics.heads())
    for metric in METRICS:
        if metric.name != "separators":
            accept(value(one, metric), value(other, metric), value(oracle, metric).double())


@pytest.mark.parametrize("kind", ["made by the model", "growing", "static"])
def test_chunks_through_a_cache_add_up_to_the_whole(kind: str) -> None:
    from transformers import DynamicCache, StaticCache

    model = causal(llama)
    caches = {
        "made by the model": None,
        "growing": DynamicCache(config=model.config),
        "static": StaticCache(config=model.config, max_cache_len=17),
    }
    seen = chunked(model, ids(), caches[kind])
    check(seen, whole(model, ids()), llama)


@pytest.mark.parametrize("kind", ["growing", "static"])
@pytest.mark.parametrize("padded", [0, 2, 9, 20])
def test_a_window_that_slides_changes_no_number(kind: str, padded: int) -> None:
    """The window of 5 keys slides out of the cache, the first token and whole blocks with it."""
    from transformers import DynamicCache, StaticCache

    model, tokens = causal(mistral), ids(length=3 * LENGTH)
    mask = torch.ones_like(tokens)
    mask[1, :padded] = 0
    cache: Any = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=3 * LENGTH)
    seen = chunked(model, tokens, cache, mask)
    plain, oracle = whole(model, tokens, mask), whole(causal(mistral).double(), tokens, mask)
    one, other, exact = (
        torch.stack([value(each, metric) for metric in MEASURED]) for each in (seen, plain, oracle)
    )
    accept(one, other, exact.double())
    for profile in PROFILES:
        for head in seen.statistics.heads():
            one, other, exact = (
                torch.tensor(each.statistics.profile(profile, head))
                for each in (seen, plain, oracle)
            )
            accept(one, other, exact.double())


def test_the_first_token_is_no_other_once_it_has_gone() -> None:
    """While generating, queries that see the first token no more say nothing of it."""
    model = causal(mistral)
    given = {"input_ids": ids(1), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    with capture(model) as seen:
        tokens = model.generate(**given)[:, :-1]
    plain, oracle = whole(model, tokens), whole(causal(mistral).double(), tokens)
    for metric in (FIRST, SINK, DISTANCE, PREVIOUS, DUPLICATE):
        accept(value(seen, metric), value(plain, metric), value(oracle, metric).double())


def test_padding_on_the_left_through_a_cache() -> None:
    model = causal(llama)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :3] = 0
    seen, plain = chunked(model, ids(), None, mask), whole(model, ids(), mask)
    oracle = whole(causal(llama).double(), ids(), mask)
    for metric in (FIRST, DUPLICATE):
        accept(value(seen, metric), value(plain, metric), value(oracle, metric).double())
    first = next(iter(seen.statistics.layers.values()))
    assert first.queries == 2 * LENGTH - 3


def test_generating_is_measured_and_says_the_same_words() -> None:
    model = causal(llama)
    given = {"input_ids": ids(1), "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    before = model.generate(**given)
    with capture(model, heads=[Head.parse("L1H0")]) as seen:
        during = model.generate(**given)
    assert torch.equal(before, during)
    tokens = during[:, :-1]  # the last word is never read
    plain, oracle = whole(model, tokens), whole(causal(llama).double(), tokens)
    for metric in (DISTANCE, PREVIOUS, FIRST, DUPLICATE):
        accept(value(seen, metric), value(plain, metric), value(oracle, metric).double())
    assert seen.weights[Head.parse("L1H0")].shape == (1, 1, tokens.shape[1])


def test_beams_that_change_places_make_the_words_unknown() -> None:
    """Beam search reorders the cache: tokens by which words are key_info again are unknown then."""
    model = causal(llama)
    with torch.no_grad(), capture(model) as seen:
        out = model(input_ids=ids(), use_cache=True)
        out.past_key_values.reorder_cache(torch.tensor([1, 0]))
        before = {layer: sums.below.clone() for layer, sums in seen.statistics.layers.items()}
        model(input_ids=ids()[:, :1], use_cache=True, **{CACHE: out.past_key_values})
    row = seen.statistics.metrics.index(DUPLICATE)
    for layer, sums in seen.statistics.layers.items():
        assert torch.equal(sums.below[row], before[layer][row])
        assert bool((sums.below[0] > before[layer][0]).all())


def test_an_encoder_decoder_generates() -> None:
    from transformers import BartForConditionalGeneration

    model = BartForConditionalGeneration(bart().config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.2)
    given = {"input_ids": ids(1), "max_new_tokens": 4, "do_sample": False, "num_beams": 1}
    before = model.generate(**given)
    with capture(model) as seen:
        during = model.generate(**given)
    assert torch.equal(before, during)
    parts = {str(layer) for layer in seen.statistics.layers}
    assert {"encoder.L0", "encoder.L1", "decoder.L2", "cross.L2"} <= parts
    assert len(parts) == 2 + 3 + 3


def test_rows_asked_for_are_the_rows_kept() -> None:
    model, head = llama(), Head.parse("L0H3")
    with torch.no_grad(), capture(model, heads=[head]) as all_rows:
        model(input_ids=ids())
    with torch.no_grad(), capture(model, heads=[head], rows=[7, 2, 99]) as two:
        model(input_ids=ids())
    assert torch.equal(two.weights[head], all_rows.weights[head][:, [2, 7]])
    assert torch.equal(two.allowed[head], all_rows.allowed[head][:, [2, 7]])

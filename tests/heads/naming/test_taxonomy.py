"""Names of constructed heads; heads without structure get names with the stated probability."""

import math

import pytest
import torch
from torch import nn

from headwise.errors import BadFile, BadType, BadValue
from headwise.heads.capture import capture
from headwise.heads.corpus.documents import CorpusDocument, Entity, Parse
from headwise.heads.names import Head
from headwise.heads.naming import Evidence, Named, random_copy, taxonomy
from headwise.heads.naming.candidates import Spread
from tests.heads.naming.planted import (
    LAYER,
    Make,
    evidence,
    faint,
    names,
    noise,
    parent,
    previous,
    sink,
)

TEXTS = 40
HEADS: tuple[Make, ...] = (previous, sink, parent, names, noise, noise)
COPY = (faint,) * len(HEADS)


def named(heads: tuple[Make, ...] = HEADS, texts: int = TEXTS, **given: Evidence) -> dict[int, set]:
    """The names of each head, by its number."""
    first = given.get("first") or evidence(heads, texts, 1)
    second = given.get("second") or evidence(heads, texts, 2)
    random = given.get("random") or evidence((faint,) * len(heads), 2 * texts, 3)
    found: dict[int, set] = {}
    for each in taxonomy(first, second, random):
        found.setdefault(each.head.number, set()).add(each.name)
    return found


def test_planted_heads_get_their_names_and_noise_none() -> None:
    found = named()
    assert "previous-token" in found[0]
    assert found[1] == {"first-token sink"}
    assert "syntax: far" in found[2]
    assert found[3] == {"entity"}
    assert found[4] == found[5] == {"unexplained"}


def test_two_heads_that_do_the_same_are_redundant_with_each_other() -> None:
    def twin(make: torch.Generator, length: int) -> torch.Tensor:
        return previous(torch.Generator().manual_seed(length), length)

    found = named((twin, noise, twin))
    assert "redundant with L0H2" in found[0]
    assert "redundant with L0H0" in found[2]
    assert found[1] == {"unexplained"}


def test_a_trained_head_that_spreads_widely_is_diffuse_and_an_untrained_one_is_not() -> None:
    def wide(make: torch.Generator, length: int) -> torch.Tensor:
        return (0.7 * torch.randn(length, length, generator=make).double()).softmax(-1)

    assert named((wide, faint, faint))[0] == {"diffuse"}
    assert named((faint, faint, faint)) == {n: {"unexplained"} for n in range(3)}


def test_what_one_half_suggests_must_hold_in_the_other() -> None:
    lucky = evidence((previous, noise), TEXTS, 1)
    sober = evidence((noise, noise), TEXTS, 2)
    assert named((previous, noise), first=lucky, second=sober)[0] == {"unexplained"}
    assert named((previous, noise), first=sober, second=lucky)[0] == {"unexplained"}


def test_the_value_that_is_reported_is_that_of_the_half_nothing_was_chosen_on() -> None:
    first, second = evidence(HEADS, TEXTS, 1), evidence(HEADS, TEXTS, 2)
    trial = next(each for each in taxonomy(first, second, evidence(COPY, 80, 3)))
    assert trial.name in ("previous-token", "local")
    metric = next(c.metric for c in _criteria() if c.name == trial.name)
    assert trial.value == second.share(metric, trial.head).value
    assert trial.found == first.share(metric, trial.head).value
    assert trial.confidence == 1 - trial.chance > 0.95
    assert trial.bar >= 0.5
    raw = second.share(metric, trial.head).tail(trial.bar)
    assert trial.chance >= len(HEADS) * len(_criteria()) * raw, "all that was tried counts"
    assert trial.texts == TEXTS
    assert trial.criterion.zh
    assert trial.title.zh != trial.title.en


def _criteria() -> tuple:
    from headwise.heads.naming import CRITERIA

    return CRITERIA


def test_few_texts_prove_nothing() -> None:
    assert named(texts=4) == {number: {"unexplained"} for number in range(len(HEADS))}


def test_what_the_random_copy_does_as_well_is_no_name() -> None:
    """If untrained heads look at the first token too, it is the shape of the network that does."""
    as_well = evidence((sink, sink, noise, noise), 2 * TEXTS, 3)
    assert named((previous, sink, noise), random=as_well)[1] == {"unexplained"}
    assert "previous-token" in named((previous, sink, noise), random=as_well)[0]


def test_without_weights_names_rest_on_statistics_alone() -> None:
    halves = [evidence(HEADS, TEXTS, seed, whole=False) for seed in (1, 2)]
    found = named(first=halves[0], second=halves[1], random=evidence(COPY, 80, 3, whole=False))
    assert "previous-token" in found[0]
    assert found[3] == {"unexplained"}


@pytest.mark.parametrize("seed", range(8))
def test_heads_without_structure_get_no_name(seed: int) -> None:
    """Eight models of six heads at 5 %; the seeds are fixed, and none is named."""
    heads = (noise,) * 6
    first, second = (evidence(heads, 24, 10 * seed + half) for half in (1, 2))
    found = taxonomy(first, second, evidence(heads, 48, 10 * seed + 3))
    assert {each.name for each in found} == {"unexplained"}


def test_evidence_merges_and_is_written_and_read() -> None:
    whole = Evidence.from_tensors(evidence(HEADS, 5, 1).tensors())
    more = evidence(HEADS, 3, 2)
    again = Evidence.from_tensors(whole.tensors())
    again.merge(more)
    added = {name: tensor + more.tensors()[name] for name, tensor in whole.tensors().items()}
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, added[name]), name
    assert again.heads() == whole.heads() == tuple(Head(LAYER, n) for n in range(len(HEADS)))


def test_tensors_of_something_else_are_refused() -> None:
    with pytest.raises(BadFile, match=r"evidence: expected sums from Evidence.tensors\(\)"):
        Evidence.from_tensors({"other/L0": torch.zeros(1, dtype=torch.float64)})
    with pytest.raises(BadFile, match="sums: expected finite float64 sums"):
        Evidence.from_tensors({"metrics/L0": torch.zeros(1)})


def test_halves_of_different_models_are_refused() -> None:
    one, other = evidence(HEADS[:2], 3, 1), evidence(HEADS[:3], 3, 1)
    with pytest.raises(BadValue, match="second: expected evidence of the 2 heads of the first"):
        taxonomy(one, other, one)
    with pytest.raises(BadValue, match="second: expected evidence of the 0 heads"):
        taxonomy(Evidence(), Evidence(), Evidence())


@pytest.mark.parametrize("error", [0.0, 1.0, -1, math.nan])
def test_an_error_that_is_no_chance_is_refused(error: float) -> None:
    one = evidence(HEADS[:2], 3, 1)
    with pytest.raises(BadValue, match="error: expected a probability between 0 and 1"):
        taxonomy(one, one, one, error=error)


def test_one_more_head_of_the_copy_lies_within_its_spread() -> None:
    """Student's 5 % points: of 0, 1, 2 the reach is 4.303 √(4/3)."""
    spread = Spread.of([0.0, 1.0, 2.0, math.nan], 0.05)
    assert f"{spread.high - 1:.2f} {1 - spread.low:.2f}" == "4.97 4.97"
    assert spread.largest == 2.0
    assert Spread.of([0.3], 0.05) == Spread(0.3, 0.3, 0.3)
    assert Spread.of([], 0.05).high == -math.inf


def bert(seed: int) -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=16, max_position_embeddings=40,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).eval()


def gathered(model: nn.Module, texts: int, seed: int) -> tuple[Evidence, Evidence]:
    """Random tokens between a first and a last that are special, with a random tree over them."""
    halves, make = (Evidence(), Evidence()), torch.Generator().manual_seed(seed)
    every = [Head.parse(f"L{layer}H{head}") for layer in range(2) for head in range(3)]
    for number in range(texts):
        length = int(torch.randint(8, 25, (), generator=make))
        tokens = torch.randint(4, 40, (1, length), generator=make)
        tokens[0, 0], tokens[0, -1] = 2, 3
        with capture(model, heads=every, separators=[2, 3]) as seen, torch.no_grad():
            model(input_ids=tokens)
        words = length - 2
        heads = torch.randint(0, words, (words,), generator=make).tolist()
        tree = Parse(
            tuple(-1 if head == n else head for n, head in enumerate(heads)), ("x", "y") * words
        )
        document = CorpusDocument(
            "drawn",
            "",
            ((0, 0),) * words,
            Parse(tree.heads, tree.relations[:words]),
            (Entity(0, 2, "x"),),
        )
        halves[number % 2].add(
            seen.statistics,
            {head: table[0] for head, table in seen.weights.items()},
            {head: table[0] for head, table in seen.allowed.items()},
            words=[[n + 1] for n in range(words)],
            document=document,
        )
    return halves


@pytest.mark.parametrize("seed", range(2))
def test_a_model_that_was_never_trained_gets_no_name(seed: int) -> None:
    model = bert(seed)
    first, second = gathered(model, 44, seed)
    random, more = gathered(random_copy(model, seed=seed + 100), 44, seed)
    random.merge(more)
    found: tuple[Named, ...] = taxonomy(first, second, random)
    assert {each.name for each in found} == {"unexplained"}


def test_a_random_copy_has_other_weights_of_the_same_shapes_and_draws_no_number_of_others() -> None:
    model = bert(0)
    before = torch.random.get_rng_state()
    copy, again = random_copy(model, seed=3), random_copy(model, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not copy.training
    pairs = zip(model.parameters(), copy.parameters(), again.parameters(), strict=True)
    for own, one, other in pairs:
        assert own.shape == one.shape
        assert torch.equal(one, other)
    name = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(model.get_parameter(name), copy.get_parameter(name))


def test_modules_of_torch_begin_again() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16)
    copy = random_copy(model, seed=5)
    assert not torch.equal(model.self_attn.in_proj_weight, copy.self_attn.in_proj_weight)
    assert not torch.equal(model.linear1.weight, copy.linear1.weight)


def test_a_model_that_was_changed_has_no_copy_of_its_configuration() -> None:
    model = bert(0)
    assert isinstance(model.embeddings, nn.Module)
    model.embeddings.word_embeddings = nn.Embedding(7, 24)
    with pytest.raises(BadType, match="model: expected the parameters of its configuration"):
        random_copy(model)


def test_what_cannot_begin_again_is_refused() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    with pytest.raises(BadType, match=r"model: expected modules with reset_parameters, got Own"):
        random_copy(Own())

"""Scores of circuits compared with values computed by hand and with full matrices."""

import math

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.heads.analysis.circuits import (
    Circuits,
    chance,
    circuits,
    circuits_of,
    composition,
    value_weighted,
    value_weighted_together,
)
from headwise.heads.names import Layer
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny

KINDS = ("Q", "K", "V")


def same(found: Tensor, exact: Tensor) -> None:
    accept(found.float(), exact.float(), exact.double())


def drawn(heads: int = 2, width: int = 7, size: int = 3, seed: int = 0) -> Circuits:
    torch.manual_seed(seed)

    def thin(*shape: int) -> Tensor:
        return torch.randn(heads, *shape, dtype=torch.float64)

    return Circuits(
        thin(width, size), thin(width, size), thin(width, size), thin(size, width), thin(size)
    )


def built(v: Tensor, o: Tensor) -> Circuits:
    return Circuits(v[None], v[None], v[None], o[None], torch.zeros(1, v.shape[1]).double())


PICK = torch.eye(5, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("o", "expected"),
    [
        (PICK.T, 1.0),  # writes what it read
        (-PICK.T, -1.0),  # writes the opposite
        (PICK.T * torch.tensor([[1.0], [-1.0]]), 0.0),  # one of each
        (PICK.T * torch.tensor([[3.0], [-1.0]]), 0.5),
    ],
)
def test_copying_heads_known_by_hand(o: Tensor, expected: float) -> None:
    assert built(PICK, o.double()).copying().item() == expected


def test_a_rotation_by_a_quarter_copies_nothing() -> None:
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    assert built(PICK, turn @ PICK.T).copying().item() == 0.0


def test_eigenvalues_are_those_of_the_whole_circuit_from_token_to_token() -> None:
    torch.manual_seed(1)
    made = drawn()
    into, back = torch.randn(2, 11, 7, dtype=torch.float64)
    whole = into @ made.v @ made.o @ back.T  # (H, 11, 11)
    values = torch.linalg.eigvals(whole)
    same(made.copying(into, back), values.real.sum(-1) / values.abs().sum(-1))
    tied = torch.linalg.eigvals(into @ made.v @ made.o @ into.T)
    same(made.copying(into), tied.real.sum(-1) / tied.abs().sum(-1))
    asking = torch.linalg.eigvals(into @ made.q @ made.k.mT @ into.T)
    same(made.matching(into), asking.real.sum(-1) / asking.abs().sum(-1))


def test_a_head_that_asks_for_its_own_kind_matches() -> None:
    made = drawn()
    own = Circuits(made.q, made.q, made.v, made.o, made.v_bias)
    same(own.matching(), torch.ones(2))
    opposite = Circuits(made.q, -made.q, made.v, made.o, made.v_bias)
    same(opposite.matching(), -torch.ones(2))


@pytest.mark.parametrize("kind", KINDS)
def test_composition_is_that_of_the_whole_matrices(kind: str) -> None:
    low, high = drawn(2, seed=2), drawn(3, seed=3)
    carried = low.v @ low.o  # (H, E, E)
    reads = {"Q": high.q @ high.k.mT, "K": high.k @ high.q.mT, "V": high.v @ high.o}[kind]
    norms = torch.linalg.matrix_norm
    whole = norms(carried[:, None] @ reads) / (norms(carried)[:, None] * norms(reads))
    same(composition(low, high, kind), whole)  # type: ignore[arg-type]


def test_what_is_read_where_it_was_written_composes_fully_and_elsewhere_not_at_all() -> None:
    writes = torch.zeros(5, 1, dtype=torch.float64)
    writes[3] = 1.0
    low = built(writes, writes.T)
    elsewhere = torch.zeros(5, 1, dtype=torch.float64)
    elsewhere[1] = 1.0
    for kind in ("Q", "K", "V"):
        assert composition(low, low, kind).item() == 1.0
        assert composition(low, built(elsewhere, elsewhere.T), kind).item() == 0.0


def test_chance_is_the_mean_over_all_ways_two_heads_can_lie() -> None:
    """Over all shifts of the residual's axes a head of one axis meets another once in E."""
    axis = torch.eye(6, 1, dtype=torch.float64)
    low = built(axis, axis.T)
    shifted = [built(axis.roll(by, 0), axis.T.roll(by, 1)) for by in range(6)]
    found = [composition(low, high, "V").item() for high in shifted]
    assert found == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert chance(6) == 1 / math.sqrt(6)


def test_another_kind_is_refused() -> None:
    with pytest.raises(BadValue, match="kind: unknown 'O'; expected 'Q', 'K' or 'V'"):
        composition(drawn(), drawn(), "O")  # type: ignore[arg-type]


def test_embeddings_of_another_width_are_refused() -> None:
    with pytest.raises(BadValue, match=r"embedding: expected two matrices \(V, 7\), got \(11, 5\)"):
        drawn().copying(torch.zeros(11, 5))


def test_a_large_weight_on_a_small_value_brings_little() -> None:
    """Kobayashi et al.: the sink's value is a tenth, so that it brings a tenth of its weight."""
    weights = torch.tensor([[[0.9, 0.1]]])
    values = torch.tensor([[[0.1, 0.0], [0.0, 1.0]]])
    output = 2 * torch.eye(2)[None]
    same(
        value_weighted(weights, values, output), torch.tensor([[[0.18, 0.2]]], dtype=torch.float64)
    )


def test_what_heads_bring_together_may_cancel() -> None:
    weights = torch.full((2, 3, 3), 1 / 3)
    values = torch.ones(2, 3, 1)
    output = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])
    assert not value_weighted_together(weights, values, output).any()
    assert value_weighted(weights, values, output).all()
    one = value_weighted_together(weights[:1], values[:1], output[:1])
    assert torch.equal(one, value_weighted(weights[:1], values[:1], output[:1])[0])


@pytest.mark.parametrize("make", [tiny.bert, tiny.gpt2, tiny.llama, tiny.mistral, tiny.albert])
def test_the_heads_of_a_models_projections_add_up_to_them(make: tiny.Make) -> None:
    module = next(each for each in make("eager").modules() if _is_attention(each))
    made, project = circuits_of(module), _output(module)
    heads, size, _ = made.o.shape
    mixed = torch.randn(1, 5, heads * size)
    with torch.no_grad():
        wanted = project(mixed) - project(torch.zeros_like(mixed))
    parts = mixed.double().view(5, heads, size).transpose(0, 1)  # (H, 5, D)
    same((parts @ made.o).sum(0), wanted[0].double())
    assert made.values(torch.randn(5, made.v.shape[1])).shape == (heads, 5, size)


def _is_attention(module: nn.Module) -> bool:
    from headwise.nn.projections import architecture_of

    return architecture_of(module) is not None


def _output(module: nn.Module) -> nn.Module:
    from headwise.nn.projections import architecture_of, attribute

    architecture = architecture_of(module)
    assert architecture is not None
    found = attribute(module, architecture.out)
    assert isinstance(found, nn.Module)
    return found


def test_our_own_module_from_its_circuits_alone() -> None:
    """Weights from QK and values from OV give the output of `MultiheadAttention`, GQA and all."""
    torch.manual_seed(4)
    layer = hw.MultiheadAttention(12, 4, num_kv_heads=2, bias=False, batch_first=True).double()
    made = circuits_of(layer)
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    scores = (x @ made.q) @ (x @ made.k).mT / math.sqrt(made.q.shape[2])
    wanted = layer(x, x, x, need_weights=False)[0]
    mixed = scores.softmax(-1) @ made.values(x[0])
    accept((mixed @ made.o).sum(0), wanted[0], wanted[0].double())


def test_layers_are_numbered_and_attention_to_other_texts_left_out() -> None:
    assert list(circuits(tiny.llama())) == [Layer("", 0), Layer("", 1)]
    found = circuits(tiny.bart())
    assert list(found) == [
        *(Layer("encoder", n) for n in range(2)),
        *(Layer("decoder", n) for n in range(3)),
    ]


def test_what_is_built_in_another_way_is_refused() -> None:
    with pytest.raises(BadType, match="module: expected an attention module of a supported arch"):
        circuits_of(nn.Linear(3, 3))
    with pytest.raises(BadType, match="model: expected attention modules of a supported archit"):
        circuits(nn.Linear(3, 3))


@pytest.mark.slow
def test_the_induction_head_of_smollm2_reads_what_its_previous_token_head_wrote() -> None:
    """Elhage et al.: an induction head's keys are made of what a previous-token head has written.

    Of all 162 heads below it, L16H0, which looks at the token before, composes most with L18H6's
    keys, told from the weights alone.
    """
    from headwise.heads.models import is_cached, model_named
    from headwise.heads.models.load import load

    if not is_cached(model_named("smollm2")):
        pytest.skip("smollm2 is not in the cache; headwise models get smollm2")
    found = circuits(load("smollm2").model)
    later = found[Layer("", 18)]
    below = [composition(found[Layer("", n)], later, "K")[:, 6] for n in range(18)]
    strength = torch.stack(below)  # (layers, heads)
    assert divmod(int(strength.argmax()), strength.shape[1]) == (16, 0)
    assert strength.max() > 4 * chance(later.q.shape[1]) > 3 * strength.median()

"""Gradient importance equals the derivative for each example, and the curve uses its order."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadValue
from headwise.heads.ablation import How, ablate, curve, every_head, importance, sites
from headwise.heads.ablation.loss_effects import gated
from headwise.heads.names import Head, Layer, parse_heads
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny
from tests.heads.ablation.families import FAMILIES, Family, answer, text
from tests.heads.ablation.test_ablation import unrolled

IN_FLOAT32 = ("modernbert", "gemma2")
"""Their rotation or their softmax counts in float32 whatever the model's dtype."""

in_float64 = pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.name not in IN_FLOAT32], ids=lambda family: family.name
)


def size(model: nn.Module, batch: object) -> Tensor:
    """A loss for each example that any model has: a fixed weighted mean of its last state."""
    out = model(**batch) if isinstance(batch, dict) else model(*batch)
    state = getattr(out, "last_hidden_state", out)
    weights = torch.linspace(0, 40, state[0].numel(), dtype=state.dtype).sin()
    return (state * weights.view(state.shape[1:])).mean((1, 2))


def exactly(model: nn.Module) -> nn.Module:
    """In float64 throughout: transformers' RMSNorm counts in float32, so it is left out."""
    for module in model.modules():
        for name, part in list(module.named_children()):
            if type(part).__name__.endswith(("RMSNorm", "T5LayerNorm")):
                setattr(module, name, nn.Identity())
    return model.double()


@in_float64
def test_a_gates_derivative_is_the_finite_difference(family: Family) -> None:
    """`gradcheck` in float64, over the gates of every head of two layers."""
    model, batch = exactly(family.make()), family.batch(torch.float64)
    layers = {head.layer: None for head in parse_heads(family.heads)}
    counts = {layer: site.heads for site in sites(model) for layer in site.layers}

    def loss(*gates: Tensor) -> Tensor:
        with gated(model, dict(zip(layers, gates, strict=True))):
            return size(model, batch)

    ones = [
        torch.ones(2, counts[layer], dtype=torch.float64, requires_grad=True) for layer in layers
    ]
    assert torch.autograd.gradcheck(loss, ones)
    found = importance(model, [batch], size)
    own = torch.autograd.grad(loss(*ones).sum(), ones)
    for layer, gradient in zip(layers, own, strict=True):
        assert torch.equal(found.gradients[layer], gradient)


def test_where_the_loss_is_linear_a_gate_weighs_what_its_head_adds() -> None:
    """dL/dgate = L with the head - L without, exactly; and the heads add up to L."""
    layer = hw.MultiheadAttention(12, 3, bias=False, batch_first=True).eval()
    x = torch.randn(5, 4, 12)

    def summed(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch, batch, batch)[0].sum((1, 2))

    found = importance(layer, x, summed).gradients[Layer("", 0)]
    wide = copy.deepcopy(layer).double()
    for number in range(3):
        each = []
        for model, dtype in ((layer, torch.float32), (wide, torch.float64)):
            with torch.no_grad():
                whole = summed(model, x.to(dtype))
                with ablate(model, [Head(Layer("", 0), number)]):
                    each.append(whole - summed(model, x.to(dtype)))
        accept(found[:, number].float(), *each)
    with torch.no_grad():
        accept(found.sum(1).float(), summed(layer, x), summed(wide, x.double()))


def by_hand(weights: list[list[float]]) -> nn.Module:
    """Heads that each put out their token's number, times a weight of their own."""
    heads = len(weights[0])
    layer = hw.MultiheadAttention(heads, heads, bias=False, batch_first=True).eval()
    with torch.no_grad():
        layer.v_proj.weight.fill_(0)[:, 0] = 1
        layer.out_proj.weight.copy_(torch.tensor(weights))
    return layer


def first(model: nn.Module, x: Tensor) -> Tensor:
    """The first number of the first token's row."""
    return model(x, x, x)[0][:, 0, 0]


def test_the_absolute_value_is_of_each_example() -> None:
    """Gradients +3 and -3 of two examples are an importance of 3, not of 0."""
    layer = by_hand([[3.0, 4.0], [0.0, 0.0]])
    x = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])
    found = importance(layer, x, first)
    heads = found.heads()
    assert found.gradients[Layer("", 0)].tolist() == [[3.0, 4.0], [-3.0, -4.0]]
    assert [found.raw(head) for head in heads] == [3.0, 4.0]
    assert [found.value(head) for head in heads] == [3 / 5, 4 / 5]
    assert [found.spread(head) for head in heads] == [0.0, 0.0]


def test_the_spread_is_the_standard_error_over_examples() -> None:
    """Absolute gradients 1 and 3 of one head: mean 2, standard error 1."""
    layer = by_hand([[1.0]])
    found = importance(layer, torch.tensor([[[1.0]], [[-3.0]]]), first)
    head = Head(Layer("", 0), 0)
    assert found.raw(head) == 2.0
    assert found.value(head) == 1.0
    spread = torch.tensor(found.spread(head), dtype=torch.float64)
    accept(spread, torch.tensor(0.5, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))


def test_batches_are_examples_one_after_the_other() -> None:
    model = tiny.llama()
    together = {name: torch.cat((text(1)[name], text(2)[name])) for name in text()}
    wide = copy.deepcopy(model).double()
    oracle, plain = importance(wide, together, size), importance(model, together, size)
    found = importance(model, [text(1), text(2)], size)
    for layer, gradients in found.gradients.items():
        accept(gradients.float(), plain.gradients[layer].float(), oracle.gradients[layer])


def test_a_shared_attention_has_an_importance_for_each_layer() -> None:
    model = tiny.albert()
    own = unrolled(model)
    found, plain = importance(model, text(), size), importance(own, text(), size)
    oracle = importance(copy.deepcopy(own).double(), text(), size)
    assert len(found.gradients) == 5
    for layer, gradients in found.gradients.items():
        accept(gradients.float(), plain.gradients[layer].float(), oracle.gradients[layer])


def test_heads_without_influence_have_none() -> None:
    layer = by_hand([[0.0, 0.0], [0.0, 0.0]])
    found = importance(layer, torch.ones(2, 1, 2), first)
    assert [found.value(head) for head in found.heads()] == [0.0, 0.0]
    assert [found.spread(head) for head in found.heads()] == [0.0, 0.0]
    assert [str(head) for head in found.ranking()] == ["L0H0", "L0H1"]


def test_the_ranking_begins_with_the_least() -> None:
    layer = by_hand([[5.0, 1.0, 3.0], [0.0] * 3, [0.0] * 3])
    found = importance(layer, torch.ones(2, 1, 3), first)
    assert [str(head) for head in found.ranking()] == ["L0H1", "L0H2", "L0H0"]


def test_parameters_get_no_gradient() -> None:
    model = tiny.llama()
    with torch.no_grad():
        importance(model, text(), size)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("change", "loss", "message"),
    [
        (lambda model: model.train(), size, "model: expected eval mode"),
        (lambda model: model, lambda m, b: size(m, b).mean(), r"loss: expected a tensor \(B,\)"),
        (
            lambda model: model,
            lambda m, b: size(m, b)[:1],
            "batches: got 1 losses but 2 samples inside the model",
        ),
        (
            lambda model: model,
            lambda m, b: torch.cat((size(m, b), size(m, {k: v[:1] for k, v in b.items()}))),
            "batches: got 2 losses but 1 samples inside the model",
        ),
    ],
)
def test_what_cannot_be_told_apart_is_said(change, loss, message) -> None:
    with pytest.raises(BadValue, match=message):
        importance(change(tiny.llama()), text(), loss)


def test_an_unbatched_attention_has_no_examples() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    found = importance(layer, (torch.randn(3, 4),) * 3, lambda m, b: m(*b)[0].mean().reshape(1))
    assert found.gradients[Layer("", 0)].shape == (1, 2)


def test_the_curve_takes_the_least_important_first_and_keeps_what_is_gone() -> None:
    model, batches = tiny.llama(), [text(1), text(2)]
    points = curve(model, batches, size, step=0.25)
    assert [len(point.removed) for point in points] == [0, 3, 6, 9, 12]
    assert [point.share for point in points] == [0.0, 0.25, 0.5, 0.75, 1.0]
    for before, after in pairwise(points):
        assert after.removed[: len(before.removed)] == before.removed
    assert points[1].removed == importance(model, batches, size).ranking()[:3]
    with ablate(model, points[1].removed):  # measured anew without them
        left = importance(model, batches, size).ranking()
    assert points[2].removed[3:] == tuple(h for h in left if h not in points[1].removed)[:3]
    with ablate(model, points[3].removed), torch.no_grad():
        loss = torch.cat([size(model, batch) for batch in batches]).double()
    assert points[3].loss.mean == loss.mean().item()
    assert points[3].loss.low < points[3].loss.mean < points[3].loss.high


def test_a_random_order_follows_the_seed() -> None:
    model = tiny.llama()

    def removed(seed: int) -> tuple[Head, ...]:
        how = How("mean", text(7), seed)
        return curve(model, text(), size, order="random", step=0.5, how=how)[-1].removed

    assert removed(1) == removed(1)
    assert removed(1) != removed(2)
    assert set(removed(1)) == set(every_head(sites(model)))


def test_the_curve_may_stop_before_all_are_gone() -> None:
    points = curve(tiny.llama(), text(), size, order="random", step=0.1, until=0.4)
    assert [len(point.removed) for point in points] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "alphabet"}, "order: unknown 'alphabet'; expected one of 'importance', 'rand"),
        ({"step": 0.0}, "step: expected a fraction above 0 and at most 1, got 0"),
        ({"until": 1.5}, "until: expected a fraction above 0 and at most 1, got 1.5"),
    ],
)
def test_a_curve_that_is_none_is_refused(options, message) -> None:
    with pytest.raises(BadValue, match=message):
        curve(tiny.llama(), text(), size, **options)


def test_answers_are_the_same_afterwards() -> None:
    model = tiny.bart()
    batch = FAMILIES[10].batch(torch.float32)
    before = answer(model, batch)
    importance(model, batch, size)
    curve(model, batch, size, step=0.5)
    assert torch.equal(answer(model, batch), before)

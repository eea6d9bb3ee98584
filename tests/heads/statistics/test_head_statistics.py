"""Sums of metrics can be merged, and can be written and read as tensors."""

import pytest
import torch
from torch import Tensor

from headwise.errors import BadFile, BadType, BadValue
from headwise.heads.metrics import MEASURED, METRICS, KeyContext, Rows
from headwise.heads.metrics.distances import BY_DISTANCE
from headwise.heads.names import Head, Layer
from headwise.heads.statistics import Statistics

LOW, CROSS = Layer("", 0), Layer("cross", 3)


def block(length: int, seed: int, heads: int = 2) -> Rows:
    make = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, heads, length, length, generator=make, dtype=torch.float64)
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    context = KeyContext(
        allowed=allowed,
        counts=torch.ones(1, length, dtype=torch.bool),
        position=torch.arange(length),
        first=torch.tensor([0]),
    )
    return Rows(weights=scores.masked_fill(~allowed, -torch.inf).softmax(-1), context=context)


def seen(*seeds: int) -> Statistics:
    found = Statistics()
    for seed in seeds:
        for layer in (LOW, CROSS):
            found.add(layer, block(3 + seed, seed))
    return found


def test_what_is_written_is_read_back() -> None:
    found = seen(0, 4)
    again = Statistics.from_tensors(found.tensors())
    assert list(again.layers) == [LOW, CROSS]
    for layer, sums in again.layers.items():
        for name, tensor in sums.tensors().items():
            assert torch.equal(tensor, found.layers[layer].tensors()[name])


def test_tensors_add_up_as_statistics_merge() -> None:
    one, other, both = seen(1), seen(2), seen(1)
    both.merge(other)
    added = {name: tensor + other.tensors()[name] for name, tensor in one.tensors().items()}
    for name, tensor in both.tensors().items():
        assert torch.equal(added[name], tensor)
    assert both.layers[LOW].queries == 4 + 5
    assert one.layers[LOW].queries == 4, "merging leaves what is merged as it was"


def test_other_metrics_do_not_merge() -> None:
    with pytest.raises(BadValue, match=r"statistics: expected the metrics .*, got entropy; meas"):
        seen(1).merge(Statistics(metrics=METRICS[:1]))


def test_another_number_of_heads_does_not_merge() -> None:
    found = seen(1)
    with pytest.raises(BadValue, match="statistics: expected 2 heads in a layer, got 3"):
        found.add(LOW, block(4, 0, heads=3))


def test_chosen_metrics_are_measured_alone() -> None:
    entropy = METRICS[0]
    few = Statistics(metrics=(entropy,))
    few.add(LOW, block(5, 1))
    head = Head(LOW, 1)
    whole = Statistics()
    whole.add(LOW, block(5, 1))
    assert few.value(entropy, head) == whole.value(entropy, head)
    assert few.uniform(entropy, LOW) == whole.uniform(entropy, LOW)
    assert few.layers[LOW].above.shape == (1, 2)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("L0/above", torch.zeros(3, 2, dtype=torch.float64)),
        ("L0/above", torch.zeros(len(MEASURED), 2)),
        ("L0/above", torch.zeros(len(MEASURED), dtype=torch.float64)),
        ("L0/below", torch.full((len(MEASURED), 2), torch.nan, dtype=torch.float64)),
        ("L0/below", torch.zeros(len(MEASURED), 3, dtype=torch.float64)),
        ("L0/uniform_above", torch.zeros(1, dtype=torch.float64)),
        ("L0/queries", torch.tensor(-1)),
        ("L0/queries", torch.tensor([3])),
        ("L0/queries", torch.tensor(3.0)),
        ("L0/profile.distance", torch.zeros(4, 2, 34, dtype=torch.float64)),
        ("L0/other", torch.zeros(1)),
        ("layer0/above", torch.zeros(1)),
        ("above", torch.zeros(1)),
        ("L1/above", torch.zeros(len(MEASURED), 2, dtype=torch.float64)),
    ],
)
def test_tensors_of_another_form_are_refused(name: str, tensor: Tensor) -> None:
    written = {**seen(1).tensors(), name: tensor}
    with pytest.raises(BadFile, match=r"statistics: expected sums from Statistics.tensors"):
        Statistics.from_tensors(written)


@pytest.mark.parametrize("missing", [Head(LOW, 2), Head(LOW, -1), Head(Layer("", 1), 0)])
def test_a_head_that_was_not_seen_has_no_value(missing: Head) -> None:
    found, there = seen(1), "there are L0H0 … L0H1, cross.L3H0 … cross.L3H1"
    for ask in (
        lambda: found.value(METRICS[0], missing),
        lambda: found.profile(BY_DISTANCE, missing),
    ):
        with pytest.raises(BadValue, match=f"heads: {missing} does not exist; {there}"):
            ask()


def test_a_layer_that_was_not_seen_has_no_value() -> None:
    found, missing = seen(1), Layer("encoder", 0)
    for ask in (
        lambda: found.uniform(METRICS[0], missing),
        lambda: found.uniform_profile(BY_DISTANCE, missing),
    ):
        with pytest.raises(BadValue, match=r"heads: encoder.L0H0 does not exist; there are L0H0"):
            ask()


def test_a_metric_that_was_not_measured_has_no_value() -> None:
    few = Statistics(metrics=METRICS[:2])
    few.add(LOW, block(5, 1))
    for ask in (lambda: few.value(METRICS[2], Head(LOW, 0)), lambda: few.uniform(METRICS[2], LOW)):
        with pytest.raises(
            BadValue, match=r"metric: distance was not measured; expected one of entropy, "
        ):
            ask()
    with pytest.raises(BadValue, match=r"metric: 'entropy' was not measured"):
        few.value("entropy", Head(LOW, 0))  # type: ignore[arg-type]
    with pytest.raises(BadType, match=r"head: expected a Head, got 'L0H0'; use Head.parse"):
        few.value(METRICS[0], "L0H0")  # type: ignore[arg-type]

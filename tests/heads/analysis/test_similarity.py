"""The similarity of heads over many texts: values computed by hand, and sums over texts."""

import math

import pytest
import torch
from torch import Tensor

from headwise.heads.analysis import similarity
from headwise.heads.analysis.similarity import (
    Similarity,
    clark_distances,
    distances,
    groups,
    jensen_shannon,
)
from headwise.heads.names import Head
from headwise.heads.sums import Accumulator
from headwise.verify.oracle.tolerance import accept

ONE, OTHER, LAST, EVEN = (Head.parse(name) for name in ("L0H0", "L0H1", "L2H0", "L2H1"))
EVERYWHERE = torch.ones(6, 6, dtype=torch.bool)


def text(seed: int, length: int = 6) -> dict[Head, Tensor]:
    """Two heads that are one, one of its own, and one that is uniform."""
    make = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, length, length, generator=make, dtype=torch.float64).softmax(-1)
    even = torch.full((length, length), 1 / length, dtype=torch.float64)
    return {ONE: drawn[0], OTHER: drawn[1], LAST: drawn[0].clone(), EVEN: even}


def compared(*seeds: int) -> Similarity:
    found = Similarity()
    for seed in seeds:
        found.add(text(seed), EVERYWHERE)
    return found


def test_heads_that_are_one_agree_whatever_their_layers() -> None:
    found = compared(0, 1, 2)
    assert found.agreement(ONE, LAST) == found.agreement(LAST, ONE) == 1.0
    assert found.agreement(ONE, OTHER) < 0.9


def test_with_a_uniform_head_nothing_is_shared() -> None:
    """JS(h, u) is all of the departure of h, and u departs by nothing."""
    assert round(compared(0, 1).agreement(ONE, EVEN), 12) == 0.0


def test_heads_that_depart_a_little_and_independently_share_nothing() -> None:
    """To second order JS is a squared length, and independent departures are at right angles."""
    small = (
        torch.tensor([1.0, -1.0, 0, 0, 0, 0]) * 1e-3,
        torch.tensor([0, 0, 1.0, -1.0, 0, 0]) * 1e-3,
    )
    tables = [(1 / 6 + each).double().expand(6, 6) for each in small]
    found = Similarity()
    found.add({ONE: tables[0], OTHER: tables[1]}, EVERYWHERE)
    assert round(found.agreement(ONE, OTHER), 4) == 0.0


def test_the_mean_divergence_is_that_of_whole_maps() -> None:
    tables = text(3)
    heads, apart = compared(3).distances()
    wanted = distances(torch.stack([tables[head] for head in heads]))
    accept(apart, wanted, wanted)
    assert groups(apart, 1e-9) == [[0, 2], [1], [3]]


def test_texts_merge_and_are_written_and_read() -> None:
    one = compared(0)
    one.merge(compared(1, 2))
    again = Similarity(Accumulator.from_tensors(one.sums.tensors()))
    assert again.heads() == (ONE, OTHER, LAST, EVEN)
    assert again.agreement(ONE, OTHER) == one.agreement(ONE, OTHER)
    whole = compared(0, 1, 2).sums["L0|L0"]
    accept(one.sums["L0|L0"], whole, whole)
    assert again.share(ONE, OTHER).texts == 3
    assert len(again.pairs()) == 6


def test_parts_of_a_model_are_not_compared() -> None:
    found = compared(0)
    cross = Head.parse("cross.L0H0")
    found.add({cross: torch.eye(6)}, EVERYWHERE)
    assert all(one.layer.part == other.layer.part for one, other in found.pairs())
    assert found.distances("cross")[0] == (cross,)


def test_rows_that_see_one_key_say_nothing() -> None:
    found = Similarity()
    found.add({ONE: torch.eye(3), OTHER: torch.eye(3)}, torch.eye(3, dtype=torch.bool))
    assert found.heads() == ()


def test_mass_a_sink_took_is_not_a_difference() -> None:
    tables = text(4)
    found = Similarity()
    found.add({ONE: tables[ONE], OTHER: 0.5 * tables[ONE]}, EVERYWHERE)
    assert round(found.agreement(ONE, OTHER), 12) == 1.0


def test_of_long_texts_some_queries_are_taken_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "MOST_CELLS", 2 * 2 * 6 * 3)
    tables = text(5)
    found = Similarity()
    found.add({ONE: tables[ONE], OTHER: tables[OTHER]}, EVERYWHERE)
    rows = [0, 2, 5]
    wanted = jensen_shannon(tables[ONE][rows], tables[OTHER][rows]).mean()
    accept(found.sums["L0|L0"][0, 1, 1], wanted, wanted)
    assert math.isfinite(found.agreement(ONE, OTHER))


def test_the_published_distance_is_smoothed_and_summed() -> None:
    """Two heads that have nothing in common: with N = 2 and s = 0.0005, per query
    log 2 + (1 - s) log (1 - s) + s log s, and two queries."""
    one = torch.eye(2, dtype=torch.float64)
    found = clark_distances(torch.stack((one, one.flip(0))))
    small = 0.0005
    each = math.log(2) + (1 - small) * math.log(1 - small) + small * math.log(small)
    wanted = torch.tensor([[0.0, 2 * each], [2 * each, 0.0]], dtype=torch.float64)
    accept(found, wanted, wanted)
    accept(clark_distances(torch.cat((one, one.flip(0))).view(2, 2, 2)), wanted, wanted)

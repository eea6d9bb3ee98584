"""Published values and properties of measurements on whole attention maps."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import BadValue
from headwise.heads.analysis.attention_maps import between, flow, merged, pieces, rollout
from headwise.heads.analysis.similarity import distances, groups, jensen_shannon
from headwise.verify.oracle.tolerance import accept

PIECES = torch.tensor(
    [[0.5, 0.2, 0.2, 0.1], [0.1, 0.4, 0.4, 0.1], [0.3, 0.1, 0.1, 0.5], [0.25, 0.25, 0.25, 0.25]],
    dtype=torch.float64,
)
LOW = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
HIGH = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.1, 0.8, 0.1]], dtype=torch.float64)


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def same(found: torch.Tensor, exact: torch.Tensor) -> None:
    """By the rule of acceptance in float32, found in float64 being far inside it."""
    accept(found.float(), exact.float(), exact)


def random_maps(heads: int, length: int) -> torch.Tensor:
    return torch.randn(heads, length, length, dtype=torch.float64).softmax(-1)


def test_pieces_of_a_word_are_summed_to_and_averaged_from() -> None:
    words = [[0], [1, 2], [3]]
    wanted = rows([0.5, 0.4, 0.1], [0.2, 0.5, 0.3], [0.25, 0.5, 0.25])
    same(merged(PIECES, words), wanted)
    same(merged(PIECES, words, source="first")[1], rows([0.1, 0.8, 0.1])[0])


@given(st.integers(1, 7), st.integers(0, 1000))
def test_rows_of_words_still_sum_to_one(length: int, seed: int) -> None:
    torch.manual_seed(seed)
    cuts = [number for number in range(1, length) if torch.rand(()) > 0.5]
    starts, stops = [0, *cuts], [*cuts, length]
    words = [list(range(*ends)) for ends in zip(starts, stops, strict=True)]
    found = merged(random_maps(2, length), words)
    same(found.sum(-1), torch.ones(2, len(words), dtype=torch.float64))


@pytest.mark.parametrize("words", [[[0], [1, 2]], [[0, 1], [1, 2], [3]], [[0, 1, 2, 3], []]])
def test_words_that_are_not_the_pieces_are_refused(words: list[list[int]]) -> None:
    with pytest.raises(BadValue, match="words: expected each of the 4 tokens in exactly"):
        merged(PIECES, words)


def test_another_source_is_refused() -> None:
    with pytest.raises(BadValue, match="source: unknown 'last'; expected one of mean, first"):
        merged(PIECES, [[0, 1, 2, 3]], source="last")


def test_words_of_two_texts_and_pieces_in_no_word() -> None:
    """[CLS] is left out on both sides, a split word is summed to and averaged from."""
    found = between(PIECES, [[1, 2], [3]], [[1], [2, 3]])
    same(found, rows([0.25, 0.55], [0.25, 0.5]))
    whole = [[0], [1, 2], [3]]
    same(between(PIECES, whole, whole), merged(PIECES, whole))


def test_a_word_without_a_piece_gives_and_gets_nothing() -> None:
    same(between(PIECES, [[0], []], [[], [0]]), rows([0.0, 0.5], [0.0, 0.0]))


@pytest.mark.parametrize(("queries", "keys"), [([[4]], [[0]]), ([[0]], [[-1]])])
def test_pieces_beyond_the_weights_are_refused(
    queries: list[list[int]], keys: list[list[int]]
) -> None:
    name = "queries" if queries == [[4]] else "keys"
    with pytest.raises(BadValue, match=f"{name}: expected token indices below 4, got"):
        between(PIECES, queries, keys)


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ([(0, 3), (4, 6), (6, 8)], [[0], [1, 2]]),
        ([(0, 3), (3, 8)], [[0], [1]]),  # a blank at the front
        ([(0, 8)], [[0], []]),
        ([(0, 0), (0, 3)], [[1], []]),  # a special token, and a text that was cut
        ([(3, 4)], [[], []]),
    ],
)
def test_tokens_belong_to_the_word_they_begin_in(
    tokens: list[tuple[int, int]], wanted: list[list[int]]
) -> None:
    assert pieces([(0, 3), (4, 8)], tokens) == wanted


def test_rollout_and_flow_of_two_layers() -> None:
    same(rollout([LOW, HIGH]), rows([1, 0, 0], [0.5875, 0.4125, 0], [0.205, 0.3825, 0.4125]))
    same(flow([LOW, HIGH]), rows([1, 0, 0], [0.7, 0.55, 0], [0.4, 0.55, 0.55]))
    wanted = rows([1, 0, 0], [0.56, 0.44, 0], [4 / 15, 5.5 / 15, 5.5 / 15])
    same(flow([LOW, HIGH], normalised=True), wanted)


@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 1000))
def test_what_rolls_out_is_a_distribution_and_flows_at_least(
    layers: int, length: int, seed: int
) -> None:
    torch.manual_seed(seed)
    maps = list(random_maps(layers, length))
    through = rollout(maps)
    same(through.sum(-1), torch.ones(length, dtype=torch.float64))
    assert bool((flow(maps) - through >= -torch.finfo(torch.float32).eps).all())


def test_layers_must_agree() -> None:
    for layers in ([], [LOW, HIGH[:2, :2]], [LOW[:2]]):
        with pytest.raises(BadValue, match=r"layers: expected tensors of one shape"):
            rollout(layers)
    with pytest.raises(BadValue, match=r"layers: expected matrices \(L, L\)"):
        flow([LOW[None]])


def test_the_divergence_of_two_rows() -> None:
    found = jensen_shannon(rows([0.2, 0.3, 0.5]), rows([0.1, 0.8, 0.1]))
    assert f"{found.item():.6f}" == "0.140228"
    apart = jensen_shannon(rows([1, 0]), rows([0, 1]))
    same(apart, torch.full((1,), math.log(2), dtype=torch.float64))


@given(st.integers(1, 6), st.integers(0, 1000))
def test_the_divergence_is_symmetric_bounded_and_zero_for_the_same(size: int, seed: int) -> None:
    torch.manual_seed(seed)
    one, other = random_maps(2, size)
    assert torch.equal(jensen_shannon(one, other), jensen_shannon(other, one))
    assert bool((jensen_shannon(one, other) <= math.log(2)).all())
    assert not bool(jensen_shannon(one, one).any())


def test_heads_that_agree_are_one_group() -> None:
    maps = random_maps(3, 5)
    whole = torch.stack((maps[0], maps[1], maps[0], maps[2], maps[1]))
    apart = distances(whole)
    assert groups(apart, 0.0) == [[0, 2], [1, 4], [3]]
    assert groups(apart, math.log(2)) == [[0, 1, 2, 3, 4]]
    assert groups(apart[:0, :0], 1.0) == []


def test_a_chain_of_neighbours_is_not_one_group() -> None:
    line = torch.tensor([0.0, 1.0, 2.0])
    assert groups((line[:, None] - line).abs(), 1.0) == [[0, 1], [2]]


def joined_one_by_one(distance: torch.Tensor, most: float) -> list[list[int]]:
    """Complete linkage as it is defined, looking at every two groups each time."""
    found = [[number] for number in range(len(distance))]
    while len(found) > 1:
        apart, one, other = min(
            (distance[found[i]][:, found[j]].max().item(), i, j)
            for i, j in itertools.combinations(range(len(found)), 2)
        )
        if apart > most:
            break
        found[one] = sorted(found[one] + found.pop(other))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_the_definition(seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    half = torch.randint(0, 12, (11, 11), generator=make) / 10  # with ties
    distance = (half + half.mT).fill_diagonal_(0.0)
    for most in (0.0, 0.4, 0.9, 1.5, 3.0):
        assert groups(distance, most) == joined_one_by_one(distance, most)


def test_heads_that_are_nowhere_near_each_other_stay_apart() -> None:
    assert groups(torch.full((3, 3), torch.inf), torch.inf) == [[0], [1], [2]]


def test_blind_queries_do_not_count() -> None:
    maps = random_maps(2, 4)
    allowed = torch.ones(2, 4, 4, dtype=torch.bool)
    allowed[0, 1] = False
    maps[0, 1] = 0.0
    kept = [0, 2, 3]
    same(distances(maps, allowed), distances(maps[:, kept]))


def test_distances_must_be_symmetric() -> None:
    with pytest.raises(BadValue, match=r"distance: expected a symmetric \(H, H\), got \(2, 2\)"):
        groups(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), 1.0)

"""Each metric on patterns computed by hand, on published values, and its properties."""

import math
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise.heads.metrics as metrics_room
from headwise.heads.metrics import EVERY, MEASURED, METRICS, KeyContext, Metric, Rows, total
from headwise.verify.oracle.tolerance import accept

BY_NAME = {metric.name: metric for metric in EVERY}

Matrix = list[list[float]]


def rows(
    weights: Matrix | Tensor,
    *,
    allowed: Tensor | None = None,
    real: list[bool] | None = None,
    special: list[bool] | None = None,
    cross: bool = False,
    first: int = 0,
    tokens: list[int] | None = None,
    marks: list[bool] | None = None,
) -> Rows:
    """One sample, one head, in float64; every pair allowed unless said otherwise."""
    table = torch.as_tensor(weights, dtype=torch.float64)[None, None]
    length, keys = table.shape[-2:]
    seen = torch.ones(length, keys, dtype=torch.bool) if allowed is None else allowed
    context = KeyContext(
        allowed=seen[None, None],
        counts=torch.tensor([real or [True] * length]),
        position=None if cross else torch.arange(length),
        first=torch.tensor([first]),
        separators=None if special is None else torch.tensor([special]),
        tokens=None if tokens is None else torch.tensor([tokens]),
        punctuation=None if marks is None else torch.tensor([marks]),
    )
    return Rows(weights=table, context=context)


def value(name: str, given: Rows) -> float:
    above, below = total(BY_NAME[name], given)
    return (above / below).item()


CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()
IDENTITY = torch.eye(5)
BEFORE = torch.eye(5)[[0, 0, 1, 2, 3]]  # the first query, which has none before it, sees itself
AFTER = torch.eye(5)[[1, 2, 3, 4, 4]]
TO_FIRST = torch.eye(5)[[0] * 5]
EQUAL = torch.full((4, 4), 0.25)
HALVES = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("entropy", IDENTITY, 0.0),
        ("entropy", EQUAL, math.log(4)),
        ("entropy", HALVES, math.log(2)),
        ("effective_keys", IDENTITY, 1.0),
        ("effective_keys", EQUAL, 4.0),
        ("effective_keys", HALVES, 2.0),
        ("distance", IDENTITY, 0.0),
        ("distance", BEFORE, 0.8),
        ("distance", TO_FIRST, 2.0),
        ("distance", EQUAL, 1.25),
        ("previous", BEFORE, 1.0),
        ("previous", IDENTITY, 0.0),
        ("previous", EQUAL, 0.25),
        ("next", AFTER, 1.0),
        ("next", BEFORE, 0.0),
        ("next", HALVES, 0.5),
        ("self", IDENTITY, 1.0),
        ("self", AFTER, 0.2),
        ("self", HALVES, 0.5),
        ("first", TO_FIRST, 1.0),
        ("first", BEFORE, 0.4),
        ("first", HALVES, 0.25),
        ("max", IDENTITY, 1.0),
        ("max", EQUAL, 0.25),
        ("max", HALVES, 0.5),
    ],
)
def test_patterns_computed_by_hand(name: str, pattern: Matrix | Tensor, expected: float) -> None:
    assert value(name, rows(pattern)) == expected


REPEATED = torch.arange(25).repeat(4).tolist()
"""25 tokens 4 times, as Olsson et al. 2022 have them."""


def test_a_uniform_causal_head_has_the_published_induction_score() -> None:
    allowed = torch.ones(100, 100, dtype=torch.bool).tril()
    baseline = rows(torch.eye(100), allowed=allowed, tokens=REPEATED).uniform
    assert f"{value('induction', baseline):.4f}" == "0.0313"


@pytest.mark.parametrize(
    ("tokens", "pattern", "duplicate", "induction"),
    [
        ([3, 5, 3, 5], torch.eye(4)[[0, 0, 1, 2]], 0.0, 2 / 3),  # of the queries 0, 2 and 3
        ([3, 5, 3, 5], torch.eye(4)[[2, 3, 0, 1]], 1.0, 0.0),
        ([3, 5, 3, 7], torch.eye(4)[[0, 1, 0, 0]], 0.5, 0.0),
        ([3, 5, 3, 7], torch.full((4, 4), 0.25), 0.25, 0.25),
    ],
)
def test_shares_on_repeated_tokens(
    tokens: list[int], pattern: Tensor, duplicate: float, induction: float
) -> None:
    shown = rows(pattern, tokens=tokens)
    assert (value("duplicate", shown), value("induction", shown)) == (duplicate, induction)


@pytest.mark.parametrize("name", ["duplicate", "induction"])
def test_without_a_repeated_token_there_is_no_value(name: str) -> None:
    assert math.isnan(value(name, rows(EQUAL, tokens=[3, 5, 7, 11])))
    assert math.isnan(value(name, rows(EQUAL)))
    assert math.isnan(value(name, rows(EQUAL, tokens=[3, 3, 3, 3], cross=True)))


@pytest.mark.parametrize(
    ("special", "expected"),
    [([False] * 3 + [True], 0.25), ([True] * 4, 0.75), ([False, True, True, False], 0.5)],
)
def test_separators_leave_the_first_token_to_its_own_metric(
    special: list[bool], expected: float
) -> None:
    assert value("separators", rows(EQUAL, special=special)) == expected


@pytest.mark.parametrize(
    ("row", "published"), [([0.5, 0.5, 0.0], 0.693147), ([0.2, 0.3, 0.5], 1.029653)]
)
def test_published_entropies(row: list[float], published: float) -> None:
    assert round(value("entropy", rows([row], cross=True)), 6) == published


def test_published_mean_distance() -> None:
    a1 = [[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]
    assert round(value("distance", rows(a1, allowed=CAUSAL)), 12) == 0.4


@pytest.mark.parametrize("length", [3, 7, 13])
def test_a_uniform_causal_head_has_the_published_distance(length: int) -> None:
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    baseline = rows(torch.eye(length), allowed=allowed).uniform
    assert round(value("distance", baseline), 12) == (length - 1) / 4


def test_a_row_with_one_allowed_key_says_nothing_about_spread() -> None:
    a1 = rows([[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], allowed=CAUSAL)
    assert value("entropy", a1) == (math.log(2) + 1.5 * math.log(2)) / 2


def test_effective_keys_take_the_mean_after_the_exponential() -> None:
    mixed = rows([[1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]])
    assert value("effective_keys", mixed) == (1 + 4) / 2


def test_what_no_query_can_show_is_nan_and_not_zero() -> None:
    causal = rows(torch.eye(3), allowed=CAUSAL)
    assert math.isnan(value("next", causal))
    assert math.isnan(value("separators", causal))
    assert math.isnan(value("previous", rows([[1.0]])))
    assert math.isnan(value("entropy", rows([[1.0]])))
    assert math.isnan(value("separators", rows(EQUAL, special=[True, False, False, False])))


@pytest.mark.parametrize("name", ["distance", "previous", "next", "self"])
def test_distance_has_no_meaning_between_two_texts(name: str) -> None:
    assert math.isnan(value(name, rows([[0.5, 0.5], [0.25, 0.75]], cross=True)))


def test_previous_counts_only_queries_whose_previous_key_is_allowed() -> None:
    allowed = torch.tensor([[True, False], [False, True]])
    assert math.isnan(value("previous", rows(torch.eye(2), allowed=allowed)))


def test_blind_and_padded_queries_do_not_count() -> None:
    allowed = torch.tensor([[True, True, True], [False, False, False], [True, True, True]])
    table = [[0.5, 0.25, 0.25], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert value("max", rows(table, allowed=allowed)) == 0.75
    assert value("max", rows(table, allowed=allowed, real=[True, True, False])) == 0.5


def test_mass_a_sink_took_is_not_distance() -> None:
    """Rows that sum to 1/2 give the distance of what they do attend to."""
    assert value("distance", rows([[0.25, 0.25], [0.25, 0.25]])) == 0.5


def test_heads_and_samples_are_kept_apart_and_pooled_over_tokens() -> None:
    """(B=2, H=2): pooled over 3 + 1 tokens, never a mean of two means."""
    weights = torch.zeros(2, 2, 3, 3, dtype=torch.float64)
    weights[0, 0], weights[0, 1] = torch.eye(3), torch.eye(3)[[0, 0, 0]]
    weights[1, :, 0, 0] = 1.0
    counts = torch.tensor([[True, True, True], [True, False, False]])
    allowed = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    place, first = torch.arange(3), torch.zeros(2, dtype=torch.long)
    context = KeyContext(allowed=allowed, counts=counts, position=place, first=first)
    given = Rows(weights=weights, context=context)
    above, below = total(BY_NAME["self"], given)
    assert above.tolist() == [4.0, 2.0]
    assert below.tolist() == [4.0, 4.0]


@st.composite
def drawn(draw: st.DrawFn) -> Rows:
    """Softmax rows of random scores under a random mask that leaves every query its own key."""
    seed = draw(st.integers(0, 2**31))
    length, heads = draw(st.integers(1, 11)), draw(st.integers(1, 3))
    make = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, heads, length, length, generator=make, dtype=torch.float64)
    allowed = torch.rand(1, 1, length, length, generator=make) < 0.7
    allowed |= torch.eye(length, dtype=torch.bool)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    special = torch.rand(1, length, generator=make) < 0.3
    real = torch.ones(1, length, dtype=torch.bool)
    tokens = torch.randint(498, 503, (1, length), generator=make)
    context = KeyContext(
        allowed=allowed,
        counts=real,
        position=torch.arange(length),
        first=torch.tensor([0]),
        separators=special,
        tokens=tokens,
        punctuation=special.roll(1, 1),
    )
    return Rows(weights=weights, context=context)


@given(drawn())
def test_a_uniform_head_spreads_most(given_rows: Rows) -> None:
    for name in ("entropy", "effective_keys"):
        above, below = total(BY_NAME[name], given_rows)
        most, _ = total(BY_NAME[name], given_rows.uniform)
        several = below > 0
        assert bool((above[several] < most.expand_as(above)[several]).all())


BOUNDED = ("max", "confidence", "normalised_entropy", "diagonality", "unspent", "blocks", "segment")


@given(drawn())
def test_shares_lie_between_0_and_1(given_rows: Rows) -> None:
    for metric in EVERY:
        if metric.share or metric.name in BOUNDED:
            above, below = total(metric, given_rows)
            assert bool((above >= 0).all())
            most = above.minimum(below)
            accept(above, most, most)


def padded(given_rows: Rows) -> Rows:
    """The same rows with three padded tokens behind them, whose own rows hold rubbish."""

    def behind(table: Tensor | None, wide: tuple[int, ...], value: float) -> Tensor:
        assert table is not None
        return torch.nn.functional.pad(table, wide, value=value)

    context, square = given_rows.context, (0, 3, 0, 3)
    weights = behind(given_rows.weights, square, 0.0)
    allowed = behind(context.allowed, square, False)
    weights[..., -3:, :], allowed[..., -3:, :] = 0.125, True
    real = behind(context.counts, (0, 3), False)
    grown = KeyContext(
        allowed=allowed,
        counts=real,
        position=torch.arange(real.shape[1]),
        first=context.first,
        separators=behind(context.separators, (0, 3), True),
        tokens=behind(context.tokens, (0, 3), -1),
        punctuation=behind(context.punctuation, (0, 3), True),
    )
    return Rows(weights=weights, context=grown)


@given(drawn())
def test_padding_changes_nothing(given_rows: Rows) -> None:
    for metric in EVERY:
        if metric.name == "smoothed_entropy":
            continue  # as published it counts every key, padding too
        bare = torch.stack(total(metric, given_rows))
        accept(torch.stack(total(metric, padded(given_rows))), bare, bare)


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_every_metric_says_what_it_is_in_both_languages(metric: Metric) -> None:
    for text in (metric.label, metric.title, metric.formula, metric.source):
        assert text.en
        assert text.zh
    assert metric.title.zh != metric.title.en


def test_the_catalogue_is_the_folder() -> None:
    folder = Path(str(metrics_room.__file__)).parent
    found = []
    for path in folder.glob("*.py"):
        if path.stem not in ("__init__", "base"):
            module = import_module(f"headwise.heads.metrics.{path.stem}")
            found += [entry for entry in vars(module).values() if isinstance(entry, Metric)]
    missing = {metric.name for metric in found} ^ {metric.name for metric in EVERY}
    assert not missing, f"add to MEASURED or EVERY, or write the file of: {missing}"
    assert len(BY_NAME) == len(EVERY)
    assert MEASURED[: len(METRICS)] == METRICS
    assert EVERY[: len(MEASURED)] == MEASURED

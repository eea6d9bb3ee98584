"""The variants of metrics on three patterns computed by hand; sums over blocks equal the whole.

Values that are fractions are compared by the acceptance rule, in float64.
"""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.heads.metrics import EVERY, KeyContext, Metric, Rows, total
from headwise.heads.metrics.distances import BY_DISTANCE, PROFILES, RECEIVED, summed
from headwise.verify.oracle.tolerance import accept
from tests.heads.metrics.test_metrics import (
    AFTER,
    BEFORE,
    BY_NAME,
    EQUAL,
    HALVES,
    IDENTITY,
    TO_FIRST,
    rows,
    value,
)

LAST = torch.eye(20)[[19] * 20]
BACKWARDS = torch.eye(20).flip(0)
LONG = torch.full((20, 20), 1 / 20, dtype=torch.float64)
EARLY = torch.cat((torch.eye(70)[[0] * 64], torch.eye(70)[[69] * 6]))
TWO_BLOCKS = torch.cat((torch.full((32, 16), 3 / 64), torch.full((32, 16), 1 / 64)), 1)
SPECIAL = [True, False, False, False, True]
PART = [False, False, True, False, False]
PERIODIC = [1, 2, 1, 2, 1, 2]


def exactly(found: float, expected: float) -> None:
    exact = torch.tensor([expected], dtype=torch.float64)
    accept(torch.tensor([found], dtype=torch.float64), exact, exact)


@pytest.mark.parametrize(
    ("name", "shown", "expected"),
    [
        ("normalised_entropy", rows(IDENTITY), 0.0),
        ("normalised_entropy", rows(EQUAL), 1.0),
        ("normalised_entropy", rows(HALVES), 0.5),
        ("smoothed_entropy", rows(EQUAL), math.log(4)),
        ("smoothed_entropy", rows([[0.5, 0.5]], cross=True), math.log(2)),
        (
            "smoothed_entropy",
            rows([[1.0, 0.0]], cross=True),
            -(0.99995 * math.log(0.99995) + 0.00005 * math.log(0.00005)),
        ),
        ("confidence", rows(HALVES), 0.5),
        ("confidence", rows(IDENTITY, special=SPECIAL), 1.0),
        ("confidence", rows([[0.75, 0.25], [0.5, 0.5]], special=[False, True]), 0.625),
        ("confidence", rows([[0.25, 0.75], [0.5, 0.5]], special=[False, True]), 0.5),
        ("signed_distance", rows(BEFORE), -0.8),
        ("signed_distance", rows(AFTER), 0.8),
        ("signed_distance", rows(EQUAL), 0.0),
        ("distance_spread", rows(IDENTITY), 0.0),
        ("distance_spread", rows(EQUAL), math.sqrt(1.25)),
        ("distance_spread", rows(HALVES), 0.75),
        ("diagonality", rows(IDENTITY), 1.0),
        ("diagonality", rows(TO_FIRST), 1 / 3),
        ("diagonality", rows(AFTER), (0.75 + 2 / 3 + 0.5 + 2 / 3 + 1) / 5),
        ("local", rows(IDENTITY), 1.0),
        ("local", rows(LAST), 5 / 20),
        ("local", rows(LONG), (5 + 6 + 7 + 8 + 12 * 9 + 8 + 7 + 6 + 5) / 400),
        ("far", rows(LAST), 3 / 5),
        ("far", rows(BACKWARDS), 3 / 5),
        ("far", rows(LONG), 9 / 20 / 5),
        ("punctuation", rows(EQUAL, marks=[False, True, True, False]), 0.5),
        ("punctuation", rows(IDENTITY, marks=PART), 0.2),
        ("punctuation", rows(BEFORE, marks=SPECIAL), 0.4),
        ("rarest", rows(torch.eye(5)[[2] * 5], tokens=[999, 700, 900, 650, 610]), 1.0),
        ("rarest", rows(IDENTITY, tokens=[999, 700, 900, 650, 610]), 0.2),
        ("rarest", rows(TO_FIRST, tokens=[999, 700, 900, 650, 610]), 0.0),
        ("mostly_previous", rows(0.6 * BEFORE + 0.4 * AFTER), 1.0),
        ("mostly_previous", rows(AFTER), 0.0),
        ("mostly_previous", rows([[1.0, 0, 0], [1.0, 0, 0], [0, 0, 1.0]]), 0.5),
        ("mostly_next", rows(0.4 * BEFORE + 0.6 * AFTER), 1.0),
        ("mostly_next", rows(BEFORE), 0.0),
        ("mostly_next", rows([[0, 1.0, 0], [1.0, 0, 0], [0, 0, 1.0]]), 0.5),
        ("sink", rows(TO_FIRST), 1.0),
        ("sink", rows(EQUAL), 0.25),
        ("sink", rows(EARLY), 1.0),
        ("unspent", rows(EQUAL), 0.0),
        ("unspent", rows(0.5 * EQUAL), 0.5),
        ("unspent", rows(0.25 * IDENTITY), 0.75),
        ("from_separators", rows(IDENTITY, special=SPECIAL), 0.5),
        ("from_separators", rows(torch.eye(5)[[4] * 5], special=SPECIAL), 1.0),
        ("from_separators", rows(BEFORE, special=SPECIAL), 0.0),
        ("from_others", rows(IDENTITY, special=SPECIAL), 0.0),
        ("from_others", rows(torch.eye(5)[[4] * 5], special=SPECIAL), 1.0),
        ("from_others", rows(AFTER, special=SPECIAL), 1 / 3),
        ("blocks", rows(torch.eye(32)), 1.0),
        ("blocks", rows(torch.full((32, 32), 1 / 32)), 0.5),
        ("blocks", rows(TWO_BLOCKS), 0.75),
        ("segment", rows(IDENTITY, special=PART), 1.0),
        ("segment", rows(AFTER, special=PART), 0.8),
        ("segment", rows([[0.2] * 5] * 5, special=PART), 13 / 25),
        ("stripe", rows(torch.eye(6)[[0, 0, 1, 2, 3, 4]], tokens=PERIODIC), 1.0),
        ("stripe", rows(torch.eye(6), tokens=PERIODIC), 0.0),
        ("stripe", rows([[1 / 6] * 6] * 6, tokens=PERIODIC), 1 / 6),
        ("previous_mul", rows(BEFORE), 0.8),
        ("previous_mul", rows(IDENTITY), 0.0),
        ("previous_mul", rows(EQUAL), 3 / 16),
        ("previous_abs", rows(BEFORE), 0.8),
        ("previous_abs", rows(IDENTITY), -0.8),
        ("previous_abs", rows(EQUAL), -0.375),
        ("duplicate_mul", rows(torch.eye(4)[[0, 1, 0, 1]], tokens=[3, 5, 3, 5]), 0.5),
        ("duplicate_mul", rows(torch.eye(4)[[2, 3, 0, 1]], tokens=[3, 5, 3, 5]), 0.5),
        ("duplicate_mul", rows(EQUAL, tokens=[3, 5, 3, 5]), 0.125),
        ("duplicate_abs", rows(torch.eye(4)[[0, 1, 0, 1]], tokens=[3, 5, 3, 5]), 0.5),
        ("duplicate_abs", rows(torch.eye(4), tokens=[3, 5, 3, 5]), -0.5),
        ("duplicate_abs", rows(EQUAL, tokens=[3, 5, 3, 5]), 1 - (2 * 1 + 2 * 1.5) / 4),
        ("induction_mul", rows(torch.eye(4)[[0, 0, 1, 2]], tokens=[3, 5, 3, 5]), 0.5),
        ("induction_mul", rows(torch.eye(4), tokens=[3, 5, 3, 5]), 0.0),
        ("induction_mul", rows(EQUAL, tokens=[3, 5, 3, 5]), 0.125),
        ("induction_abs", rows(torch.eye(4)[[0, 0, 1, 2]], tokens=[3, 5, 3, 5]), 0.5),
        ("induction_abs", rows(torch.eye(4), tokens=[3, 5, 3, 5]), -0.5),
        ("induction_abs", rows(EQUAL, tokens=[3, 5, 3, 5]), 1 - (2 * 1 + 2 * 1.5) / 4),
    ],
)
def test_patterns_computed_by_hand(name: str, shown: Rows, expected: float) -> None:
    exactly(value(name, shown), expected)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("confidence", rows(IDENTITY, special=[True] * 5)),
        ("signed_distance", rows(EQUAL, cross=True)),
        ("distance_spread", rows(EQUAL, cross=True)),
        ("diagonality", rows(EQUAL, cross=True)),
        ("diagonality", rows([[1.0]])),
        ("local", rows(EQUAL, cross=True)),
        ("far", rows(EQUAL)),
        ("far", rows(LONG, cross=True)),
        ("far", rows(LONG, special=[False] + [True] * 19)),
        ("punctuation", rows(EQUAL)),
        ("punctuation", rows(EQUAL, marks=[False] * 4)),
        ("rarest", rows(EQUAL)),
        ("rarest", rows(EQUAL, tokens=[9, 8, 7, 6])),
        ("mostly_previous", rows(EQUAL, cross=True)),
        ("sink", rows(EQUAL, cross=True)),
        ("from_others", rows(EQUAL)),
        ("from_separators", rows(EQUAL, special=[True, False, False, True], cross=True)),
        ("blocks", rows(EQUAL)),
        ("segment", rows(EQUAL)),
        ("segment", rows(EQUAL, special=[False, False, False, True])),
        ("stripe", rows(EQUAL)),
        ("stripe", rows(EQUAL, tokens=[1, 2, 1, 3])),
        ("stripe", rows(EQUAL, tokens=[1, 2, 3, 1])),
        ("previous_mul", rows(EQUAL, cross=True)),
        ("previous_abs", rows(EQUAL, cross=True)),
        ("duplicate_mul", rows(EQUAL)),
        ("induction_abs", rows(EQUAL)),
    ],
)
def test_what_no_query_can_show_is_nan(name: str, shown: Rows) -> None:
    assert math.isnan(value(name, shown))


def test_the_profile_of_distance_is_a_distribution_with_its_ends() -> None:
    above, below = summed(BY_DISTANCE, rows(BACKWARDS))
    shares = dict(zip(BY_DISTANCE.places, (above / below)[0].tolist(), strict=True))
    exactly(sum(shares.values()), 1.0)
    assert (shares["< -16"], shares["> +16"]) == (2 / 20, 2 / 20)
    assert (shares["-15"], shares["+1"], shares["0"]) == (1 / 20, 1 / 20, 0.0)
    assert not summed(BY_DISTANCE, rows(EQUAL, cross=True))[1].any()


def test_each_of_the_first_keys_receives_the_mean_of_the_queries_that_may_look() -> None:
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    table = [[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]
    above, below = summed(RECEIVED, rows(table, allowed=causal))
    exactly((above / below)[0, 0].item(), 1.7 / 3)
    exactly((above / below)[0, 1].item(), 0.8 / 2)
    exactly((above / below)[0, 2].item(), 0.5)
    assert below[0, 3:].sum() == 0
    late = summed(RECEIVED, rows(EARLY))
    assert (late[0][0, 0], late[1][0, 0]) == (64, 64)
    assert not summed(RECEIVED, rows(EQUAL, cross=True))[1].any()


def whole_and_blocks(
    seed: int, length: int, size: int, *, scored: bool = False
) -> tuple[Rows, list[Rows]]:
    """A random causal text as one block, and as blocks of queries that keep reachable keys only."""
    make = torch.Generator().manual_seed(seed)
    reach = torch.ones(length, length, dtype=torch.bool).tril()
    if seed % 2:
        reach &= ~torch.ones(length, length, dtype=torch.bool).tril(-23)  # a window
    scores = torch.randn(2, 3, length, length, generator=make, dtype=torch.float64)
    weights = scores.masked_fill(~reach, -torch.inf).softmax(-1)
    tokens = torch.randint(498, 510, (2, length), generator=make)
    tokens[1] = torch.arange(length) % 7 + 497
    special = torch.rand(2, length, generator=make) < 0.2
    marks = torch.rand(2, length, generator=make) < 0.2
    real = torch.rand(2, length, generator=make) < 0.9
    first = torch.tensor([0, 2])

    def part(start: int, stop: int, low: int, high: int) -> Rows:
        allowed = reach[start:stop, low:high].expand(2, 1, -1, -1)
        context = KeyContext(
            allowed=allowed,
            counts=real[:, start:stop],
            position=torch.arange(start, stop),
            first=first,
            separators=special,
            tokens=tokens,
            punctuation=marks,
            origin=low,
        )
        logarithms = scores[:, :, start:stop, low:high].masked_fill(~allowed, -1e300)
        return Rows(
            weights=weights[:, :, start:stop, low:high],
            context=context,
            scores=logarithms if scored else None,
        )

    blocks = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        seen = reach[start:stop].any(0).nonzero().flatten()
        blocks.append(part(start, stop, int(seen[0]), int(seen[-1]) + 1))
    return part(0, length, 0, length), blocks


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 83), st.integers(1, 83))
def test_blocks_of_queries_add_up_to_the_whole(seed: int, length: int, size: int) -> None:
    whole, blocks = whole_and_blocks(seed, length, size)
    for metric in EVERY:
        apart = [torch.stack(total(metric, block)) for block in blocks]
        wanted = torch.stack(total(metric, whole))  # both sums: what rounds is small beside one
        accept(torch.stack(apart).sum(0), wanted, wanted)
    for profile in PROFILES:
        apart = [torch.stack(summed(profile, block)) for block in blocks]
        wanted = torch.stack(summed(profile, whole))
        accept(torch.stack(apart).sum(0), wanted, wanted)


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 200), st.integers(1, 200))
def test_what_is_kept_of_blocks_gives_the_same(seed: int, length: int, size: int) -> None:
    """The weights are gone: each metric lives on the facts that it says it reads."""
    whole, blocks = whole_and_blocks(seed, length, size, scored=True)
    for measure in (*EVERY, *PROFILES):
        reads = (*measure.reads, "queries")
        kept = [block.without_inputs(reads) for block in blocks]
        context = KeyContext.concatenated([block.context for block in kept], reads)
        joined = Rows.concatenated(kept, context, reads)
        if isinstance(measure, Metric):
            found, wanted = (torch.stack(total(measure, each)) for each in (joined, whole))
        else:
            found, wanted = (torch.stack(summed(measure, each)) for each in (joined, whole))
        accept(found, wanted, wanted)


def test_a_fact_that_was_not_kept_is_an_error_and_not_a_wrong_number() -> None:
    _, (block, *_) = whole_and_blocks(1, 20, 7)
    with pytest.raises(LookupError, match="queries was not kept; name it in what the metric"):
        total(BY_NAME["entropy"], block.without_inputs(BY_NAME["self"].reads))


@pytest.mark.parametrize("length", [1, 63, 64, 127, 128, 129, 193, 300])
def test_the_first_of_several_largest_weights_is_found(length: int) -> None:
    make = torch.Generator().manual_seed(length)
    weights = torch.randint(0, 3, (2, 3, 5, length), generator=make).double()
    context = KeyContext(
        allowed=torch.ones(2, 1, 5, length, dtype=torch.bool),
        counts=torch.ones(2, 5, dtype=torch.bool),
        position=None,
        first=torch.zeros(2, dtype=torch.long),
        origin=4,
    )
    value, key = Rows(weights=weights, context=context).most
    assert torch.equal(value, weights.amax(-1))
    index = torch.arange(length).expand_as(weights)
    wanted = torch.where(weights == value[..., None], index, length).amin(-1)
    assert torch.equal(key, wanted + 4)


ONE_HOT = torch.eye(25, dtype=torch.float64)[torch.arange(25).repeat(4)]  # (100, 25)
SHARP = 50.0


def constructed() -> tuple[Tensor, Tensor]:
    """The weights of two heads, each (100, 100), on 25 tokens 4 times.

    The residual is one-hot; the first head looks at the place before and writes its token, the
    second looks for places before which its own token stands. Nothing is trained.
    """
    causal = torch.ones(100, 100, dtype=torch.bool).tril()
    place = torch.eye(100, dtype=torch.float64)
    asked = torch.zeros_like(place)
    asked[1:] = place[:-1]  # place i asks for place i - 1, the first for nothing

    def head(asking: Tensor, answering: Tensor) -> Tensor:
        scores = SHARP * asking @ answering.T
        return scores.masked_fill(~causal, -torch.inf).softmax(-1)

    low = head(asked, place)
    written = low @ ONE_HOT
    return low, head(ONE_HOT, written)


def test_the_published_scores_of_one_constructed_head() -> None:
    low, high = constructed()
    causal = torch.ones(100, 100, dtype=torch.bool).tril()
    tokens = torch.arange(25).repeat(4).tolist()
    previous = rows(low, allowed=causal, tokens=tokens)
    perfect = rows(high, allowed=causal, tokens=tokens)
    scores = {
        name: f"{value(name, perfect):.4f}"
        for name in ("induction", "induction_mul", "stripe", "previous")
    }
    assert scores == {
        "induction": "0.9856",
        "induction_mul": "0.7392",
        "stripe": "0.6011",
        "previous": "0.0284",
    }
    assert f"{value('previous', previous):.4f}" == "1.0000"
    assert f"{value('induction', previous):.4f}" == "0.0000"
    assert f"{value('induction_mul', perfect.uniform):.4f}" == "0.0235"


@pytest.mark.parametrize("causal", [True, False])
def test_the_pattern_of_induction_is_that_of_transformer_lens(causal: bool) -> None:
    """P[i, j] = 1 where x[j - 1] = x[i] and j - 1 < i: a token that repeats its neighbour looks at
    itself."""
    tokens = [5, 5, 7, 5, 5, 5, 7, 9]
    length = len(tokens)
    make = torch.Generator().manual_seed(4)
    allowed = torch.ones(length, length, dtype=torch.bool)
    allowed = allowed.tril() if causal else allowed
    scores = torch.randn(length, length, generator=make, dtype=torch.float64)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    same = torch.tensor([[one == other for other in tokens] for one in tokens])
    duplicate = same & torch.ones(length, length, dtype=torch.bool).tril(-1)
    for name, pattern in (("duplicate", duplicate), ("induction", duplicate.roll(1, 1))):
        shown = rows(weights, allowed=allowed, tokens=tokens)
        wanted = (weights * pattern).sum() / weights.sum()
        exactly(value(f"{name}_mul", shown), wanted.item())
        apart = (weights - (pattern & allowed).double()).abs().sum() / length
        exactly(value(f"{name}_abs", shown), 1 - apart.item())


def test_every_name_is_one() -> None:
    assert len(BY_NAME) == len(EVERY)
    assert len({profile.name for profile in PROFILES}) == len(PROFILES)


def some_do_not_count() -> Rows:
    """Causal, of 40 tokens, all kinds among them; and a first block, whose queries see one."""
    allowed = torch.ones(40, 40, dtype=torch.bool).tril()
    weights = allowed / allowed.sum(-1, keepdim=True)
    special, marks = [False] * 40, [False] * 40
    special[9] = marks[11] = True
    tokens = [520 + n % 7 if n else 5 for n in range(40)]
    return rows(weights, allowed=allowed, special=special, marks=marks, tokens=tokens)


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_a_formula_says_which_queries_count(metric: Metric) -> None:
    shown = some_do_not_count()
    counted = metric.sums(shown)[1].expand(shown.shape) > 0
    formula = metric.formula
    if not bool(counted.all()) and formula.en.startswith(("mean_i", "share of queries")):
        assert re.search(
            r"\b(over the|for (the )?|of those whose|of those that|two or more)", formula.en
        )
        assert re.search("只计|至少|≥", formula.zh)


def test_the_rarest_formula_says_who_may_be_it() -> None:
    (rarest,) = (metric for metric in EVERY if metric.name == "rarest")
    assert "first token and special tokens" in rarest.formula.en
    assert "首个词元与特殊词元" in rarest.formula.zh

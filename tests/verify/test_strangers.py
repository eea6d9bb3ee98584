"""Targets in strangers' styles, written by somebody who had not read the code."""

import pytest

from benchmarks.confusion import Stranger, check_stranger, strangers

EVERY = tuple(strangers())


@pytest.mark.parametrize(
    "stranger",
    [pytest.param(one, marks=[] if one.right else [pytest.mark.slow]) for one in EVERY],
    ids=lambda one: one.file,
)
def test_a_stranger_is_judged_right(stranger: Stranger) -> None:
    result = check_stranger(stranger)
    assert result.status == ("accepted" if stranger.right else "differs")
    assert result.named_right, [sorted(group) for group in result.named]


def test_the_strangers_are_of_both_kinds() -> None:
    assert sum(one.right for one in EVERY) >= 10
    assert len({name for one in EVERY for name in one.named}) >= 15

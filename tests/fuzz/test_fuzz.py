"""Random calls on every possible engine: 60 in the fast tests, 2,000 in the slow tests."""

import pytest
import torch

import headwise as hw
from tests.fuzz.cases import Drawn
from tests.fuzz.check import differences

CASES, AT_ONCE = 2000, 100


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_few_cases_agree_with_the_oracle(first: int) -> None:
    assert [line for seed in range(first, first + 20) for line in differences(seed)] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_cases_agree_with_the_oracle(first: int) -> None:
    assert [line for seed in range(first, first + AT_ONCE) for line in differences(seed)] == []


def test_a_wrong_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    window = type(hw.window(1, 1))
    monkeypatch.setattr(window, "rule", lambda self, b, h, q, k: (k > q - self.left) & (k <= q))
    assert any(line for seed in range(200) for line in differences(seed))


def test_the_cases_differ_from_each_other() -> None:
    cases = [Drawn(seed).case() for seed in range(100)]
    assert len({str(case.mask) for case in cases}) > 60
    assert {case.qkv[0].dtype for case in cases} == {torch.float64, torch.float32, torch.bfloat16}

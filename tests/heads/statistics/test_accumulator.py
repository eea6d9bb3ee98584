"""Sums with names can be added and saved; only sums can be read."""

import pytest
import torch
from torch import Tensor

from headwise.errors import BadFile, BadValue
from headwise.heads import sums
from headwise.heads.sums import Accumulator


def test_sums_of_one_name_add_up_and_the_others_are_kept() -> None:
    one, other = Accumulator(), Accumulator()
    one.add("a", torch.tensor([1, 2]))
    other.add("a", torch.tensor([10.0, 20.0]))
    other.add("b", torch.tensor(5))
    one.merge(other)
    assert one["a"].tolist() == [11.0, 22.0]
    assert list(one) == ["a", "b"]
    assert "b" in one
    assert other["a"].tolist() == [10.0, 20.0]
    one.add("b", torch.tensor(1))
    assert other["b"].item() == 5.0


def test_another_shape_does_not_add_up() -> None:
    kept = Accumulator()
    kept.add("a", torch.zeros(2))
    with pytest.raises(BadValue, match=r"sums: expected shape \(2,\) for a, got \(3,\); use one"):
        kept.add("a", torch.zeros(3))


def test_what_is_written_is_read_back() -> None:
    kept = Accumulator()
    kept.add("L0/nmod:desc", torch.tensor([[1.5]]))
    again = Accumulator.from_tensors(kept.tensors())
    assert torch.equal(again["L0/nmod:desc"], kept["L0/nmod:desc"])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("a b", torch.zeros(1, dtype=torch.float64)),
        ("a\x1b", torch.zeros(1, dtype=torch.float64)),
        ("", torch.zeros(1, dtype=torch.float64)),
        ("a", torch.zeros(1)),
        ("a", torch.tensor([torch.inf], dtype=torch.float64)),
    ],
)
def test_anything_else_is_refused(name: str, tensor: Tensor) -> None:
    with pytest.raises(BadFile, match="sums: expected finite float64 sums from"):
        Accumulator.from_tensors({name: tensor})


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "MOST_NAMES", 1)
    monkeypatch.setattr(sums, "MOST_NUMBERS", 2)
    good = torch.zeros(2, dtype=torch.float64)
    assert list(Accumulator.from_tensors({"a": good})) == ["a"]
    with pytest.raises(BadFile, match="got 2 names"):
        Accumulator.from_tensors({"a": good, "b": good})
    with pytest.raises(BadFile, match=r"got a \(3,\)"):
        Accumulator.from_tensors({"a": torch.zeros(3, dtype=torch.float64)})

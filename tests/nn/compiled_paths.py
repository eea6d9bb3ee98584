"""The paths of `test_attention` under `torch.compile`.

`test_toolchain` runs these tests in a separate process. The fast tests use every kind of module and
every mask at least once; the slow tests run all combinations, and some of them with inductor.
"""

import itertools

import pytest
import torch

from tests.nn.oracle import Truth, inputs
from tests.nn.test_attention import KINDS, WEIGHTS, H, make, masks

COLUMN = list(itertools.product(KINDS, masks(H)))
SOME = [(*cell, list(WEIGHTS)[at % 3]) for at, cell in enumerate(COLUMN[::7])]
"""As many steps as meet every kind, every mask and every kind of weights."""

WHOLE = [(*cell, weights) for cell in COLUMN for weights in WEIGHTS]


def hold(kind: str, mask: str, weights: str, backend: str) -> None:
    """Forward and gradients of the compiled module are accepted."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = make(kind)
    arguments, allowed, bias = masks(module.num_heads)[mask]
    given = inputs(module)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    output, found = compiled(*given, **arguments, **WEIGHTS[weights])
    assert (found is None) == (weights == "none")
    Truth(module, given, allowed, bias).hold(output, found)


def test_some_of_the_column_meets_everything() -> None:
    for number, every in enumerate((KINDS, masks(H), WEIGHTS)):
        assert {cell[number] for cell in SOME} == set(every)


@pytest.mark.parametrize(("kind", "mask", "weights"), SOME)
def test_compiled_agrees_with_the_oracle(kind: str, mask: str, weights: str) -> None:
    hold(kind, mask, weights, "eager")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mask", "weights"), WHOLE)
def test_everything_compiled_agrees_with_the_oracle(kind: str, mask: str, weights: str) -> None:
    hold(kind, mask, weights, "eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method. is deprecated")  # inductor's import
@pytest.mark.parametrize(("kind", "mask", "weights"), SOME[::3])
def test_compiled_by_inductor_agrees_with_the_oracle(kind: str, mask: str, weights: str) -> None:
    hold(kind, mask, weights, "inductor")

"""Soft caps of transformers models: without gradients, the scores of all pairs are not stored."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import headwise as hw
from headwise.call import Call
from headwise.errors import BadValue
from headwise.masks import full
from headwise.nn.huggingface.attention_function import Cap, SoftCap, capped
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny

B, H, G, D, L, S, CAP, SCALE = 2, 6, 3, 5, 7, 11, 2.0, 0.7


class Largest(TorchDispatchMode):
    """The largest number of elements that any operation gives."""

    most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, Tensor):
                self.most = max(self.most, each.numel())
        return found


def by_hand(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, dtype: torch.dtype) -> Tensor:
    q, k, v = (x.to(dtype) for x in (q, k, v))
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    scores = CAP * torch.tanh(q @ k.mT * SCALE / CAP)
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def drawn(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = ((H, queries), (G, keys), (G, keys))
    return [3 * torch.randn(B, heads, length, D).to(dtype) for heads, length in sizes]


@pytest.mark.parametrize("engine", ["auto", "eager", "sdpa", "tiled"])
@pytest.mark.parametrize("offset", [None, 2])
def test_every_engine_gives_capped_attention(engine: str, offset: int | None) -> None:
    q, k, v = drawn(L, S)
    first = S - L if offset is None else offset
    allowed = torch.arange(S) <= torch.arange(L)[:, None] + first
    zeros, mask, position = capped(q, k, hw.causal(), offset, Cap(CAP, SCALE))
    assert isinstance(position, SoftCap)
    found = hw.attend(zeros, k, v, mask=mask, position=position, offset=offset, engine=engine)
    near, right = (by_hand(q, k, v, allowed, d) for d in (torch.float32, torch.float64))
    accept(found, near, right)


def test_it_is_for_all_samples_at_once() -> None:
    """What is measured goes by samples, and would meet the keys of another."""
    q, k, v = drawn(L, S)
    zeros, mask, position = capped(q, k, full(), None, Cap(CAP, SCALE))
    with pytest.raises(BadValue, match=r"softcap: .*\(2, 6\), got \(1, 6\)"):
        hw.attend(zeros, k, v, mask=mask, position=position, need=("entropy",), engine="rows")


def test_with_a_gradient_the_scores_are_written_out() -> None:
    q, k, v = (x.requires_grad_() for x in drawn(L, S))
    zeros, mask, position = capped(q, k, full(), None, Cap(CAP, SCALE))
    assert position is None
    found = torch.autograd.grad(hw.attend(zeros, k, v, mask=mask).square().sum(), (q, k, v))
    grads = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        output = by_hand(*leaves, torch.ones(L, S, dtype=torch.bool), dtype)
        grads.append(torch.autograd.grad(output.square().sum(), leaves))
    for own, near, right in zip(found, *grads, strict=True):
        accept(own, near, right)


def test_the_reference_gives_it_too() -> None:
    q, k, v = drawn(L, S, torch.float64)
    zeros, mask, position = capped(q, k, full(), None, Cap(CAP, SCALE))
    exact = by_hand(q, k, v, torch.ones(L, S, dtype=torch.bool), torch.float64)
    accept(reference(Call.of(zeros, k, v, mask=mask, position=position)).output, exact, exact)


def test_a_long_call_makes_no_square() -> None:
    q, k, v = (x[:1, :3] for x in drawn(2048, 2048))
    zeros, mask, position = capped(q, k, hw.causal(), None, Cap(CAP, SCALE))
    with torch.no_grad(), Largest() as seen:
        hw.attend(zeros, k, v, mask=mask, position=position)
    assert seen.most < 2048 * 2048


@pytest.mark.slow
def test_a_long_text_makes_no_square() -> None:
    model, length = tiny.gemma2(), 2400
    exact, ids = copy.deepcopy(model).double(), torch.randint(3, 31, (1, 2400))
    with torch.no_grad():
        usual, right = model(ids).last_hidden_state, exact(ids).last_hidden_state
        assert hw.convert(model).changed
        with Largest() as seen:
            found = model(ids).last_hidden_state
    accept(found, usual, right)
    assert seen.most < length * length

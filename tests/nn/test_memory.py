"""Segments with a memory give the result of the whole text."""

import copy
import math

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.verify.oracle.tolerance import accept, judge
from tests.examples import every_position, named

B, E, H, L, REACH = 2, 12, 6, 23, 5
"""Primes, but for E, which H divides."""

SEGMENTS = ([7, 7, 7, 2], [1] * L, [11, 1, 3, 8], [L])
PLACED = [p for p in every_position(H, E // H, E // H) if not isinstance(p, hw.Rotary)] + [
    hw.Rotary(E // H, pairs="halves")
]


def layer(position: hw.Position | None, mask: hw.Mask) -> hw.MultiheadAttention:
    return hw.MultiheadAttention(
        E, H, batch_first=True, position=copy.deepcopy(position), mask=mask
    ).double()


def by_segments(
    attention: hw.MultiheadAttention, memory: hw.SegmentMemory, x: Tensor, sizes: list[int]
) -> Tensor:
    found = []
    for segment in torch.split(x, sizes, 1):
        context = memory(segment)
        found.append(attention(segment, context, context, need_weights=False)[0])
    return torch.cat(found, 1)


@pytest.mark.parametrize("sizes", SEGMENTS, ids=str)
@pytest.mark.parametrize("position", PLACED, ids=named)
def test_segments_give_what_the_whole_gives(position: hw.Position, sizes: list[int]) -> None:
    exact = layer(position, hw.causal() & hw.window(REACH, 0))
    plain, x = copy.deepcopy(exact).float(), torch.randn(B, L, E)
    memory = hw.SegmentMemory(REACH, batch_first=True)
    with torch.no_grad():
        wanted = exact(x.double(), x.double(), x.double())[0]
        accept(by_segments(plain, memory, x, sizes), plain(x, x, x)[0], wanted)


def test_a_stack_of_layers_each_with_its_memory_gives_what_the_whole_gives() -> None:
    mask, position = hw.causal() & hw.window(REACH, 0), hw.TransformerXL(H, E // H)
    lower, upper = (layer(position, mask) for _ in range(2))
    below, above = (hw.SegmentMemory(REACH, batch_first=True) for _ in range(2))
    x, found = torch.randn(B, L, E).double(), []
    for segment in x.split(7, 1):
        size = segment.shape[1]
        found.append(by_segments(upper, above, by_segments(lower, below, segment, [size]), [size]))
    inner = lower(x, x, x)[0]
    wanted = upper(inner, inner, inner)[0]
    accept(torch.cat(found, 1), wanted, wanted)


def test_a_memory_shorter_than_the_window_is_not_the_whole() -> None:
    attention = layer(hw.TransformerXL(H, E // H), hw.causal() & hw.window(REACH, 0))
    x = torch.randn(B, L, E, dtype=torch.float64)
    memory = hw.SegmentMemory(REACH - 1, batch_first=True)
    found = by_segments(attention, memory, x, [7, 16])
    wanted = attention(x, x, x)[0]
    assert not judge(found, wanted, wanted).accepted


@pytest.mark.parametrize(
    "position", [hw.TransformerXL(H, E // H), hw.Shaw(3, E // H, value_dim=E // H)], ids=named
)
def test_cases_31_32_39_every_pair_by_a_loop_with_a_memory(position: hw.Position) -> None:
    """Query i of the new segment stands at M + i: distances count from there, ahead as well."""
    dim, held, length = E // H, 5, 3
    attention = layer(position, hw.full())
    place = attention.position
    assert place is not None
    first, x = torch.randn(B, held, E).double(), torch.randn(B, length, E).double()
    memory = hw.SegmentMemory(held, batch_first=True)
    memory(first)
    context = memory(x)
    q, k, v = (
        p(t).view(B, -1, H, dim)
        for p, t in (
            (attention.q_proj, x),
            (attention.k_proj, context),
            (attention.v_proj, context),
        )
    )
    heads = torch.zeros(B, length, H, dim, dtype=torch.float64)
    for i in range(length):
        scores = torch.zeros(B, H, held + length, dtype=torch.float64)
        added = torch.zeros(held + length, dim, dtype=torch.float64)
        for j in range(held + length):
            distance = held + i - j
            if isinstance(place, hw.Shaw):
                row = min(max(-distance, -3), 3) + 3
                scores[..., j] = (q[:, i] * (k[:, j] + place.table[row])).sum(-1)
                assert place.value_table is not None
                added[j] = place.value_table[row]
            else:
                assert isinstance(place, hw.TransformerXL)
                angles = [distance / 10000 ** (p / E) for p in range(0, E, 2)]
                waves = [f(angle) for angle in angles for f in (math.sin, math.cos)]
                r = place.projection @ torch.tensor(waves, dtype=torch.float64)
                content = ((q[:, i] + place.u) * k[:, j]).sum(-1)
                scores[..., j] = content + ((q[:, i] + place.v) * r).sum(-1)
        weights = (scores / dim**0.5).softmax(-1)
        heads[:, i] = torch.einsum("bhj,bjhd->bhd", weights, v + added[None, :, None])
    wanted = attention.out_proj(heads.flatten(2))
    accept(attention(x, context, context)[0], wanted, wanted)


def test_no_gradient_flows_into_the_memory() -> None:
    attention = layer(hw.TransformerXL(H, E // H), hw.causal())
    memory = hw.SegmentMemory(7, batch_first=True)
    first, second = (torch.randn(B, 7, E).double().requires_grad_() for _ in range(2))
    memory(first)
    context = memory(second)
    assert context.requires_grad
    attention(second, context, context)[0].sum().backward()
    assert first.grad is None
    assert second.grad is not None
    assert attention.k_proj.weight.grad is not None  # through the memory's keys as well
    assert memory.held is not None
    assert not memory.held.requires_grad


def test_it_holds_the_last_states_of_all_that_came() -> None:
    x = torch.randn(B, 13, E)
    memory = hw.SegmentMemory(7, batch_first=True)
    for segment, known in zip(torch.split(x, [3, 1, 9], 1), (0, 3, 4), strict=True):
        assert memory(segment).shape[1] == known + segment.shape[1]
    assert memory.held is not None
    assert torch.equal(memory.held, x[:, -7:])
    assert repr(memory) == "SegmentMemory(7, batch_first=True, 7 held)"


def test_it_has_the_layout_of_the_module() -> None:
    x = torch.randn(13, B, E)
    after, alone = hw.SegmentMemory(5), hw.SegmentMemory(5, batch_first=True)
    for segment in torch.split(x, [11, 2]):
        after(segment)
        alone(segment[:, 0])  # (L, E) has no batch
    assert after.held is not None
    assert alone.held is not None
    assert torch.equal(after.held, x[-5:])
    assert torch.equal(alone.held, x[-5:, 0])


def test_what_is_held_is_the_memorys_own() -> None:
    x = torch.randn(B, 3, E)
    memory = hw.SegmentMemory(5, batch_first=True)
    context, before = memory(x), x.clone()
    x.zero_()
    context.fill_(7)
    assert memory.held is not None
    assert torch.equal(memory.held, before)


def test_marks_of_real_tokens_are_carried_by_a_second_memory() -> None:
    """Padding before the first segment: its keys are seen by nobody in the next one either."""
    attention = layer(hw.TransformerXL(H, E // H), hw.causal() & hw.window(REACH, 0))
    x, real = torch.randn(B, L, E).double(), torch.ones(B, L, dtype=torch.bool)
    real[1, :3] = False
    states, marks = (hw.SegmentMemory(REACH, batch_first=True) for _ in range(2))
    found = []
    for segment, here in zip(x.split(5, 1), real.split(5, 1), strict=True):
        context, known = states(segment), marks(here[..., None])[..., 0]
        found.append(attention(segment, context, context, key_padding_mask=~known)[0])
    wanted = attention(x, x, x, key_padding_mask=~real)[0]
    alone = attention(x[1:, 3:], x[1:, 3:], x[1:, 3:])[0]
    accept(torch.cat(found, 1), wanted, wanted)
    accept(torch.cat(found, 1)[1:, 3:], alone, alone)


def test_reorder_lets_samples_go_on_from_others() -> None:
    x = torch.randn(3, 5, E)
    for batch_first in (True, False):
        memory = hw.SegmentMemory(2, batch_first=batch_first)
        memory.reorder(torch.tensor([1]))  # nothing is held: nothing to do
        memory(x if batch_first else x.transpose(0, 1))
        memory.reorder(torch.tensor([2, 0, 2, 2]))
        assert memory.held is not None
        held = memory.held if batch_first else memory.held.transpose(0, 1)
        assert torch.equal(held, x[[2, 0, 2, 2], -2:])


def test_reset_forgets() -> None:
    memory = hw.SegmentMemory(3, batch_first=True)
    memory(torch.zeros(B, 5, E))
    memory.reset()
    assert memory.held is None
    assert memory(torch.zeros(B + 1, 5, E + 1)).shape == (B + 1, 5, E + 1)


def test_it_is_moved_and_copied_but_no_state_of_a_model() -> None:
    memory = hw.SegmentMemory(3, batch_first=True)
    memory(torch.randn(B, 5, E, requires_grad=True))
    other = copy.deepcopy(memory).double()
    assert other.held is not None
    assert other.held.dtype == torch.float64
    other(torch.zeros(B, 3, E).double())
    assert memory.held is not None
    assert bool(memory.held.any())
    assert not memory.state_dict()
    assert memory.to("meta").held.device.type == "meta"
    model = torch.nn.Sequential(hw.SegmentMemory(3))
    model.load_state_dict(torch.nn.Sequential(memory).state_dict())


def test_a_length_of_0_holds_nothing() -> None:
    memory = hw.SegmentMemory(0)
    for _ in range(3):
        assert memory(torch.zeros(5, B, E)).shape == (5, B, E)


@pytest.mark.parametrize(("length", "error"), [(-1, BadValue), (1.5, BadType), (True, BadType)])
def test_a_length_that_is_none_is_refused(length: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="SegmentMemory: length must be"):
        hw.SegmentMemory(length)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(B + 1, 3, E),
        torch.zeros(B, 3, E + 1),
        torch.zeros(B, 3, E).double(),
        torch.zeros(3, E),
    ],
    ids=["batch", "width", "dtype", "no batch"],
)
def test_another_text_needs_a_reset(other: Tensor) -> None:
    memory = hw.SegmentMemory(3, batch_first=True)
    memory(torch.zeros(B, 5, E))
    with pytest.raises(BadValue, match=r"x: the memory holds .* call reset\(\)"):
        memory(other)
    assert memory(torch.zeros(B, 1, E)).shape[1] == 4  # what was held is as it was


def test_an_input_without_states_is_refused() -> None:
    with pytest.raises(BadValue, match=r"x: expected \(B, L, E\).* got \(5,\)"):
        hw.SegmentMemory(3)(torch.zeros(5))


@pytest.mark.parametrize("index", [[0], torch.tensor([0.0]), torch.zeros(1, 1, dtype=torch.long)])
def test_an_index_that_is_none_is_refused(index: object) -> None:
    memory = hw.SegmentMemory(3)
    memory(torch.zeros(5, B, E))
    with pytest.raises(BadType, match=r"index: expected an integer tensor \(B,\)"):
        memory.reorder(index)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [[B], [0, -1]])
def test_an_index_outside_the_batch_is_refused(index: list[int]) -> None:
    memory = hw.SegmentMemory(3)
    memory(torch.zeros(5, B, E))
    with pytest.raises(BadValue, match=f"index: .* the {B} samples in the memory"):
        memory.reorder(torch.tensor(index))

"""What `test_tiled_operator` runs in a process of its own: `attend` compiled, and the oracle."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import headwise as hw
from headwise.call import Call, Result
from tests.examples import accept_with_gradients, tensors

ROTARY = hw.Rotary(11, pairs="halves", rotary_dim=10)


def windowed(q, k, v):
    mask = hw.causal() & hw.window(20, 0)
    return hw.attend(q, k, v, mask=mask, position=ROTARY, engine="tiled")


def padded(q, k, v, lengths):
    return hw.attend(q, k, v, mask=hw.causal() & hw.padding(lengths), engine="tiled")


def held_to_the_oracle(compiled):
    for length in (37, 67):
        q, k, v = tensors(length, length, dtype=torch.float32)
        call = Call.of(q, k, v, mask=hw.causal() & hw.window(20, 0), position=ROTARY)
        accept_with_gradients(call, Result(compiled(q, k, v)))


def test_dynamic():
    held_to_the_oracle(torch.compile(windowed, fullgraph=True, backend="aot_eager", dynamic=True))


def test_lengths_that_are_known_only_when_it_runs():
    compiled = torch.compile(padded, fullgraph=True, backend="aot_eager")
    q, k, v = tensors(37, 37, dtype=torch.float32)
    for lengths in (torch.tensor([30, 0]), torch.tensor([1, 37])):
        call = Call.of(q, k, v, mask=hw.causal() & hw.padding(lengths))
        accept_with_gradients(call, Result(compiled(q, k, v, lengths)))


def test_auto_takes_it_for_a_long_window():
    targets = []

    def backend(graph, inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def attend(q, k, v):
        return hw.attend(q, k, v, mask=hw.window(20, 20))

    q, k, v = (t.detach() for t in tensors(521, 521, dtype=torch.float32))
    got = torch.compile(attend, fullgraph=True, backend=backend)(q, k, v)
    assert any("headwise" in target and "tiled" in target for target in targets)
    assert torch.equal(got, attend(q, k, v))


if __name__ == "__main__":
    for check in (
        test_dynamic,
        test_lengths_that_are_known_only_when_it_runs,
        test_auto_takes_it_for_a_long_window,
    ):
        torch._dynamo.reset()
        check()
        sys.stdout.write(f"{check.__name__}\n")

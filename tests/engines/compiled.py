"""The tiled engine under `torch.compile`, compared with the oracle.

`test_tiled_operator` runs these tests in a separate process, because the shape checks of the other
tests cannot be traced.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import headwise as hw
from headwise.call import Call
from headwise.engines.dropout import Keep, draw_call_seed
from headwise.masks import Mask
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.engines.test_tiled_operator import LearnedBias, Parity
from tests.examples import DIM, HEADS, VALUE_DIM, Largest, rounded_otherwise, tensors
from tests.roundings import hold

torch.set_num_threads(1)
L, FAR, LONG, SEED = 61, 797, 601, 7
"""Lengths that are multiples of nothing: short, so long that keys are far, and for auto."""

INDUCTOR = pytest.param(
    "inductor",
    marks=[
        pytest.mark.slow,
        pytest.mark.filterwarnings("ignore:.*script_method. is deprecated"),  # its import
    ],
)
BACKENDS = [pytest.param("eager", marks=pytest.mark.slow), "aot_eager", INDUCTOR]

POSITIONS: Mapping[str, Callable[[], hw.Position]] = {
    "ALiBi": lambda: hw.ALiBi(HEADS),
    "Rotary": lambda: hw.Rotary(DIM, pairs="halves", rotary_dim=DIM - 1),
    "Shaw": lambda: hw.Shaw(3, DIM),
    "Shaw with values": lambda: hw.Shaw(2, DIM, value_dim=VALUE_DIM),
    "T5Bias": lambda: hw.T5Bias(HEADS, num_buckets=8, max_distance=31),
    "TransformerXL": lambda: hw.TransformerXL(HEADS, DIM, embed_dim=5),
    "ALiBi + T5Bias": lambda: hw.ALiBi(HEADS) + hw.T5Bias(HEADS, num_buckets=8, max_distance=31),
}


@pytest.fixture(autouse=True)
def from_the_start() -> Iterator[None]:
    """Nothing compiled before; gradients of one graph may be taken more than once.

    Inductor's own random numbers are tried apart.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    again = torch._functorch.config.patch(donated_buffer=False)
    with again, torch._inductor.config.patch(fallback_random=True):
        yield


def windowed() -> Mask:
    return hw.causal() & hw.window(20, 0)


def open_ended(*rows: Tensor) -> None:
    """Marks the lengths of q, k and v as dynamic: to specialise on one is then an error."""
    for each in rows:
        torch._dynamo.mark_dynamic(each, 2)


def exact(call: Call, dtype: torch.dtype, keep: Keep | None) -> list[Tensor]:
    """Output and logsumexp of the reference, weights being dropped by hand."""
    steps = reference(call, dtype)
    if keep is None:
        return [steps.output, steps.logsumexp]
    left = keep.dense(call.shape)
    used = torch.where(left, steps.weights, 0.0) / (1 - keep.dropout)
    output = used @ call.v.to(dtype).repeat_interleave(call.group, 1)
    added = call.position.values(used, *call.position_ids())
    return [output if added is None else output + added, steps.logsumexp]


def check(
    found: Sequence[Tensor], call: Call, beside: Sequence[Tensor] = (), keep: Keep | None = None
) -> None:
    """Hold output, or output and logsumexp, and every gradient of both to the oracle.

    Args:
        found: what was given.
        call: the arguments, but for the dropout.
        beside: other leaves, whose gradients the call has too.
        keep: what dropout left.
    """
    count, generator = len(found), torch.Generator().manual_seed(3)
    seeds = [torch.randn(each.shape, generator=generator) for each in found]

    def numbers(results: Sequence[Tensor], of: Call) -> list[Tensor]:
        learned = [each for each in of.position.parameters() if each.requires_grad]
        sinks = [] if of.sinks is None else [of.sinks]
        inputs = (of.q, of.k, of.v, *learned, *sinks, *beside)
        seeded = [seed.to(each.dtype) for seed, each in zip(seeds, results, strict=True)]
        return [*results, *torch.autograd.grad(results, inputs, seeded, retain_graph=True)]

    def of_reference(of: Call, dtype: torch.dtype) -> list[Tensor]:
        return numbers(exact(of, dtype, keep)[:count], of)

    dtype = call.q.dtype
    hold(
        numbers(found, call),
        of_reference(call, dtype),
        of_reference(call, torch.float64),
        lambda run: of_reference(rounded_otherwise(call, run), dtype),
    )


# --- positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_at_any_length(name: str, backend: str) -> None:
    position, counter = POSITIONS[name](), CompileCounterWithBackend(backend)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=windowed(), position=position, engine="tiled")

    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for length in (L, L + 6, 2 * L):
        qkv = tensors(length, length, dtype=torch.float32)
        open_ended(*qkv)
        found = compiled(*qkv)
        check([found], Call.of(*qkv, mask=windowed(), position=position))
    assert counter.frame_count == 1


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("name", ["Shaw", "T5Bias"])
def test_in_half_precision_with_padding_and_groups(name: str, groups: int) -> None:
    position, lengths = POSITIONS[name](), torch.tensor([L, L - 9])

    def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        mask = windowed() & hw.padding(lengths)
        return hw.attend(q, k, v, mask=mask, position=position, engine="tiled")

    qkv = tensors(L, L, groups=groups, dtype=torch.bfloat16)
    found = torch.compile(attend, fullgraph=True, backend="aot_eager")(*qkv, lengths)
    check([found], Call.of(*qkv, mask=windowed() & hw.padding(lengths), position=position))


@pytest.mark.parametrize("name", ["Shaw", "Shaw with values"])
def test_keys_that_are_far(name: str) -> None:
    position = POSITIONS[name]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=hw.causal(), position=position, engine="tiled")

    qkv = tensors(FAR, FAR, dtype=torch.float32, batch=1)
    open_ended(*qkv)
    found = torch.compile(attend, fullgraph=True, backend="aot_eager")(*qkv)
    check([found], Call.of(*qkv, mask=hw.causal(), position=position))


def test_under_autocast_nothing_inside_is_rounded() -> None:
    """Only the output is rounded, as without a compiler."""
    position = POSITIONS["Shaw"]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return hw.attend(q, k, v, mask=windowed(), position=position, engine="tiled")

    qkv = tensors(L, L, dtype=torch.float32)
    exact = hw.attend(*qkv, mask=windowed(), position=position, engine="tiled")
    for backend in ("eager", "aot_eager"):
        found = torch.compile(attend, fullgraph=True, backend=backend)(*qkv)
        assert torch.equal(found, exact.to(torch.bfloat16))


# --- masks whose tensors are known only when it runs ----------------------------------------------


def test_lengths() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=hw.causal() & hw.padding(lengths), engine="tiled")

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    qkv = tensors(L, L, dtype=torch.float32)
    for lengths in (torch.tensor([30, 0]), torch.tensor([1, 37])):
        call = Call.of(*qkv, mask=hw.causal() & hw.padding(lengths))
        check([compiled(*qkv, lengths)], call)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [None, "T5Bias", "Shaw with values"])
def test_a_bias_and_its_gradient_at_any_length(name: str | None, backend: str) -> None:
    position = None if name is None else POSITIONS[name]()

    def masked(bias: Tensor) -> Mask:
        return windowed() & hw.from_tensor(bias, "h q k")

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=masked(bias), position=position, engine="tiled")

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for length in (L, L + 6):
        qkv = tensors(length, length, dtype=torch.float32)
        drawn = torch.randn(HEADS, length, length).masked_fill(
            torch.rand(length, length) > 0.9, -torch.inf
        )
        bias = drawn.requires_grad_()
        open_ended(*qkv, bias)
        torch._dynamo.mark_dynamic(bias, 1)
        found = compiled(*qkv, bias)
        call = Call.of(*qkv, mask=masked(bias), position=position)
        check([found], call, [bias])
    assert counter.frame_count == 1


# --- dropout --------------------------------------------------------------------------------------


def kept(dropout: float) -> Keep:
    """What stays of the call that follows `torch.manual_seed(SEED)`."""
    torch.manual_seed(SEED)
    return Keep(dropout, draw_call_seed())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", [None, pytest.param("Rotary", marks=pytest.mark.slow), "Shaw with values"]
)
def test_dropout_leaves_what_it_leaves_without_a_compiler(name: str | None, backend: str) -> None:
    position = None if name is None else POSITIONS[name]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = windowed()
        return hw.attend(q, k, v, mask=mask, position=position, dropout=0.3, engine="tiled")

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for length in (L, L + 6):
        qkv = tensors(length, length, dtype=torch.float32)
        open_ended(*qkv)
        keep = kept(0.3)
        torch.manual_seed(SEED)
        found = compiled(*qkv)
        check([found], Call.of(*qkv, mask=windowed(), position=position), keep=keep)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_dropout_beside_a_bias_and_sinks(backend: str | None) -> None:
    """With a compiler and without: the bias is in both runs, and has a gradient of each."""

    def masked(bias: Tensor) -> Mask:
        return windowed() & hw.from_tensor(bias, "q k")

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        words: dict[str, Any] = {"sinks": sinks, "dropout": 0.3, "engine": "tiled"}
        return hw.attend(q, k, v, mask=masked(bias), **words)

    run = torch.compile(attend, fullgraph=True, backend=backend) if backend else attend
    qkv = tensors(L, L, dtype=torch.float32)
    bias, sinks = torch.randn(L, L, requires_grad=True), torch.randn(HEADS, requires_grad=True)
    keep = kept(0.3)
    torch.manual_seed(SEED)
    found = run(*qkv, bias, sinks)
    check([found], Call.of(*qkv, mask=masked(bias), sinks=sinks), [bias], keep)


def test_two_calls_of_one_graph_drop_each_for_itself() -> None:
    def twice(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        words: dict[str, Any] = {"mask": windowed(), "dropout": 0.3, "engine": "tiled"}
        return [hw.attend(q, k, v, **words) for _ in range(2)]

    qkv = tensors(L, L, dtype=torch.float32)
    torch.manual_seed(SEED)
    keeps = [Keep(0.3, draw_call_seed()) for _ in range(2)]
    torch.manual_seed(SEED)
    found = torch.compile(twice, fullgraph=True, backend="aot_eager")(*qkv)
    for each, keep in zip(found, keeps, strict=True):
        check([each], Call.of(*qkv, mask=windowed()), keep=keep)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method. is deprecated")  # inductor's import
@torch._inductor.config.patch(fallback_random=False)
def test_by_inductors_own_numbers_backward_drops_the_same() -> None:
    """The output is linear in the values, so that <output, g> = <values, their gradient>."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=windowed(), dropout=0.3, engine="tiled")

    compiled = torch.compile(attend, fullgraph=True, backend="inductor")
    q, k, v = tensors(L, L, dtype=torch.float64)
    first, second = compiled(q, k, v), compiled(q, k, v)
    assert not torch.equal(first, second)
    for found in (first, second):
        seed = torch.randn_like(found)
        (gradient,) = torch.autograd.grad(found, v, seed)
        one, other = (found * seed).sum(), (v * gradient).sum()
        accept(other.float(), one.float(), one)


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
@pytest.mark.parametrize("name", [None, "Shaw with values"])
def test_what_a_checkpoint_makes_again_is_asked_for_once(name: str | None, backend: str) -> None:
    """Its backward runs once only; and what is made again drops the same."""
    position = None if name is None else POSITIONS[name]()

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        words: dict[str, Any] = {"sinks": sinks, "dropout": 0.3, "engine": "tiled"}
        return hw.attend(q, k, v, mask=windowed(), position=position, **words)

    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    qkv, sinks = tensors(L, L, dtype=torch.float32), torch.randn(HEADS, requires_grad=True)
    keep = kept(0.3)
    torch.manual_seed(SEED)
    found = checkpoint(compiled, *qkv, sinks, use_reentrant=False)
    check([found], Call.of(*qkv, mask=windowed(), position=position, sinks=sinks), keep=keep)


# --- logsumexp ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", [None, pytest.param("T5Bias", marks=pytest.mark.slow), "Shaw with values"]
)
def test_the_logsumexp_has_its_gradient(name: str | None, backend: str) -> None:
    position = None if name is None else POSITIONS[name]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        words: dict[str, Any] = {"position": position, "need": ["logsumexp"], "engine": "tiled"}
        found = hw.attend(q, k, v, mask=windowed(), **words)
        return found.output, found.logsumexp

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for length in (L, L + 6):
        qkv = tensors(length, length, dtype=torch.float32)
        open_ended(*qkv)
        check(compiled(*qkv), Call.of(*qkv, mask=windowed(), position=position))
    assert counter.frame_count == 1


# --- who runs it ----------------------------------------------------------------------------------


class Watching:
    """A backend that remembers what its graphs call, and the largest thing that a node gives."""

    def __init__(self) -> None:
        self.called, self.graphs, self.largest = set[str](), 0, Largest()

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        return aot_autograd(fw_compiler=self._watched, bw_compiler=self._watched)(graph, inputs)

    def _watched(self, graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.called |= {str(node.target) for node in graph.graph.nodes}

        def run(*inputs: Any) -> Any:
            with self.largest:
                return graph.forward(*inputs)

        return make_boxed_func(run)


MODULES: Mapping[str, Mapping[str, Any]] = {
    "window": {"mask": hw.causal() & hw.window(20, 0)},
    "Shaw": {"mask": hw.window(20, 20), "position": hw.Shaw(3, 8)},
    "T5Bias": {"mask": hw.causal() & hw.window(20, 0), "position": hw.T5Bias(4)},
    "dropout": {"mask": hw.window(20, 20), "dropout": 0.1},
}


@pytest.mark.parametrize(
    ("kind", "padded"),
    [
        ("Shaw", True),
        pytest.param("Shaw", False, marks=pytest.mark.slow),
        pytest.param("window", True, marks=pytest.mark.slow),
        pytest.param("T5Bias", False, marks=pytest.mark.slow),
        pytest.param("dropout", True, marks=pytest.mark.slow),
    ],
)
def test_a_module_with_a_window_holds_nothing_of_all_pairs(kind: str, padded: bool) -> None:
    """For every length, in one graph, the engine having been chosen by itself."""
    module = hw.MultiheadAttention(32, 4, batch_first=True, **MODULES[kind])
    watching = Watching()
    compiled = torch.compile(module, fullgraph=True, backend=watching)
    for length in (LONG, LONG + 99):
        x = torch.randn(1, length, 32, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 1)
        hidden = torch.arange(length)[None] > length - 9 if padded else None
        if hidden is not None:
            torch._dynamo.mark_dynamic(hidden, 1)
        output, _ = compiled(x, x, x, hidden, need_weights=False)
        output.sum().backward()
    assert {"headwise.tiled.default", "headwise.tiled_backward.default"} <= watching.called
    assert watching.graphs == 1
    assert LONG * 32 <= watching.largest.numbers < LONG * LONG


def test_auto_leaves_alone_what_has_nothing_to_win() -> None:
    watching = Watching()

    def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=hw.window(500, 500) & hw.padding(lengths))

    qkv = tensors(LONG, LONG, dtype=torch.float32)
    torch.compile(attend, fullgraph=True, backend=watching)(*qkv, torch.tensor([LONG, 3]))
    assert not any("headwise" in target for target in watching.called)


def test_auto_leaves_transforms_to_an_engine_that_has_them() -> None:
    def total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=windowed()).sin().sum()

    qkv = tensors(LONG, LONG, dtype=torch.float32)
    mapped = torch.func.grad(total, (0, 1, 2))
    found = torch.compile(mapped, fullgraph=True, backend="aot_eager")(*qkv)
    plain = torch.autograd.grad(total(*qkv), qkv)
    wide = [each.detach().double().requires_grad_() for each in qkv]
    exact = torch.autograd.grad(total(*wide), wide)
    for one, other, oracle in zip(found, plain, exact, strict=True):
        accept(one, other, oracle)


def test_a_mask_and_a_position_that_headwise_does_not_name_are_compiled() -> None:
    mask, position = Parity(1, hw.window(3, 1)), LearnedBias()

    def run(*rows: Tensor) -> Tensor:
        return hw.attend(*rows, mask=mask, position=position, engine="tiled")

    def results(run: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        rows = [x.detach().to(dtype).requires_grad_() for x in inputs]
        wanted = [*rows, *position.to(dtype).parameters()]
        x = run(*rows)
        return [x, *torch.autograd.grad(x.sin().sum(), wanted)]

    inputs = tensors(37, 37, dtype=torch.float32)
    exact = results(run, torch.float64)
    plain = results(run, torch.float32)
    found = results(torch.compile(run, fullgraph=True, backend="aot_eager"), torch.float32)
    for one, other, oracle in zip(found, plain, exact, strict=True):
        accept(one, other, oracle)


SIZES = ((2, 4, 4, 37), (3, 6, 2, 41), (2, 6, 6, LONG), (2, 4, 2, LONG + 99))
"""B, H, G and the length of several calls of one compiled function."""


@pytest.mark.parametrize(
    ("mask", "position"),
    [
        (hw.full(), None),
        (hw.causal(), None),
        (hw.window(5, 0), None),
        (hw.causal(), hw.Rotary(16, pairs="halves")),
    ],
    ids=str,
)
@pytest.mark.parametrize("dynamic", [True, pytest.param(None, marks=pytest.mark.slow)])
def test_one_compiled_function_serves_every_size(
    mask: Mask, position: hw.Position | None, dynamic: bool | None
) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, mask=mask, position=position)

    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend="eager")
    for batch, heads, groups, length in SIZES:
        q, k, v = (torch.randn(batch, n, length, 16) for n in (heads, groups, groups))
        exact = attend(q.double(), k.double(), v.double())
        accept(compiled(q, k, v), attend(q, k, v), exact)


@pytest.mark.parametrize(
    "mask", [hw.padding([5, 9]), hw.prefix([3]), hw.documents([2, 35])], ids=str
)
def test_a_mask_of_given_sizes_under_dynamic_sizes(mask: Mask) -> None:
    def attend(q: Tensor) -> Tensor:
        return hw.attend(q, q, q, mask=mask)

    q = torch.randn(2, 4, 37, 16)
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="eager")
    accept(compiled(q), attend(q), attend(q.double()))

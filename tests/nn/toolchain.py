"""The module under torch.compile, torch.export and ONNX, with dynamic batch size and length.

`test_toolchain` runs these tests in a separate process, because the shape checks of the other tests
cannot be traced.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.export import Dim

import headwise as hw
from headwise.nn import LogitScale, OutputGate, StaticCache, UnitNorm
from headwise.verify.oracle.tolerance import accept

E, H, D = 12, 3, 4

KINDS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "causal": {"mask": hw.causal()},
    "window": {"mask": hw.causal() & hw.window(3, 0)},
    "grouped": {"num_kv_heads": 1},
    "appended keys": {"add_bias_kv": True, "add_zero_attn": True},
    "norms and gate": {
        "query_norm": UnitNorm(),
        "key_norm": UnitNorm(),
        "logit_scale": LogitScale(H),
        "gate": OutputGate(E, H, D),
    },
    "ALiBi": {"position": hw.ALiBi(H)},
    "Rotary": {"position": hw.Rotary(D, pairs="halves")},
    "Shaw": {"position": hw.Shaw(3, D)},
    "T5Bias": {"position": hw.T5Bias(H)},
    "TransformerXL": {"position": hw.TransformerXL(H, D)},
    "Sinusoidal": {"position": hw.Sinusoidal(E)},
}

CALLS: Mapping[str, Mapping[str, object]] = {
    "no weights": {"need_weights": False},
    "weights": {"need_weights": True},
    "causal": {"need_weights": False, "is_causal": True},
}

CASES = [(kind, "no weights") for kind in KINDS] + [("window", call) for call in CALLS][1:]


class Attention(nn.Module):
    """A model of one attention: what is exported is a model."""

    def __init__(self, kind: str, call: str = "no weights") -> None:
        super().__init__()
        self.inner = hw.MultiheadAttention(E, H, batch_first=True, **KINDS[kind])  # type: ignore[arg-type]
        self.call = CALLS[call]
        self.eval()

    def forward(self, x: Tensor, memory: Tensor, padded: Tensor) -> Tensor:
        output, weights = self.inner(x, memory, memory, padded, **self.call)
        return output if weights is None else output + weights.sum()


def given(batch: int, length: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    padded = torch.arange(keys).expand(batch, -1) >= torch.arange(batch)[:, None] + 2
    return torch.randn(batch, length, E), torch.randn(batch, keys, E), padded


def hold(found: Tensor, model: Attention, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """Assert that a result is accepted for what the model gives as it stands."""
    plain = model(*inputs)
    exact = model.double()(inputs[0].double(), inputs[1].double(), inputs[2])
    model.float()
    accept(found, plain, exact)


@pytest.mark.parametrize(("kind", "call"), CASES)
def test_one_graph_and_two_compilations_for_every_length(kind: str, call: str) -> None:
    torch._dynamo.reset()
    model, counter = Attention(kind, call), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.no_grad():
        for length in range(5, 25):
            inputs = given(2, length, length)
            hold(compiled(*inputs), model, inputs)
    assert counter.frame_count <= 2


def test_gradients_through_a_compiled_module() -> None:
    torch._dynamo.reset()
    model = Attention("causal").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, memory, padded = given(2, 7, 11)
    grads = []
    for run, dtype in ((compiled, torch.float32), (model, torch.float32), (model, torch.float64)):
        model.to(dtype).zero_grad()
        leaf = x.detach().clone().to(dtype).requires_grad_()
        run(leaf, memory.to(dtype), padded).square().sum().backward()
        own = [p.grad for p in (model.inner.q_proj.weight, model.inner.out_proj.weight)]
        grads.append([leaf.grad, *own])
    for found, plain, exact in zip(*grads, strict=True):
        accept(found, plain, exact)


def test_torchs_encoder_with_padding_is_one_graph() -> None:
    """PyTorch's own encoder, whose shortcut looks at the padding."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 17, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    assert len(hw.convert(encoder).changed) == 2
    x, padded = torch.randn(2, 11, E), torch.arange(11).expand(2, -1) > 6
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")
    with torch.no_grad():
        found = compiled(x, mask=None, src_key_padding_mask=padded)
        plain = encoder(x, mask=None, src_key_padding_mask=padded)
        exact = encoder.double()(x.double(), mask=None, src_key_padding_mask=padded)
    accept(found, plain, exact)


def decoded(
    run: Callable[..., tuple[Tensor, Tensor | None]], x: Tensor, padded: Tensor
) -> Iterator[Tensor]:
    """A prefill of 5 tokens, and then one token a step."""
    sizes, cache = [5, *[1] * (x.shape[1] - 5)], StaticCache(64)
    for part, mark in zip(x.split(sizes, 1), padded.split(sizes, 1), strict=True):
        yield run(part, part, part, mark, False, cache=cache)[0]


@pytest.mark.filterwarnings("ignore:.*script_method. is deprecated")  # inductor's import
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_decoding_with_a_static_cache_is_compiled_once(backend: str) -> None:
    """One compilation for all steps; where nothing is said of sizes, one more."""
    torch.manual_seed(0)
    position = hw.Rotary(D, pairs="halves")
    layer = hw.MultiheadAttention(
        E, H, batch_first=True, num_kv_heads=1, mask=hw.causal(), position=position
    )
    x = torch.randn(2, 41, E)
    padded = torch.arange(41) < torch.tensor([0, 3])[:, None]
    with torch.no_grad():
        plain = layer(x, x, x, padded, False)[0]
        right = copy.deepcopy(layer).double()(*[x.double()] * 3, padded, False)[0]
        for dynamic, most in ((True, 1), (None, 2)):
            torch._dynamo.reset()
            counter = CompileCounterWithBackend(backend)
            step = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=counter)
            parts = decoded(step, x, padded)
            found = [next(parts)]
            before = counter.frame_count  # of the prefill, which inductor may begin twice
            found += list(parts)
            assert counter.frame_count - before <= most
            accept(torch.cat(found, 1), plain, right)
            again = torch.cat(list(decoded(step, x, padded)), 1)
            assert counter.frame_count - before <= most  # another text, the same graphs
            accept(again, plain, right)


def open_sizes() -> dict[str, dict[int, Dim]]:
    batch, length, keys = (Dim(name, min=2, max=2**15) for name in ("B", "L", "S"))
    return {
        "x": {0: batch, 1: length},
        "memory": {0: batch, 1: keys},
        "padded": {0: batch, 1: keys},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_module_serves_any_batch_and_length(kind: str) -> None:
    model, inputs = Attention(kind), given(3, 5, 7)
    with torch.no_grad():
        program = torch.export.export(model, inputs, dynamic_shapes=open_sizes())
        for sizes in ((2, 11, 13), (5, 3, 2), (2, 17, 601)):
            again = given(*sizes)
            hold(program.module()(*again), model, again)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize(("kind", "call"), CASES)
def test_onnx_gives_the_same_in_onnxruntime(kind: str, call: str, tmp_path: Path) -> None:
    import onnxruntime

    model, inputs = Attention(kind, call), given(3, 5, 7)
    shapes = open_sizes()
    with torch.no_grad():
        program = torch.onnx.export(
            model, inputs, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    path = tmp_path / "attention.onnx"
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for sizes in ((2, 11, 13), (5, 3, 2)):
        again = given(*sizes)
        fed = {held.name: t.numpy() for held, t in zip(session.get_inputs(), again, strict=True)}
        with torch.no_grad():
            hold(torch.from_numpy(session.run(None, fed)[0]), model, again)

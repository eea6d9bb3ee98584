"""The module in traces, FLOP counters and fake tensors, and loaded from a file of weights only."""

import copy
import io
import pickle
import warnings

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise.call import Call
from headwise.engines.tiled.decompose import parts
from headwise.engines.tiled.encoding import encode
from headwise.engines.tiled.forward import SIDE
from headwise.engines.tiled.operator import operator
from headwise.errors import BadValue
from headwise.positions import YaRN
from headwise.verify.oracle.tolerance import accept
from tests.examples import every_mask, identity

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)
E, H, B, L = 8, 2, 2, 5


class Model(nn.Module):
    """An attention of a sequence to itself, and to another."""

    def __init__(self, **options):
        super().__init__()
        self.attention = hw.MultiheadAttention(E, H, batch_first=True, **options)

    def forward(self, x: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return (self.attention(x, x, x, need_weights=False)[0], self.attention(x, keys, keys)[0])


OPTIONS = [
    {},
    {"mask": hw.causal()},
    {"mask": hw.window(2, 1), "position": hw.ALiBi(H)},
    {"position": hw.Rotary(E // H, pairs="halves"), "softcap": 2.0, "sinks": True},
    {"add_bias_kv": True, "add_zero_attn": True},
]


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """A tracer's sizes are tensors, which the checks of the tests refuse."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def inputs(length: int = L, keys: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(B, length, E), torch.randn(B, keys, E)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_trace_serves_other_lengths(options):
    model = Model(**options).eval()
    traced = torch.jit.trace(model, inputs())
    for given in (inputs(), inputs(9, 11), inputs(3, 4)):
        right = copy.deepcopy(model).double()(*(x.double() for x in given))
        for found, usual, oracle in zip(traced(*given), model(*given), right, strict=True):
            accept(found, usual, oracle)


def test_a_trace_of_a_long_window_records_no_block():
    model = Model(mask=hw.window(1, 1)).eval()
    traced = torch.jit.trace(model, inputs(600, 601))
    given = inputs(700, 640)
    right = copy.deepcopy(model).double()(*(x.double() for x in given))
    for found, usual, oracle in zip(traced(*given), model(*given), right, strict=True):
        accept(found, usual, oracle)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_the_legacy_exporter_of_onnx(options, tmp_path):
    model, path = Model(**options).eval(), tmp_path / "model.onnx"
    axes = {"x": {1: "l"}, "keys": {1: "s"}}
    names = {"input_names": ["x", "keys"], "dynamic_axes": axes}
    torch.onnx.export(model, inputs(), str(path), dynamo=False, opset_version=17, **names)
    onnx.checker.check_model(str(path))
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), settings)
    for given in (inputs(), inputs(9, 11)):  # the second is right, or an error: never silent
        try:
            found = session.run(None, {"x": given[0].numpy(), "keys": given[1].numpy()})
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            assert given[0].shape[1] != L
            continue
        right = copy.deepcopy(model).double()(*(x.double() for x in given))
        for own, usual, oracle in zip(found, model(*given), right, strict=True):
            accept(torch.from_numpy(own), usual, oracle)


def test_script_is_refused_by_torch_as_documented():
    with pytest.raises(Exception, match=r"Unsupported|not supported|compile"):
        torch.jit.script(Model())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_on_meta_shapes_are_right(options):
    model, (x, keys) = Model(**options).to("meta"), inputs()
    first, second = model(x.to("meta"), keys.to("meta"))
    assert first.shape == second.shape == x.shape
    padding = torch.zeros(B, L, dtype=torch.bool, device="meta")
    m = x.to("meta")
    output, weights = model.attention(
        m, m, m, key_padding_mask=padding, attn_mask=torch.zeros(L, L, device="meta")
    )
    assert output.shape == x.shape
    assert weights.shape[:2] == (B, L)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_with_fake_tensors_it_is_made_and_runs(options):
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Model(**options)
        x, keys = inputs(600, 601)
        assert all(y.shape == x.shape for y in model(x, keys))
        output, _ = model.attention(
            x, x, x, key_padding_mask=torch.zeros(B, 600, dtype=torch.bool),
            attn_mask=torch.zeros(600, 600),
        )  # fmt: skip
        assert output.shape == x.shape


@pytest.mark.parametrize("make", [
    lambda: hw.documents([2, 3]), lambda: hw.padding([2, 3]), lambda: hw.global_tokens([1]),
    lambda: hw.tree([-1, 0, 0]), lambda: hw.prefix([1, 2]), lambda: hw.window2d(1, 1, width=2),
    lambda: hw.random_blocks(2, 1, seed=0), lambda: hw.chunked(2) & hw.causal(),
    lambda: hw.from_tensor(torch.ones(L, L).bool()),
    lambda: hw.block_sparse(torch.eye(3).bool(), 2),
])  # fmt: skip
def test_masks_are_made_and_used_with_fake_tensors(make):
    with FakeTensorMode():
        mask = make()
        assert repr(mask)
        q = torch.randn(B, H, L, 4)
        assert hw.attend(q, q, q, mask=mask).shape == q.shape


RICH = {
    "mask": hw.causal() & hw.window(2, 0) & ~hw.padding([1]) | hw.tree([-1, 0]),
    "position": hw.Rotary(4, pairs="halves", frequencies=YaRN(factor=2.0, original_length=8)),
    "query_norm": hw.nn.UnitNorm(),
    "key_norm": nn.RMSNorm(4),
    "sinks": True,
    "gate": hw.nn.OutputGate(E, H),
    "logit_scale": hw.nn.LogitScale(H),
    "softcap": 3.0,
}


@pytest.mark.parametrize("options", [{}, RICH, {"global_projections": True}], ids=["", "rich", "g"])
def test_a_whole_module_is_loaded_with_weights_only(options):
    layer, file = hw.MultiheadAttention(E, H, batch_first=True, **options).eval(), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    again = torch.load(file, weights_only=True)
    assert repr(again) == repr(layer)
    x = torch.randn(B, L, E)
    assert torch.equal(again(x, x, x)[0], layer(x, x, x)[0])
    again.load_state_dict(nn.MultiheadAttention(E, H).state_dict(), strict=not options)


def test_every_mask_is_loaded_with_weights_only():
    for mask in every_mask():
        file = io.BytesIO()
        torch.save(mask, file)
        file.seek(0)
        assert repr(torch.load(file, weights_only=True)) == repr(mask)


def test_a_caller_s_function_is_not_loaded_with_weights_only():
    file = io.BytesIO()
    torch.save(hw.from_mask_mod(identity), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file, weights_only=True)


@pytest.mark.parametrize("mask", [hw.window(64, 0), hw.causal() & hw.chunked(128)], ids=identity)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_flop_counter_sees_what_the_tiles_cost(mask, compiled):
    q, k, v = (torch.randn(1, 2, 1024, 16, requires_grad=True) for _ in range(3))
    call = Call.of(q, k, v, mask=mask)
    pairs = sum(part.pairs for part in parts(call.mask, call.shape, SIDE))

    def run():
        if compiled:
            return operator(q, k, v, *encode(call.mask), call.shape.offset, call.scale, None)[0]
        return hw.attend(q, k, v, mask=mask, engine="tiled")

    with FlopCounterMode(display=False) as counter:
        output = run()
    assert counter.get_total_flops() == 2 * 2 * pairs * (16 + 16)
    assert counter.get_total_flops() < hw.plan(q, k, v).flops / 4
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    assert counter.get_total_flops() >= 2 * 2 * pairs * 5 * 16


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_empty_batch_and_an_empty_sequence(batch, options):
    model = Model(**options)
    x = torch.randn(batch, L if batch == 0 else 0, E, requires_grad=True)
    for output in model(x, torch.randn(batch, 7, E)):
        assert output.shape == x.shape
        output.sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_batch_is_refused_with_the_way_out(layout):
    x = torch.nested.nested_tensor([torch.randn(3, E), torch.randn(L, E)], layout=layout)
    layer = hw.MultiheadAttention(E, H, batch_first=True)
    with pytest.raises(BadValue, match=r"query: expected a dense tensor.*to_padded_tensor"):
        layer(x, x, x)
    dense = x.to_padded_tensor(0.0)
    padding = torch.tensor([[False] * 3 + [True] * 2, [False] * L])
    assert layer(dense, dense, dense, key_padding_mask=padding)[0].isfinite().all()


def test_an_encoder_says_that_it_takes_no_nested_tensors():
    """In torch's own words, which name our module's class."""
    layer = nn.TransformerEncoderLayer(E, H, 8, batch_first=True)
    layer.self_attn = hw.MultiheadAttention(E, H, batch_first=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nn.TransformerEncoder(layer, 2)
    (warning,) = [w for w in caught if "nested" in str(w.message)]
    assert "enable_nested_tensor is True" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_names_of_torch_s_module():
    layer = hw.MultiheadAttention(E, H, kdim=3, vdim=5)
    theirs = nn.MultiheadAttention(E, H, kdim=3, vdim=5)
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        assert getattr(layer, name).shape == getattr(theirs, name).shape
        assert getattr(layer, name) is getattr(layer, name.replace("_weight", "")).weight
    before = layer.q_proj.weight.clone()
    layer._reset_parameters()
    assert not torch.equal(before, layer.q_proj.weight)
    assert "sinks=True" in repr(hw.MultiheadAttention(E, H, sinks=True, engine="eager"))
    assert "engine=eager" in repr(hw.MultiheadAttention(E, H, engine="eager"))
    assert "add_bias_kv=True" in repr(hw.MultiheadAttention(E, H, add_bias_kv=True))


def test_fvcore_counts_what_it_counts_of_torch_s_module():
    fvcore = pytest.importorskip("fvcore.nn")
    x = torch.randn(1, L, E)
    ours = hw.MultiheadAttention(E, H, batch_first=True).eval()
    theirs = nn.MultiheadAttention(E, H, batch_first=True).eval()
    counts = []
    for layer in (ours, theirs):
        counter = fvcore.FlopCountAnalysis(layer, (x, x, x))
        counts.append(counter.unsupported_ops_warnings(False).total())
    assert counts[0] == counts[1] > 0

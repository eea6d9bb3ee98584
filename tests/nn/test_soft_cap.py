"""Soft caps in the module and in transformers models, and their memory."""

import copy

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.errors import BadValue
from headwise.heads.capture.from_tensors import terms_of_call
from headwise.heads.names import Head
from headwise.nn import GrowingCache
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import Largest
from tests.heads import tiny
from tests.nn.test_options import heads, module, projected

E, H, B, L, S = 12, 3, 2, 7, 11


def test_the_module_caps_its_scores_and_learns():
    layer = module(softcap=0.3, mask=hw.causal(), sinks=True)
    x, keys = torch.randn(B, L, E), torch.randn(B, S, E)
    output, weights = layer(x, keys, keys, average_attn_weights=False)

    def exact(dtype):
        q, k, v = heads(layer, 1 * x, keys, dtype)
        call = Call.of(q, k, v, mask=hw.causal(), sinks=layer.sinks, softcap=0.3)
        steps = reference(call, dtype)
        return projected(layer, steps.output), steps.weights

    plain, oracle = exact(torch.float32), exact(torch.float64)
    accept(output, plain[0], oracle[0])
    accept(weights, plain[1], oracle[1])
    parameters = list(layer.parameters())
    own, near, right = (
        torch.autograd.grad(y.square().sum(), parameters, allow_unused=True)
        for y in (output, plain[0], oracle[0])
    )
    for a, b, c in zip(own, near, right, strict=True):
        accept(a, b, c)


def test_token_by_token_is_the_whole():
    layer = module(softcap=0.5, mask=hw.causal()).double()
    x, cache = torch.randn(B, L, E).double(), GrowingCache()
    with torch.no_grad():
        whole = layer(x, x, x)[0]
        steps = [layer(t, t, t, cache=cache)[0] for t in x.split(1, 1)]
    accept(torch.cat(steps, 1), whole.float(), whole)


def test_it_is_shown_and_kept_from_torch():
    layer = module(softcap=2.0)
    assert "softcap=2.0" in repr(layer)
    assert "softcap" not in repr(module())
    (left,) = hw.convert(layer, to="torch").left
    assert left[1].en == "PyTorch's module has no softcap"
    assert copy.deepcopy(layer).softcap == 2.0
    with pytest.raises(BadValue, match="softcap: expected a positive finite number"):
        module(softcap=-1.0)


def test_a_capture_measures_capped_weights():
    layer, x = module(softcap=0.2).eval(), torch.randn(B, L, E)
    with torch.no_grad():
        weights = layer(x, x, x, average_attn_weights=False)[1]
        with hw.capture(layer, heads="all") as seen:
            layer(x, x, x)
    accept(seen.weights[Head.parse("L0H1")], weights[:, 1], weights[:, 1].double())


def test_terms_hold_the_cap():
    q = torch.randn(1, 2, 3, 4)
    assert terms_of_call(Call.of(q, q, q, softcap=1.5)).softcap == 1.5


@pytest.mark.parametrize("grad", [False, True])
def test_a_transformers_model_is_capped_on_every_engine(grad):
    model = tiny.gemma2()
    exact, ids = copy.deepcopy(model).double(), torch.randint(3, 31, (2, 19))
    usual, right = model(ids).last_hidden_state, exact(ids).last_hidden_state
    for engine in ("auto", "tiled", "eager"):
        assert hw.convert(model, engine=engine).changed
        with torch.set_grad_enabled(grad):
            found = model(ids).last_hidden_state
        accept(found, usual, right)
    right.square().sum().backward()
    found = model(ids).last_hidden_state
    found.square().sum().backward()
    near = copy.deepcopy(model)
    near.zero_grad()
    hw.convert(near, to="torch")
    near(ids).last_hidden_state.square().sum().backward()
    for name, parameter in model.named_parameters():
        oracle = exact.get_parameter(name).grad
        accept(parameter.grad, near.get_parameter(name).grad, oracle)


@pytest.mark.slow
def test_a_long_text_makes_no_square() -> None:
    model, length = tiny.gemma2(), 2400
    exact, ids = copy.deepcopy(model).double(), torch.randint(3, 31, (1, length))
    with torch.no_grad():
        usual, right = model(ids).last_hidden_state, exact(ids).last_hidden_state
        assert hw.convert(model).changed
        with Largest() as seen:
            found = model(ids).last_hidden_state
    accept(found, usual, right)
    assert seen.numbers < length * length

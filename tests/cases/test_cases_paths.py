"""Reported faults in which two paths of a module differ: masks, weights and derivatives.

The name of a test contains the number of its case. In PyTorch's arguments, True means blocked.
"""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import headwise as hw
from headwise.errors import BadValue
from headwise.verify.oracle.tolerance import accept
from tests.nn.oracle import check, exact, inputs

NEEDS = pytest.mark.parametrize("need", [True, False], ids=["weights", "none"])


def module(**options: object) -> hw.MultiheadAttention:
    made = hw.MultiheadAttention(**{"embed_dim": 12, "num_heads": 3, "batch_first": True} | options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return made


# --- masks ---


@NEEDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_case_10_a_float_mask_means_the_same_in_eval(need, dtype):
    layer = module(embed_dim=256, num_heads=8, dtype=dtype)
    x, floats = torch.randn(2, 10, 256, dtype=dtype), torch.randn(10, 10, dtype=dtype)
    trained = layer.train()(x, x, x, attn_mask=floats, need_weights=need)[0]
    exact64 = copy.deepcopy(layer).double()(*[x.double()] * 3, attn_mask=floats.double())[0]
    with torch.no_grad():
        found = layer.eval()(x, x, x, attn_mask=floats, need_weights=need)[0]
    accept(found, trained, exact64)


@NEEDS
def test_case_11_every_unambiguous_shape_of_a_mask_is_batch_major(need):
    layer, (batch, heads, queries, keys) = module(), (2, 3, 5, 7)
    given = inputs(layer)
    blocked = torch.rand(batch, heads, queries, keys) > 0.6
    shapes = {
        "(L, S)": (blocked[0, 0], blocked[:1, :1]),
        "(B, L, S)": (blocked[:, 0], blocked[:, :1]),
        "(B, 1, L, S)": (blocked[:, :1], blocked[:, :1]),
        "(B, H, L, S)": (blocked, blocked),
        "(1, H, L, S)": (blocked[:1], blocked[:1]),
        "(B*H, L, S)": (blocked.flatten(0, 1), blocked),
    }
    for mask, meant in shapes.values():
        check(layer, given, layer(*given, attn_mask=mask, need_weights=need), ~meant)


def test_case_11_where_a_batch_is_as_large_as_the_heads_it_must_be_said():
    layer = module()
    given = inputs(layer, batch=3)
    with pytest.raises(BadValue, match=r"attn_mask\[:, None\] .* or attn_mask\[None\]"):
        layer(*given, attn_mask=torch.zeros(3, 5, 7, dtype=torch.bool))


@pytest.mark.parametrize("path", ["auto", "eager"])
def test_case_19_causal_padding_dropout_and_weights_compose(path):
    layer = module(dropout=0.4, engine=path)
    given = inputs(layer, queries=7)
    padded = torch.arange(7) >= torch.tensor([7, 4])[:, None]
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    dropped, weights = layer.train()(*given, padded, is_causal=True)
    kept, same = layer.eval()(*given, padded, is_causal=True)
    allowed = causal & ~padded[:, None, None]
    check(layer, given, (kept, same), allowed)
    assert torch.equal(weights, same)  # before dropout
    assert not torch.equal(dropped, kept)


# --- weights ---


class Largest(TorchDispatchMode):
    """The largest number of elements that any operation gives."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, Tensor):
                self.most = max(self.most, each.numel())
        return found


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}], ids=["MHA", "MQA"])
def test_case_41_weights_only_when_asked(options):
    layer, length = module(**options, mask=hw.causal()), 4096
    x = torch.randn(1, length, 12)
    with torch.no_grad(), Largest() as seen:
        _, weights = layer(x, x, x, need_weights=False)
    assert weights is None
    assert seen.most < length * length / 8


def test_case_42_what_is_asked_of_the_weights_costs_no_square_and_is_never_none():
    layer, length = module(mask=hw.causal()), 1024
    x = torch.randn(1, length, 12)
    needs = ("entropy", "received", "largest", "distance", "logsumexp")
    with torch.no_grad(), Largest() as seen:
        result = layer.attend(x, x, x, need=needs)
        weights = layer(x, x, x, average_attn_weights=False)[1]
        measured = seen.most
    assert all(getattr(result, name) is not None for name in needs)
    assert measured >= length * length  # the weights, when asked for
    with torch.no_grad(), Largest() as seen:
        layer.attend(x, x, x, need=needs)
    assert seen.most < length * length
    plain, right = (exact(layer, [x] * 3, torch.ones(length, length).tril().bool(), dtype=d)
                    for d in (torch.float32, torch.float64))  # fmt: skip
    accept(result.received, plain.weights.sum(2), right.weights.sum(2))
    accept(weights, plain.weights, right.weights)


# --- modules that are called ---


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_case_43_lora_by_peft_learns_and_merges():
    peft = pytest.importorskip("peft", reason="peft is not installed; pip install peft")
    names = ["q_proj", "k_proj", "v_proj", "out_proj"]
    base = nn.ModuleDict({"attention": module()})
    given, plain = inputs(base["attention"]), copy.deepcopy(base["attention"])
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=names))
    layer = model.base_model.model["attention"]
    assert torch.equal(layer(*given)[0], plain(*given)[0])  # B starts at 0
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    learned = layer(*given)[0]
    learned.square().sum().backward()
    trained = {name for name, p in layer.named_parameters() if p.grad is not None}
    assert trained == {f"{each}.lora_{ab}.default.weight" for each in names for ab in "AB"}
    merged = model.merge_and_unload()["attention"]
    near, right = (exact(merged, given, dtype=d) for d in (torch.float32, torch.float64))
    accept(learned, near.output, right.output)
    assert type(merged.q_proj) is nn.Linear
    assert "in_proj_weight" in merged.torch_state_dict()


# --- derivatives ---


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")  # torch.func's own
@NEEDS
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1, "add_bias_kv": True}], ids=str)
def test_case_49_derivatives_of_every_kind_on_the_default_path(options, need):
    layer = module(**options).double()
    given = inputs(layer, batch=1, queries=2, keys=3)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return layer(q, k, v, need_weights=need)[0]

    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)
    rows = tuple(x.detach() for x in given)
    tangents = tuple(torch.randn_like(x) for x in rows)
    _, forward = torch.func.jvp(run, rows, tangents)
    _, reverse = torch.autograd.functional.jvp(run, rows, tangents)
    accept(forward, reverse, reverse)
    hessian = torch.func.hessian(lambda q: run(q, *rows[1:]).square().sum())(rows[0])
    again = torch.autograd.functional.hessian(lambda q: run(q, *rows[1:]).square().sum(), rows[0])
    accept(hessian, again, again)
    many = torch.stack((rows[0], 2 * rows[0]))
    mapped = torch.func.vmap(lambda q: run(q, *rows[1:]))(many)
    looped = torch.stack([run(q, *rows[1:]) for q in many])
    accept(mapped, looped, looped)


# --- sinks ---


@NEEDS
@pytest.mark.parametrize("learned", [0.0, 2.5, -torch.inf])
def test_case_53_a_sink_is_a_column_that_is_dropped_after_the_softmax(need, learned):
    layer = module(sinks=True, mask=hw.causal())
    with torch.no_grad():
        layer.sinks.fill_(learned)
    x = torch.randn(2, 7, 12, requires_grad=True)
    leaves = [x, layer.sinks, layer.q_proj.weight, layer.v_proj.weight]

    def by_hand(dtype: torch.dtype) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        own = copy.deepcopy(layer).to(dtype)
        rows = x.detach().to(dtype).requires_grad_()
        q, k, v = (
            p(rows).unflatten(-1, (3, -1)).transpose(1, 2)
            for p in (own.q_proj, own.k_proj, own.v_proj)
        )
        scores = (q @ k.mT / 2.0).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
        column = own.sinks.view(1, 3, 1, 1).expand(2, 3, 7, 1)
        weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
        output = own.out_proj((weights @ v).transpose(1, 2).flatten(2))
        wanted = [rows, own.sinks, own.q_proj.weight, own.v_proj.weight]
        return output, weights, torch.autograd.grad(output.square().sum(), wanted)

    output, weights = layer(x, x, x, need_weights=need, average_attn_weights=False)
    near, right = by_hand(torch.float32), by_hand(torch.float64)
    accept(output, near[0], right[0])
    if need:
        accept(weights, near[1], right[1])
    found = torch.autograd.grad(output.square().sum(), leaves)
    for own, plain, oracle in zip(found[:1] + found[2:], near[2][:1] + near[2][2:],
                                  right[2][:1] + right[2][2:], strict=True):  # fmt: skip
        accept(own, plain, oracle)
    assert found[1].isfinite().all()

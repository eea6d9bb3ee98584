"""The contract of `torch.nn.MultiheadAttention`, tested on both classes.

`differs` marks the deliberate differences of headwise, which docs/differences.md explains.
"""

import copy
import inspect
import io
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.verify.oracle.tolerance import accept
from tests.nn.oracle import torch_state

B, L, S, E, H, KDIM, VDIM = 2, 5, 7, 12, 3, 11, 13

CLASSES = (nn.MultiheadAttention, hw.MultiheadAttention)
Module = nn.MultiheadAttention | hw.MultiheadAttention


@pytest.fixture(params=CLASSES, ids=["torch", "headwise"])
def cls(request: pytest.FixtureRequest) -> type[Module]:
    return request.param


def differs(cls: type[Module]) -> bool:
    """Whether this is the class that differs on purpose."""
    return cls is hw.MultiheadAttention


def cross(module: Module, batch: int | None = B) -> tuple[Tensor, Tensor, Tensor]:
    """query, key, value in the module's layout; unbatched if batch is None."""

    def drawn(length: int, size: int) -> Tensor:
        if batch is None:
            return torch.randn(length, size)
        return torch.randn(*((batch, length) if module.batch_first else (length, batch)), size)

    return drawn(L, module.embed_dim), drawn(S, module.kdim), drawn(S, module.vdim)


# --- arguments ---


def test_the_constructors_positional_arguments(cls):
    names = list(inspect.signature(cls).parameters)[:11]
    assert names == [
        "embed_dim",
        "num_heads",
        "dropout",
        "bias",
        "add_bias_kv",
        "add_zero_attn",
        "kdim",
        "vdim",
        "batch_first",
        "device",
        "dtype",
    ]


def test_forwards_arguments_and_defaults(cls):
    defaults = {
        name: each.default for name, each in inspect.signature(cls.forward).parameters.items()
    }
    empty = inspect.Parameter.empty
    assert list(defaults.items())[:9] == [
        ("self", empty),
        ("query", empty),
        ("key", empty),
        ("value", empty),
        ("key_padding_mask", None),
        ("need_weights", True),
        ("attn_mask", None),
        ("average_attn_weights", True),
        ("is_causal", False),
    ]


def test_attributes_that_others_read(cls):
    module = cls(E, H, 0.25, kdim=KDIM, vdim=VDIM, batch_first=True)
    found = {
        name: getattr(module, name)
        for name in ("embed_dim", "num_heads", "head_dim", "dropout", "kdim", "vdim")
    }
    assert found == {
        "embed_dim": E,
        "num_heads": H,
        "head_dim": E // H,
        "dropout": 0.25,
        "kdim": KDIM,
        "vdim": VDIM,
    }
    assert module.batch_first
    assert isinstance(module.out_proj, nn.Linear)
    assert module.bias_k is None
    assert not module.add_zero_attn


# --- shapes ---


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_shapes_of_output_and_weights(cls, batch_first, average):
    module = cls(E, H, kdim=KDIM, vdim=VDIM, batch_first=batch_first)
    output, weights = module(*cross(module), average_attn_weights=average)
    assert output.shape == ((B, L, E) if batch_first else (L, B, E))
    assert weights.shape == ((B, L, S) if average else (B, H, L, S))


@pytest.mark.parametrize("average", [False, True])
def test_shapes_without_a_batch(cls, average):
    module = cls(E, H)
    output, weights = module(*cross(module, None), average_attn_weights=average)
    assert output.shape == (L, E)
    assert weights.shape == ((L, S) if average else (H, L, S))


def test_no_weights_unless_needed(cls):
    module = cls(E, H)
    output, weights = module(*cross(module), need_weights=False)
    assert weights is None
    assert output.shape == (L, B, E)


@pytest.mark.parametrize(("bias_kv", "zero"), [(True, False), (False, True), (True, True)])
def test_appended_keys_are_columns_of_the_weights(cls, bias_kv, zero):
    module = cls(E, H, add_bias_kv=bias_kv, add_zero_attn=zero)
    _, weights = module(*cross(module))
    assert weights.shape == (B, L, S + bias_kv + zero)


# --- masks: True = blocked, floats are added ---


def test_a_blocked_key_has_weight_zero(cls):
    module = cls(E, H)
    blocked = torch.rand(L, S) > 0.5
    blocked[:, 0] = False
    _, weights = module(*cross(module), attn_mask=blocked)
    assert not bool(weights[:, blocked].any())
    assert bool((weights[:, ~blocked] > 0).all())


def test_padding_has_weight_zero(cls):
    module = cls(E, H)
    padded = torch.arange(S).expand(B, S) >= torch.tensor([[S], [3]])
    _, weights = module(*cross(module), key_padding_mask=padded)
    assert not bool(weights[1, :, 3:].any())
    assert bool((weights[0] > 0).all())


def test_floats_are_added_to_the_scores(cls):
    module, inputs = cls(E, H), None
    inputs = cross(module)
    added = torch.zeros(L, S)
    added[:, 2] = 50.0
    _, weights = module(*inputs, attn_mask=added)
    assert bool((weights[:, :, 2] > 0.99).all())


def test_each_head_of_each_sample_can_have_a_mask(cls):
    module = cls(E, H)
    blocked = torch.rand(B * H, L, S) > 0.5
    blocked[:, :, 0] = False
    _, weights = module(*cross(module), attn_mask=blocked, average_attn_weights=False)
    assert torch.equal(weights == 0, blocked.view(B, H, L, S))


@pytest.mark.parametrize("weights", [True, False])
def test_a_causal_mask_with_its_flag(cls, weights):
    module = cls(E, H)
    x = torch.randn(L, B, E)
    blocked = torch.ones(L, L, dtype=torch.bool).triu(1)
    with_flag = module(x, x, x, attn_mask=blocked, is_causal=True, need_weights=weights)[0]
    without = module(x, x, x, attn_mask=blocked, need_weights=weights)[0]
    exact = copy.deepcopy(module).double()(
        *(x.double(),) * 3, attn_mask=blocked, need_weights=weights
    )[0]
    accept(with_flag, without, exact)


# --- numbers ---


def test_rows_of_the_weights_sum_to_one(cls):
    module = cls(E, H)
    _, weights = module(*cross(module))
    accept(weights.sum(-1), torch.ones(B, L), torch.ones(B, L, dtype=torch.float64))


def test_a_batch_is_its_samples(cls):
    module = cls(E, H, batch_first=True)
    inputs = cross(module)
    whole, _ = module(*inputs, need_weights=False)
    double = copy.deepcopy(module).double()
    for sample in range(B):
        one, _ = module(*(x[sample] for x in inputs), need_weights=False)
        exact, _ = double(*(x[sample].double() for x in inputs), need_weights=False)
        accept(whole[sample], one, exact)


def test_dropout_is_for_training(cls):
    module = cls(E, H, dropout=0.5)
    inputs = cross(module)
    module.eval()
    assert torch.equal(module(*inputs)[0], module(*inputs)[0])
    module.train()
    assert not torch.equal(module(*inputs)[0], module(*inputs)[0])


def written_out(
    module: Module, inputs: tuple[Tensor, ...], blocked: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Output and weights by hand from the state, batch first; blocked (B, L, S)."""
    state = {name: x.to(dtype) for name, x in torch_state(module).items()}
    if "in_proj_weight" in state:
        weights = state["in_proj_weight"].chunk(3)
    else:
        weights = tuple(state[f"{name}_proj_weight"] for name in "qkv")
    biases = state["in_proj_bias"].chunk(3)
    rows = [x.to(dtype) @ w.mT + b for x, w, b in zip(inputs, weights, biases, strict=True)]
    if "bias_k" in state:
        for number, name in ((1, "bias_k"), (2, "bias_v")):
            rows[number] = torch.cat((rows[number], state[name].expand(B, 1, E)), 1)
    if module.add_zero_attn:
        rows[1:] = [torch.cat((x, torch.zeros(B, 1, E, dtype=dtype)), 1) for x in rows[1:]]
    q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in rows)
    scores = q @ k.mT / (E // H) ** 0.5
    hidden = nn.functional.pad(blocked, (0, scores.shape[3] - S))[:, None]
    heads = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    joined = (heads @ v).transpose(1, 2).flatten(2)
    return joined @ state["out_proj.weight"].mT + state["out_proj.bias"], heads


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": KDIM, "vdim": VDIM}], ids=["same", "cross"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("bias_kv", "zero"), [(False, False), (True, False), (True, True)])
def test_the_formula(cls, bias_kv, zero, padded, sizes, average):
    options = {"add_bias_kv": bias_kv, "add_zero_attn": zero, "batch_first": True} | sizes
    module = cls(E, H, **options)
    inputs = cross(module)
    mask = torch.zeros(L, S).masked_fill(torch.rand(L, S) > 0.5, -torch.inf)
    mask[:, 1] = 0.0
    padding = torch.rand(B, S) > 0.6
    padding[:, 1] = False
    blocked = (mask != 0).expand(B, -1, -1) | (padding[:, None] & padded)
    output, weights = module(
        *inputs,
        key_padding_mask=padding if padded else None,
        attn_mask=mask if not padded else mask != 0,
        average_attn_weights=average,
    )
    near, right = (written_out(module, inputs, blocked, d) for d in (torch.float32, torch.float64))
    accept(output, near[0], right[0])
    accept(weights, *(w.mean(1) if average else w for w in (near[1], right[1])))


def test_one_mask_a_head_is_one_mask_a_sample(cls):
    """A mask (B·H, L, S) is that of each sample in turn."""
    module = cls(E, H, batch_first=True)
    inputs = cross(module)
    blocked = torch.rand(B, L, S) > 0.5
    blocked[:, :, 0] = False
    whole = module(*inputs, attn_mask=blocked.repeat_interleave(H, 0))[0]
    exact = copy.deepcopy(module).double()
    for sample in range(B):
        one = [x[sample : sample + 1] for x in inputs]
        alone = module(*one, attn_mask=blocked[sample])[0]
        right = exact(*(x.double() for x in one), attn_mask=blocked[sample])[0]
        accept(whole[sample : sample + 1], alone, right)


@pytest.mark.parametrize("weights", [True, False])
def test_two_masks_at_once_in_eval_and_training(cls, weights):
    """In eval PyTorch has another path for self-attention."""
    module = cls(E, H, batch_first=True)
    x = torch.randn(B, L, E)
    blocked = torch.rand(L, L) > 0.5
    padded = torch.rand(B, L) > 0.6
    blocked[:, 1] = padded[:, 1] = False
    options = {"attn_mask": blocked, "key_padding_mask": padded, "need_weights": weights}
    trained = module.train()(x, x, x, **options)[0]
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(*[x.double()] * 3, **options)[0]
        accept(module.eval()(x, x, x, **options)[0], trained, exact)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_dtype_of_the_module_is_that_of_its_output(cls, dtype, training, batch_first):
    module = cls(E, H, batch_first=batch_first).to(dtype).train(training)
    x = torch.randn(L, B, E, dtype=dtype)
    with torch.set_grad_enabled(training):
        output, weights = module(x, x, x, need_weights=False)
    assert (output.shape, output.dtype, weights) == (x.shape, dtype, None)


# --- state ---


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]),
        ({"bias": False}, ["in_proj_weight", "out_proj.weight"]),
        (
            {"kdim": KDIM, "vdim": VDIM},
            [
                *(f"{name}_proj_weight" for name in "qkv"),
                "in_proj_bias",
                "out_proj.weight",
                "out_proj.bias",
            ],
        ),
        (
            {"add_bias_kv": True},
            [
                "in_proj_weight",
                "in_proj_bias",
                "bias_k",
                "bias_v",
                "out_proj.weight",
                "out_proj.bias",
            ],
        ),
    ],
    ids=str,
)
def test_names_of_the_state(cls, options, names):
    assert sorted(torch_state(cls(E, H, **options))) == sorted(names)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": KDIM}, {"add_bias_kv": True}])
def test_either_loads_the_others_state(cls, options):
    (other,) = (each for each in CLASSES if each is not cls)
    module, source = cls(E, H, **options).eval(), other(E, H, **options).eval()
    module.load_state_dict(torch_state(source))
    inputs = cross(module)
    exact = copy.deepcopy(source).double()(*(x.double() for x in inputs))[0]
    accept(module(*inputs)[0], source(*inputs)[0], exact)


def test_it_survives_copying_pickling_and_saving(cls):
    module = cls(E, H).eval()
    inputs = cross(module)
    wanted = module(*inputs)[0]
    assert torch.equal(copy.deepcopy(module)(*inputs)[0], wanted)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(*inputs)[0], wanted)


def test_it_is_made_on_the_meta_device_and_filled_later(cls):
    module, source = cls(E, H, device="meta"), cls(E, H)
    assert module.out_proj.weight.device.type == "meta"
    module.to_empty(device="cpu")
    module.load_state_dict(torch_state(source))
    inputs = cross(module)
    assert torch.equal(module(*inputs)[0], source(*inputs)[0])


def test_dtype_and_moving(cls):
    module = cls(E, H, dtype=torch.float64)
    assert module.out_proj.weight.dtype == torch.float64
    assert module.float()(*cross(module))[0].dtype == torch.float32


def test_every_parameter_gets_a_gradient(cls):
    module = cls(E, H, add_bias_kv=True)
    module(*cross(module))[0].square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


def test_without_a_bias_there_is_none_anywhere(cls):
    module = cls(E, H, bias=False)
    assert module.in_proj_bias is None
    assert module.out_proj.bias is None
    assert module(*cross(module))[0].shape == (L, B, E)
    assert cls(E, H).in_proj_bias is not None


# --- what is refused ---


@pytest.mark.parametrize(
    "change", [{"embed_dim": E + 1}, {"embed_dim": 0}, {"num_heads": 0}], ids=str
)
def test_sizes_that_do_not_work_are_refused(cls, change):
    with pytest.raises((AssertionError, ValueError)):
        cls(**{"embed_dim": E, "num_heads": H} | change)


@pytest.mark.parametrize("axis", ["size", "keys", "batch"])
def test_inputs_that_do_not_fit_are_refused(cls, axis):
    module = cls(E, H)
    query, key, value = cross(module)
    if axis == "size":
        query = query[..., 1:]
    elif axis == "keys":
        value = value[1:]
    else:
        key, value = key[:, :1], value[:, :1]
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        module(query, key, value)


UNFIT = {
    "batched, key without": ((4, 4, 4), {1: (4, 4)}, {}),
    "batched, value without": ((4, 4, 4), {2: (4, 4)}, {}),
    "batched, padding (S,)": ((4, 4, 4), {}, {"key_padding_mask": (4,)}),
    "batched, mask (S,)": ((4, 4, 4), {}, {"attn_mask": (4,)}),
    "batched, mask (B, L, S) of 5": ((4, 4, 4), {}, {"attn_mask": (5, 4, 4)}),
    "unbatched, key with": ((4, 4), {1: (4, 4, 4)}, {}),
    "unbatched, value with": ((4, 4), {2: (4, 4, 4)}, {}),
    "unbatched, padding (1, 2S)": ((4, 4), {}, {"key_padding_mask": (1, 8)}),
    "unbatched, mask (S,)": ((4, 4), {}, {"attn_mask": (4,)}),
    "unbatched, mask of 5 heads": ((4, 4), {}, {"attn_mask": (5, 4, 4)}),
}


@pytest.mark.parametrize("path", ["training", "eval", "eval without weights"])
@pytest.mark.parametrize("case", UNFIT)
def test_axes_that_do_not_fit_are_refused(cls, case, path):
    shape, changed, masks = UNFIT[case]
    module = cls(4, 4, batch_first="without" in path).train(path == "training")
    inputs = [torch.randn(changed.get(number, shape)) for number in range(3)]
    given = {name: torch.zeros(size, dtype=torch.bool) for name, size in masks.items()}
    with (
        torch.set_grad_enabled(path == "training"),
        pytest.raises((AssertionError, RuntimeError, ValueError)),
    ):
        module(*inputs, **given, need_weights="without" not in path)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_empty_nested_tensor_is_refused(cls):
    nested = torch.nested.nested_tensor([])
    with pytest.raises((AssertionError, ValueError)):
        cls(E, H, batch_first=True).eval()(nested, nested, nested)


# --- where headwise differs on purpose ---


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_here(cls):
    module = cls(E, 2, batch_first=True).eval()
    parts = [torch.randn(length, E) for length in (4, 6)]
    nested = torch.nested.nested_tensor(parts)
    if differs(cls):
        with pytest.raises(ValueError, match=r"query: expected a dense .*key_padding_mask"):
            module(nested, nested, nested)
    else:
        with torch.no_grad():  # on its fast path, where that takes it
            assert module(nested, nested, nested, need_weights=False)[0].is_nested


def test_no_path_bypasses_the_module_here(cls):
    """PyTorch's native kernel is called in eval for self-attention, and never here."""
    module = cls(E, 2, batch_first=True).eval()
    x = torch.randn(B, L, E)
    native = mock.MagicMock(return_value=(torch.Tensor(), torch.Tensor()))
    with torch.no_grad(), mock.patch("torch._native_multi_head_attention", new=native):
        module(x, x, x, torch.zeros(B, L, dtype=torch.bool))
    assert native.called != differs(cls)


def test_a_blind_query_is_nan_in_torch_and_zero_here(cls):
    module = cls(E, H)
    with torch.no_grad():
        module.out_proj.bias.fill_(0.5)
    padded = torch.tensor([[False] * S, [True] * S])
    output, weights = module(*cross(module), key_padding_mask=padded)
    if differs(cls):
        assert torch.equal(output[:, 1], torch.full((L, E), 0.5))
        assert not bool(weights[1].any())
    else:
        assert bool(output[:, 1].isnan().all())


def test_weights_are_those_before_dropout_here(cls):
    module = cls(E, H, dropout=0.9).train()
    _, weights = module(*cross(module))
    assert bool((weights > 0).all()) == differs(cls)


def test_causal_alone_is_enough_here(cls):
    module = cls(E, H)
    x = torch.randn(L, B, E)
    if differs(cls):
        _, weights = module(x, x, x, is_causal=True)
        assert not bool(weights.triu(1).any())
    else:
        with pytest.raises(RuntimeError):
            module(x, x, x, is_causal=True)


def test_projections_are_called_here(cls):
    module, called = cls(E, H), []
    module.out_proj.register_forward_hook(lambda *_: called.append(1))
    module(*cross(module))
    assert bool(called) == differs(cls)


def test_errors_name_the_argument_here(cls):
    module = cls(E, H)
    query, key, value = cross(module)
    with pytest.raises((AssertionError, RuntimeError, ValueError)) as caught:
        module(query[..., 1:], key, value)
    assert isinstance(caught.value, HeadwiseError) == differs(cls)


def test_a_mask_of_zeros_and_ones_is_refused_here(cls):
    module = cls(E, H)
    mask = torch.ones(L, S).tril()
    if differs(cls):
        with pytest.raises(ValueError, match="attn_mask"):
            module(*cross(module), attn_mask=mask)
    else:
        module(*cross(module), attn_mask=mask)

"""The state_dict in PyTorch's names, saved and loaded."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.nn.projections import QKV
from headwise.verify.oracle.tolerance import accept
from tests.nn.oracle import E, H, against_torch, exact, inputs, torch_state

COMBINATIONS = [
    {"bias": bias, "add_bias_kv": add_bias_kv, **sizes}
    for bias, sizes, add_bias_kv in itertools.product(
        [True, False], [{}, {"kdim": 7, "vdim": 11}], [True, False]
    )
]

GROUPED = {"num_kv_heads": 1, "add_bias_kv": True}
WIDE = {"head_dim": 5}


def make(**options: object) -> hw.MultiheadAttention:
    return shaken(hw.MultiheadAttention(E, H, batch_first=True, **options))


def shaken(module: nn.Module) -> nn.Module:
    """The module with no parameter left at 0."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


@pytest.mark.parametrize("options", COMBINATIONS, ids=str)
def test_the_names_shapes_and_order_are_torchs(options):
    ours, theirs = make(**options), nn.MultiheadAttention(E, H, **options)
    assert [(name, x.shape) for name, x in torch_state(ours).items()] == [
        (name, x.shape) for name, x in theirs.state_dict().items()
    ]


@pytest.mark.parametrize("options", COMBINATIONS, ids=str)
@pytest.mark.parametrize("direction", ["torch to ours", "ours to torch"])
def test_it_goes_both_ways_and_the_outputs_agree(options, direction):
    ours = make(**options)
    theirs = shaken(nn.MultiheadAttention(E, H, batch_first=True, **options))
    source, target = (theirs, ours) if direction == "torch to ours" else (ours, theirs)
    keys = target.load_state_dict(torch_state(source), strict=True)
    assert not keys.missing_keys
    assert not keys.unexpected_keys
    given = [x.detach() for x in inputs(ours)]
    for average in (True, False):
        against_torch(ours, theirs, *given, average_attn_weights=average)


@pytest.mark.parametrize("options", [*COMBINATIONS, GROUPED, WIDE], ids=str)
@pytest.mark.parametrize("assign", [True, False])
def test_it_loads_its_own_and_the_submodules_names(options, assign):
    source, target = make(**options), make(**options)
    states = (source.state_dict(), torch_state(source))
    for state in states:
        shaken(target).load_state_dict(copy.deepcopy(state), strict=True, assign=assign)
        for (name, x), y in zip(target.named_parameters(), source.parameters(), strict=True):
            assert torch.equal(x, y), name


def test_grouped_heads_keep_the_projections_apart():
    shapes = {name: tuple(x.shape) for name, x in torch_state(make(**GROUPED)).items()}
    assert shapes == {
        "q_proj_weight": (12, 12),
        "k_proj_weight": (4, 12),
        "v_proj_weight": (4, 12),
        "in_proj_bias": (20,),
        "bias_k": (1, 1, 4),
        "bias_v": (1, 1, 4),
        "out_proj.weight": (12, 12),
        "out_proj.bias": (12,),
    }


@pytest.mark.parametrize("options", [{}, GROUPED, WIDE, {"bias": False}], ids=str)
def test_inside_another_module_only_its_own_keys_change(options):
    """Modules and keys with names like its own stand beside it."""

    def outer() -> nn.Module:
        stem = nn.Module()
        stem.q_proj = nn.Linear(3, 3)
        stem.attention = make(**options)
        stem.attention_norm = nn.LayerNorm(5)
        return shaken(stem)

    source, target = outer(), outer()
    state = torch_state(source)
    assert {"q_proj.weight", "attention_norm.weight", "attention.out_proj.weight"} <= set(state)
    assert not any(name.startswith("attention.q_proj.") for name in state)
    before = dict(state)
    target.load_state_dict(state, strict=True)
    assert list(state) == list(before)  # the caller's mapping is left alone
    for x, y in zip(target.parameters(), source.parameters(), strict=True):
        assert torch.equal(x, y)


def test_a_torch_encoder_layers_checkpoint_loads():
    theirs = shaken(nn.TransformerEncoderLayer(E, H, 17, batch_first=True))
    ours = nn.TransformerEncoderLayer(E, H, 17, batch_first=True)
    ours.self_attn = make()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(torch_state(ours), strict=True)


@pytest.mark.parametrize("options", [{}, {"kdim": 7}, GROUPED], ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_a_wrong_size_is_torchs_clear_error(options, strict):
    wrong = nn.MultiheadAttention(2 * E, H).state_dict()
    with pytest.raises(RuntimeError, match=r"size mismatch for q_proj.weight: .*\[24, 24\]"):
        make(**options).load_state_dict(wrong, strict=strict)


def test_missing_and_unexpected_keys_are_named():
    state = torch_state(make())
    with pytest.raises(RuntimeError, match=r'Missing key.* "q_proj.bias", "k_proj.bias", "v_proj'):
        make().load_state_dict({n: x for n, x in state.items() if n != "in_proj_bias"})
    with pytest.raises(RuntimeError, match=r'Unexpected key.* "q_proj.bias"'):
        make(bias=False).load_state_dict(state)
    for odd in (torch.tensor(3.0), "text"):
        with pytest.raises(RuntimeError, match=r'Unexpected key.* "in_proj_weight"'):
            make().load_state_dict(state | {"in_proj_weight": odd})
    both = dict(make().named_parameters()) | {"in_proj_weight": torch.zeros(36, 12)}
    with pytest.raises(RuntimeError, match=r'Unexpected key.* "in_proj_weight"'):
        make().load_state_dict(both)


def test_projections_of_different_types_stay_apart():
    module = make()
    module.q_proj.double()
    state = torch_state(module)
    assert [state[f"{name}.weight"].dtype for name in QKV] == [
        torch.float64,
        torch.float32,
        torch.float32,
    ]
    other = make()
    other.q_proj.double()
    other.load_state_dict(state, strict=True)
    assert torch.equal(other.q_proj.weight, module.q_proj.weight)


class Flat(nn.Module):
    """Keeps its weight in one row, as 4-bit layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, E * E))
        self.bias = nn.Parameter(torch.randn(E))


@pytest.mark.parametrize("name", QKV)
def test_a_weight_of_another_shape_is_not_packed(name):
    module, other = make(), make()
    setattr(module, name, Flat())
    setattr(other, name, Flat())
    state = torch_state(module)
    assert state[f"{name}.weight"].shape == (1, E * E)
    assert not any(key.startswith("in_proj") for key in state)
    other.load_state_dict(state, strict=True)
    assert torch.equal(getattr(other, name).weight, getattr(module, name).weight)


def test_a_parametrised_projection_keeps_its_keys():
    module, other = make(), make()
    for each in (module, other):
        nn.utils.parametrizations.weight_norm(each.k_proj)
    other.load_state_dict(module.state_dict(), strict=True)
    given = inputs(module)
    assert torch.equal(module(*given)[0], other(*given)[0])


def test_gradients_flow_through_a_kept_state_dict():
    module = make()
    torch_state(module, keep_vars=True)["in_proj_weight"].sum().backward()
    assert all(torch.equal(getattr(module, n).weight.grad, torch.ones(12, 12)) for n in QKV)


@pytest.mark.parametrize(
    "options", [{}, GROUPED, {"mask": hw.causal() & hw.padding([7, 3])}], ids=str
)
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies_work_alike(options, way):
    module = make(**options, position=hw.Sinusoidal(E))
    if way == "deepcopy":
        twin = copy.deepcopy(module)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(module))  # noqa: S301
    else:
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    given = inputs(module)
    assert torch.equal(twin(*given)[0], module(*given)[0])
    assert list(twin.state_dict()) == list(module.state_dict())
    shaken(twin).load_state_dict(module.state_dict(), strict=True)
    accept(
        twin(*given)[0],
        module(*given)[0],
        copy.deepcopy(module).double()(*(x.double() for x in given))[0],
    )
    shaken(twin)
    assert not torch.equal(twin.q_proj.weight, module.q_proj.weight)


def test_a_checkpoint_without_unpickling():
    module, other = make(), make()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    given = inputs(module)
    accept(
        other(*given)[0],
        exact(module, given, dtype=torch.float32).output,
        exact(module, given).output,
    )

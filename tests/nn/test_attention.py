"""`MultiheadAttention.forward` compared with the oracle and, if it is correct, with PyTorch."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue, EngineRefused
from headwise.nn import LogitScale, OutputGate, UnitNorm
from headwise.verify.oracle.tolerance import accept
from tests.nn.oracle import B, E, H, L, S, Truth, against_torch, check, exact, inputs, torch_state

WEIGHTS = {
    "averaged": {"need_weights": True},
    "per head": {"need_weights": True, "average_attn_weights": False},
    "none": {"need_weights": False},
}

PATHS = {
    "train": (True, nullcontext),
    "eval": (False, nullcontext),
    "no_grad": (False, torch.no_grad),
    "inference": (False, torch.inference_mode),
}

KINDS = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "bias_kv and zero_attn": {"add_bias_kv": True, "add_zero_attn": True},
    "cross": {"kdim": 11, "vdim": 13},
    "GQA": {"num_heads": 6, "num_kv_heads": 2},
    "GQA, bias_kv, head_dim": {
        "num_heads": 6,
        "num_kv_heads": 3,
        "head_dim": 5,
        "add_bias_kv": True,
        "add_zero_attn": True,
    },
    "GQA, norms, gate": {
        "num_heads": 6,
        "num_kv_heads": 2,
        "query_norm": nn.RMSNorm(2, eps=1e-6),
        "key_norm": nn.RMSNorm(2, eps=1e-6),
        "gate": OutputGate(E, 6, 2),
    },
    "GQA, cosine, scale": {
        "num_heads": 6,
        "num_kv_heads": 3,
        "query_norm": UnitNorm(),
        "key_norm": UnitNorm(),
        "logit_scale": LogitScale(6),
        "gate": OutputGate(E, 6),
        "add_bias_kv": True,
        "add_zero_attn": True,
    },
}
"""The constructor's arguments; `make` copies the built parts."""


def masks(heads: int) -> dict[str, tuple[dict[str, object], Tensor | None, Tensor | None]]:
    """For each kind of mask the arguments of forward, and what they mean: allowed, bias."""
    one = torch.Generator().manual_seed(7)
    blocked = torch.rand(L, S, generator=one) > 0.6
    each = torch.rand(B * heads, L, S, generator=one) > 0.6
    each[0, 1] = True  # a blind row in one head of one sample
    floats = torch.randn(L, S, generator=one)
    padded = torch.arange(S) >= torch.tensor([S - 2, 0])[:, None]  # sample 1 is all padding
    soft = torch.randn(B, S, generator=one).masked_fill(padded, -torch.inf)
    causal = torch.ones(L, S).tril(S - L).bool()
    headed = each.view(B, heads, L, S)
    real = ~padded[:, None, None]
    return {
        "no mask": ({}, None, None),
        "(L, S)": ({"attn_mask": blocked}, ~blocked, None),
        "(B*H, L, S)": ({"attn_mask": each}, ~headed, None),
        "(B, 1, L, S)": ({"attn_mask": headed[:, :1]}, ~headed[:, :1], None),
        "(1, H, L, S)": ({"attn_mask": headed[:1]}, ~headed[:1], None),
        "(B, H, L, S)": ({"attn_mask": headed}, ~headed, None),
        "(B, L, S)": ({"attn_mask": headed[:, 1]}, ~headed[:, 1:2], None),
        "floats": ({"attn_mask": floats}, None, floats),
        "padding": ({"key_padding_mask": padded}, real, None),
        "float padding": (
            {"key_padding_mask": soft},
            real,
            soft.masked_fill(padded, 0.0)[:, None, None],
        ),
        "causal": ({"is_causal": True}, causal, None),
        "all": (
            {"attn_mask": floats, "key_padding_mask": padded, "is_causal": True},
            real & causal,
            floats,
        ),
    }


def make(kind: str, **more: object) -> hw.MultiheadAttention:
    parts = copy.deepcopy(KINDS[kind])
    options = {"embed_dim": E, "num_heads": H, "batch_first": True} | parts | more
    module = hw.MultiheadAttention(**options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
            elif name.endswith(("norm.weight", "logit_scale.log")):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", masks(H))
def test_every_combination_agrees_with_the_oracle(kind, mask):
    module = make(kind)
    arguments, allowed, bias = masks(module.num_heads)[mask]
    given = inputs(module)
    truth = Truth(module, given, allowed, bias)
    for path, weights in itertools.product(PATHS, WEIGHTS):
        training, mode = PATHS[path]
        with mode():
            output, given_weights = module.train(training)(*given, **arguments, **WEIGHTS[weights])
        assert (given_weights is None) == (weights == "none")
        assert output.requires_grad == (mode is nullcontext)
        try:
            truth.hold(output, given_weights)
        except AssertionError as error:
            error.add_note(f"in {path}, weights {weights}")
            raise


@pytest.mark.parametrize("mask", masks(H))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_every_dtype_agrees_with_the_oracle(mask, dtype, need_weights):
    module = make("plain", dtype=dtype)
    arguments, allowed, bias = masks(H)[mask]
    given = inputs(module)
    check(module, given, module(*given, **arguments, need_weights=need_weights), allowed, bias)


@pytest.mark.parametrize("engine", ["auto", "eager", "sdpa"])
def test_an_engine_asked_for_runs(engine):
    module = make("plain", engine=engine)
    given = inputs(module)
    check(module, given, module(*given, need_weights=False))


def test_an_engine_that_cannot_return_weights_says_so():
    module = make("plain", engine="sdpa")
    with pytest.raises(EngineRefused, match="'sdpa' cannot run this call: it does not return w"):
        module(*inputs(module))


RIGHT = [kind for kind in KINDS if "GQA" not in kind]


def torch_masks() -> dict[str, dict[str, Tensor]]:
    """Masks under which no row is blind, so that PyTorch is right."""
    blocked = torch.rand(L, S) > 0.6
    blocked[:, 0] = False
    padded = torch.arange(S) >= torch.tensor([S - 2, 3])[:, None]
    each = (torch.rand(B * H, L, S) > 0.6).index_fill(2, torch.tensor([0]), False)
    return {
        "no mask": {},
        "(L, S)": {"attn_mask": blocked},
        "(B*H, L, S)": {"attn_mask": each},
        "floats": {"attn_mask": torch.randn(L, S)},
        "padding": {"key_padding_mask": padded},
        "both": {"attn_mask": blocked, "key_padding_mask": padded},
    }


@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.parametrize("mask", torch_masks())
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_it_agrees_with_torch(kind, mask, weights, batch_first):
    ours = make(kind, batch_first=batch_first)
    theirs = nn.MultiheadAttention(E, H, batch_first=batch_first, **KINDS[kind])
    theirs.load_state_dict(torch_state(ours))
    given = [x.detach() for x in inputs(ours)]
    laid = given if batch_first else [x.transpose(0, 1) for x in given]
    against_torch(ours, theirs, *laid, **torch_masks()[mask], **WEIGHTS[weights])


@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("training", [True, False])
def test_unbatched_input_agrees_with_torch(kind, weights, training):
    ours = make(kind, batch_first=False).train(training)
    theirs = nn.MultiheadAttention(E, H, **KINDS[kind]).train(training)
    theirs.load_state_dict(torch_state(ours))
    given = [x[0].detach() for x in inputs(ours)]
    headed = (torch.rand(H, L, S) > 0.6).index_fill(2, torch.tensor([0]), False)
    for mask in ({}, {"key_padding_mask": torch.arange(S) > 3}, {"attn_mask": headed}):
        against_torch(ours, theirs, *given, **mask, **WEIGHTS[weights])


@pytest.mark.parametrize("training", [True, False])
def test_self_attention_agrees_with_torch_on_its_fast_path(training):
    ours = make("plain", num_heads=4, batch_first=True).train(training)
    theirs = nn.MultiheadAttention(E, 4, batch_first=True).train(training)
    theirs.load_state_dict(torch_state(ours))
    x = torch.randn(B, L, E)
    with torch.no_grad():
        for options in WEIGHTS.values():
            against_torch(ours, theirs, x, x, x, **options)


def test_layouts_are_the_same_numbers():
    first, second = make("cross"), make("cross", batch_first=False)
    second.load_state_dict(first.state_dict())
    given = inputs(first)
    output, weights = first(*given)
    other, again = second(*(x.transpose(0, 1) for x in given))
    assert torch.equal(output, other.transpose(0, 1))
    assert torch.equal(weights, again)
    for number in range(B):
        alone, own = second(*(x[number] for x in given))
        near, right = exact(first, given, dtype=torch.float32), exact(first, given)
        accept(alone, near.output[number], right.output[number])
        accept(own, near.weights[number].mean(0), right.weights[number].mean(0))


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_sum_to_one_and_blind_rows_to_zero(kind, average):
    module = make(kind, dropout=0.5)  # before dropout, though it is training
    blocked = torch.zeros(L, S, dtype=torch.bool)
    blocked[2] = True
    _, weights = module(*inputs(module), attn_mask=blocked, average_attn_weights=average)
    sums = weights.sum(-1)
    extra = module.add_zero_attn + (module.bias_k is not None)
    assert weights.shape == ((B, L, S + extra) if average else (B, module.num_heads, L, S + extra))
    exactly = torch.ones(sums.shape, dtype=torch.float64)
    exactly[..., 2] = float(extra > 0)
    accept(sums, exactly.float(), exactly)
    if not extra:
        assert not weights[..., 2, :].any()


def test_gradients_of_every_order():
    module = make("bias_kv and zero_attn", dtype=torch.float64)
    given = inputs(module, batch=1, queries=2, keys=3)
    blocked = torch.tensor([[True, True, True], [False, False, True]])
    for need_weights in (True, False):

        def run(q: Tensor, k: Tensor, v: Tensor, need: bool = need_weights) -> Tensor:
            return module(q, k, v, attn_mask=blocked, need_weights=need)[0]

        assert torch.autograd.gradcheck(run, given)
    module.engine = "eager"
    assert torch.autograd.gradgradcheck(run, given)


# --- dropout ---


def test_dropout_is_for_training_only():
    module = make("plain", dropout=0.5)
    given = inputs(module)
    for need in (True, False):
        first = module.eval()(*given, need_weights=need)[0]
        check(module, given, (first, None))
        assert torch.equal(first, module(*given, need_weights=need)[0])
        module.train()
        torch.manual_seed(5)
        dropped = module(*given, need_weights=need)[0]
        assert not torch.equal(dropped, first)
        assert not torch.equal(module(*given, need_weights=need)[0], dropped)
        torch.manual_seed(5)
        assert torch.equal(module(*given, need_weights=need)[0], dropped)


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_of_one_leaves_the_bias(need_weights):
    module = make("plain", dropout=1.0)
    output, _ = module(*inputs(module), need_weights=need_weights)
    assert torch.equal(output, module.out_proj.bias.expand(B, L, E))


# --- the parts that are given ---


def test_a_standing_mask_holds_together_with_the_calls():
    module = make("plain", mask=hw.causal() & hw.window(3, 0))
    given = inputs(module)
    padded = torch.arange(S) >= torch.tensor([S, 4])[:, None]
    q, k = torch.arange(L)[:, None] + S - L, torch.arange(S)
    allowed = (k <= q) & (k >= q - 3) & ~padded[:, None, None]
    check(module, given, module(*given, key_padding_mask=padded), allowed)


def test_a_standing_mask_of_tensors_serves_a_batch():
    module = make("plain", mask=hw.padding([S, 3]))
    given = inputs(module)
    allowed = torch.arange(S) < torch.tensor([S, 3])[:, None]
    check(module, given, module(*given), allowed[:, None, None])
    with pytest.raises(BadValue, match="made for a batch of 2, called with a batch of 3"):
        module(*inputs(module, batch=3))


@pytest.mark.parametrize("queries", [L, S, S + 4])
def test_a_position_is_added_to_all_three_inputs(queries):
    position = hw.Sinusoidal(E)
    with_it, without = make("plain", position=position), make("plain")
    without.load_state_dict(with_it.state_dict())
    q, k, v = inputs(with_it, queries=queries)
    added = [position.embed(q, S - queries), position.embed(k), position.embed(v)]
    assert torch.equal(with_it(q, k, v)[0], without(*added)[0])


def test_a_learned_position_is_trained():
    module = make("plain", position=hw.Learned(S, E))
    x = torch.randn(B, S, E)
    module(x, x, x)[0].square().sum().backward()
    assert module.position.table.grad.any()
    assert "position.table" in module.state_dict()
    twin = make("plain", position=hw.Learned(S, E))
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin.position.table, module.position.table)


RELATIVE = {
    "NoPosition": lambda: hw.NoPosition(),
    "ALiBi": lambda: hw.ALiBi(H),
    "Rotary": lambda: hw.Rotary(E // H, pairs="halves"),
    "Shaw": lambda: hw.Shaw(3, E // H),
    "Shaw, values": lambda: hw.Shaw(3, E // H, value_dim=E // H),
    "T5Bias": lambda: hw.T5Bias(H),
    "TransformerXL": lambda: hw.TransformerXL(H, E // H),
}


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("keys", [L, S])
def test_a_position_inside_attention_agrees_with_the_oracle(name, weights, keys):
    module = make("plain", position=RELATIVE[name]())
    given = inputs(module, keys=keys)
    padded = torch.arange(keys) >= torch.tensor([keys - 2, 0])[:, None]
    got = module(*given, padded, is_causal=True, **WEIGHTS[weights])
    allowed = torch.ones(L, keys).tril(keys - L).bool() & ~padded[:, None, None]
    check(module, given, got, allowed)


@pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
@pytest.mark.parametrize("name", RELATIVE)
def test_a_position_of_keys_and_keys_without_a_position_are_refused(name, extra):
    position = RELATIVE[name]()
    if position.stages:
        with pytest.raises(BadValue, match=r"position: .* keys appended by add_bias_kv and"):
            make("plain", position=position, **{extra: True})
    else:
        make("plain", position=position, **{extra: True})


def test_positions_and_masks_ignore_the_appended_keys():
    options = {"add_bias_kv": True, "add_zero_attn": True, "position": hw.Sinusoidal(E)}
    module = make("plain", mask=hw.causal(), **options)
    q, k, v = inputs(module)
    p = module.position
    given = [p.embed(q, S - L), p.embed(k), p.embed(v)]
    causal = torch.ones(L, S).tril(S - L).bool()
    leaves = [x.detach().requires_grad_() for x in given]
    module.position = None
    check(module, leaves, module(*leaves), causal)
    right = module(*leaves)[0]
    module.position = p
    assert torch.equal(module(q, k, v)[0], right)


def test_the_projections_are_called():
    module = make("plain")
    called = []
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        getattr(module, name).register_forward_hook(lambda *_, n=name: called.append(n))
    for need in (True, False):
        for training in (True, False):
            called.clear()
            with torch.no_grad():
                module.train(training)(*inputs(module), need_weights=need)
            assert called == ["q_proj", "k_proj", "v_proj", "out_proj"]


class Low(nn.Module):
    """A LoRA-like wrapper: the linear layer and a low-rank addition."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "out_proj"])
def test_a_wrapped_projection_works_and_keeps_its_keys(name):
    module, merged = make("plain"), make("plain")
    merged.load_state_dict(module.state_dict())
    wrapped = Low(getattr(module, name))
    setattr(module, name, wrapped)
    with torch.no_grad():
        getattr(merged, name).weight += wrapped.up.weight @ wrapped.down.weight
    given = inputs(module)
    accept(
        module(*given)[0],
        exact(merged, given, dtype=torch.float32).output,
        exact(merged, given).output,
    )
    state = module.state_dict()
    assert {f"{name}.base.weight", f"{name}.down.weight", f"{name}.up.weight"} <= set(state)
    assert ("in_proj_weight" in torch_state(module)) == (name == "out_proj")
    other = make("plain")
    setattr(other, name, Low(getattr(other, name)))
    other.load_state_dict(state, strict=True)
    assert torch.equal(other(*given)[0], module(*given)[0])


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_quantised_projection_is_used():
    module = make("plain").eval()
    given = [x.detach() for x in inputs(module)]
    before = module(*given)[0]
    small = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    after = small(*given)[0]
    assert not torch.equal(after, before)
    assert ((after - before).norm() / before.norm()).item() < 0.1
    assert "in_proj_weight" not in torch_state(small)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["plain", "bias_kv and zero_attn"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_autocast_with_a_float32_and_a_float64_mask(autocast, kind, need_weights):
    module = make(kind)
    given = inputs(module)
    floats = torch.randn(L, S)
    for mask in (floats, floats.double()):
        with torch.autocast("cpu", autocast):
            output, weights = module(*given, attn_mask=mask, need_weights=need_weights)
        assert output.dtype == autocast
        near = exact(module, given, bias=floats, dtype=autocast)
        right = exact(module, given, bias=floats)
        accept(output, near.output, right.output)
        if weights is not None:
            accept(weights, near.weights.mean(1), right.weights.mean(1))


# --- inside torch's own layers ---


class Counted(hw.MultiheadAttention):
    """Counts its calls without a hook: hooks alone would keep torch from its fast path."""

    calls = 0

    def forward(self, *given: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
        self.calls += 1
        return super().forward(*given, **options)


def counted(bias: bool = True) -> Counted:
    module = Counted(E, 2, bias=bias, batch_first=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("path", PATHS)
def test_torchs_encoder_layer_calls_it(path, bias, norm_first):
    layer = nn.TransformerEncoderLayer(
        E, 2, 17, dropout=0.0, batch_first=True, bias=bias, norm_first=norm_first
    )
    theirs = nn.TransformerEncoderLayer(
        E, 2, 17, dropout=0.0, batch_first=True, bias=bias, norm_first=norm_first
    )
    layer.self_attn = counted(bias)
    theirs.load_state_dict(torch_state(layer))
    training, mode = PATHS[path]
    x = torch.randn(B, L, E)
    padded = torch.arange(L) >= torch.tensor([L, 3])[:, None]
    with mode():
        found = layer.train(training)(x, src_key_padding_mask=padded)
    right = theirs.double().train()(x.double(), src_key_padding_mask=padded)
    near = theirs.float().train()(x, src_key_padding_mask=padded)
    assert layer.self_attn.calls == 1
    accept(found, near, right)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("path", PATHS)
def test_torchs_encoder_calls_it_in_every_layer(path, when):
    layer = nn.TransformerEncoderLayer(E, 2, 17, dropout=0.0, batch_first=True)
    if when == "before":
        layer.self_attn = counted()
        with pytest.warns(UserWarning, match="_qkv_same_embed_dim was not True"):
            encoder = nn.TransformerEncoder(layer, 3)
    else:  # the encoder believes that it may bypass its layers
        encoder = nn.TransformerEncoder(layer, 3)
        for each in encoder.layers:
            each.self_attn = counted()
    training, mode = PATHS[path]
    with mode():
        output = encoder.train(training)(
            torch.randn(B, L, E), src_key_padding_mask=torch.arange(L).expand(B, L) > 3
        )
    assert output.shape == (B, L, E)
    assert [each.self_attn.calls for each in encoder.layers] == [1, 1, 1]


@pytest.mark.parametrize("path", PATHS)
def test_torchs_decoder_layer_calls_it(path):
    layer, theirs = (nn.TransformerDecoderLayer(E, 2, 17, 0.0, batch_first=True) for _ in "ab")
    layer.self_attn, layer.multihead_attn = counted(), counted()
    theirs.load_state_dict(torch_state(layer))
    training, mode = PATHS[path]
    x, memory = torch.randn(B, L, E), torch.randn(B, S, E)
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    with mode():
        found = layer.train(training)(x, memory, tgt_mask=causal, tgt_is_causal=True)
    near = theirs.train()(x, memory, tgt_mask=causal)
    right = theirs.double()(x.double(), memory.double(), tgt_mask=causal.double())
    assert (layer.self_attn.calls, layer.multihead_attn.calls) == (1, 1)
    accept(found, near, right)


def test_there_is_no_packed_parameter_to_change_by_mistake():
    module = make("plain")
    with pytest.raises(BadType, match=r"has separate projections .* use q_proj, k_proj"):
        torch.sum(module.in_proj_weight)
    with pytest.raises(AttributeError, match="use q_proj, k_proj and v_proj"):
        nn.init.xavier_uniform_(module.in_proj_weight)
    assert not hasattr(module.in_proj_bias, "__array__")


# --- what it refuses ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"embed_dim": 640, "num_heads": 7}, BadValue, "embed_dim: .* multiple of .*head_dim=91"),
        ({"embed_dim": 2, "num_heads": 3}, BadValue, "embed_dim: expected a multiple .*head_dim=1"),
        ({"embed_dim": 0}, BadValue, "embed_dim: expected at least 1, got 0"),
        ({"num_heads": 0}, BadValue, "num_heads: expected at least 1, got 0"),
        ({"num_heads": -3}, BadValue, "num_heads: expected at least 1, got -3"),
        ({"num_heads": 3.0}, BadType, "num_heads: expected an integer, got 3.0"),
        ({"embed_dim": True}, BadType, "embed_dim: expected an integer, got True"),
        ({"kdim": 0}, BadValue, "kdim: expected at least 1"),
        ({"vdim": -1}, BadValue, "vdim: expected at least 1"),
        ({"head_dim": 0}, BadValue, "head_dim: expected at least 1"),
        (
            {"num_kv_heads": 2},
            BadValue,
            r"num_kv_heads: .* num_heads=3, got 2; use one of \[1, 3\]",
        ),
        ({"num_kv_heads": 0}, BadValue, "num_kv_heads: expected at least 1"),
        ({"num_kv_heads": 6}, BadValue, "num_kv_heads: expected a divisor"),
        ({"dropout": 1.1}, BadValue, "dropout: expected a probability from 0 to 1, got 1.1"),
        ({"dropout": "half"}, BadValue, "dropout: expected a probability"),
        ({"engine": "cuda"}, BadValue, "engine: unknown 'cuda'; expected one of 'auto', '"),
        ({"mask": torch.ones(2, 2).bool()}, BadType, r"mask: expected a headwise mask .*from_tens"),
        ({"position": 3}, BadType, r"position: expected a headwise position .*Sinusoidal"),
    ],
)
def test_wrong_sizes_and_parts_are_refused(options, error, message):
    with pytest.raises(error, match=message) as caught:
        hw.MultiheadAttention(**({"embed_dim": E, "num_heads": H} | options))
    assert caught.value.text.zh != caught.value.text.en


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({0: [1.0]}, BadType, "query: expected a tensor, got list"),
        (
            {0: torch.zeros(B, L, 11)},
            BadValue,
            r"query: .*embed_dim=12, got shape \(2, 5, 11\); create",
        ),
        (
            {1: torch.zeros(B, S, 11)},
            BadValue,
            r"key: .*kdim=12, got shape \(2, 7, 11\); .*kdim=11",
        ),
        ({2: torch.zeros(B, S, 13)}, BadValue, r"value: .*vdim=12, got .*vdim=13"),
        ({0: torch.zeros(1, B, L, E)}, BadValue, "query: expected two axes .* or three"),
        ({0: torch.zeros(E)}, BadValue, "query: expected two axes"),
        ({0: torch.zeros(L, E)}, BadValue, "the number of axes must agree"),
        (
            {1: torch.zeros(3, S, E)},
            BadValue,
            r"batch size B, read as \(B, L, E\) with batch_first",
        ),
        ({2: torch.zeros(B, 6, E)}, BadValue, "length S of key and value must agree"),
        (
            {0: torch.zeros(B, L, E).double()},
            BadValue,
            r"query: .*float32, the dtype of q_proj.wei",
        ),
        ({2: torch.zeros(B, S, E).half()}, BadValue, r"value: .* v_proj.weight, got torch.float16"),
    ],
)
def test_wrong_inputs_are_refused(change, error, message):
    module = make("plain")
    given = [change.get(number, x) for number, x in enumerate(inputs(module))]
    with pytest.raises(error, match=message) as caught:
        module(*given)
    assert caught.value.text.zh != caught.value.text.en


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused():
    nested = torch.nested.nested_tensor([torch.zeros(3, E), torch.zeros(2, E)])
    module = make("plain")
    with pytest.raises(BadValue, match=r"query: expected a dense tensor, .*key_padding_mask"):
        module(nested, nested, nested)


def test_it_says_what_it_is():
    module = make("GQA", dropout=0.25, mask=hw.causal())
    first = repr(module).splitlines()[1].strip()
    assert first == (
        "12, 6, head_dim=2, num_kv_heads=2, dropout=0.25, batch_first=True, mask=causal()"
    )


def test_the_constructor_and_forward_are_torchs():
    import inspect

    for method in ("__init__", "forward"):
        ours = inspect.signature(getattr(hw.MultiheadAttention, method)).parameters
        theirs = inspect.signature(getattr(nn.MultiheadAttention, method)).parameters
        shared = [p for p in ours.values() if p.kind is not p.KEYWORD_ONLY]
        assert [(p.name, p.default) for p in shared] == [
            (p.name, p.default) for p in theirs.values()
        ]


def test_the_inputs_are_left_alone():
    module = make("bias_kv and zero_attn", position=hw.Sinusoidal(E))
    given = [x.detach() for x in inputs(module)]
    padded = torch.arange(S).expand(B, S) > 3
    copies = [x.clone() for x in given]
    for need in itertools.product([True, False], [True, False]):
        module(*given, padded, need[0], torch.randn(L, S), need[1])
    assert all(torch.equal(x, y) for x, y in zip(given, copies, strict=True))

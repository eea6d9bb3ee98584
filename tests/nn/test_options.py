"""Options of the module that PyTorch lacks: sinks, statistics of heads and global projections."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import headwise as hw
from headwise.call import Call
from headwise.errors import BadType, BadValue
from headwise.nn.submodules import GlobalRows, without_global_rows
from headwise.reference import reference
from headwise.shapes import AttentionShape
from headwise.verify.oracle.tolerance import accept

E, H, B, L, S = 12, 3, 2, 7, 11


def module(**options):
    made = hw.MultiheadAttention(E, H, batch_first=True, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=E**-0.5)
    return made


def heads(layer, x, keys, dtype=None):
    """q, k, v of a layer, (B, H, ·, D)."""

    def split(linear, rows):
        weight, bias = (t.to(dtype or t.dtype) for t in (linear.weight, linear.bias))
        return F.linear(rows.to(weight.dtype), weight, bias).unflatten(-1, (H, -1)).transpose(1, 2)

    return split(layer.q_proj, x), split(layer.k_proj, keys), split(layer.v_proj, keys)


def projected(layer, output):
    """What out_proj makes of heads (B, H, L, D), in their dtype."""
    weight, bias = (t.to(output.dtype) for t in (layer.out_proj.weight, layer.out_proj.bias))
    return F.linear(output.transpose(1, 2).flatten(2), weight, bias)


# --- sinks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("need_weights", [False, True])
def test_sinks_are_those_of_attend_and_learn(need_weights):
    layer = module(sinks=True, mask=hw.causal())
    x, keys = torch.randn(B, L, E), torch.randn(B, S, E)
    output, weights = layer(x, keys, keys, need_weights=need_weights, average_attn_weights=False)

    def exact(dtype):
        call = Call.of(*heads(layer, x, keys, dtype), mask=hw.causal(), sinks=layer.sinks)
        steps = reference(call, dtype)
        return projected(layer, steps.output), steps.weights

    plain, oracle = exact(torch.float32), exact(torch.float64)
    accept(output, plain[0], oracle[0])
    if need_weights:
        accept(weights, plain[1], oracle[1])
    own, near, right = (
        torch.autograd.grad(each.square().sum(), layer.sinks)[0]
        for each in (output, plain[0], oracle[0])
    )
    accept(own, near, right)


def test_sinks_start_at_zero_and_are_kept():
    layer = hw.MultiheadAttention(E, H, sinks=True)
    assert layer.sinks.shape == (H,)
    assert not layer.sinks.any()
    with torch.no_grad():
        layer.sinks.copy_(torch.arange(3.0))
    other = hw.MultiheadAttention(E, H, sinks=True)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.sinks, layer.sinks)
    other.reset_parameters()
    assert not other.sinks.any()
    assert "sinks" not in hw.MultiheadAttention(E, H).state_dict()


# --- what is asked of every head -----------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
def test_statistics_are_those_of_the_weights(batch_first):
    layer = module(mask=hw.causal())
    layer.batch_first = batch_first
    x = torch.randn(B, L, E) if batch_first else torch.randn(L, B, E)
    lengths = hw.padding([L, 4])
    result = layer.attend(
        x, x, x, mask=lengths, need=("entropy", "received", "logsumexp", "largest", "distance")
    )
    first = x if batch_first else x.transpose(0, 1)

    def exact(dtype):
        call = Call.of(*heads(layer, first, first, dtype), mask=hw.causal() & lengths)
        return reference(call, dtype)

    plain, oracle = exact(torch.float32), exact(torch.float64)
    apart = (torch.arange(L)[:, None] - torch.arange(L)).abs()
    measures = {
        "entropy": lambda w: -torch.special.xlogy(w, w).sum(-1),
        "received": lambda w: w.sum(-2),
        "largest": lambda w: w.amax(-1),
        "distance": lambda w: (w * apart).sum(-1),
    }
    for name, measure in measures.items():
        accept(getattr(result, name), measure(plain.weights), measure(oracle.weights))
    accept(result.logsumexp, plain.logsumexp, oracle.logsumexp)
    assert result.weights is None
    for measured in (result.output, layer.attend(x, x, x, mask=lengths).output):
        output = measured if batch_first else measured.transpose(0, 1)
        accept(output, projected(layer, plain.output), projected(layer, oracle.output))


def test_attend_asks_for_headwise_masks():
    x = torch.randn(L, E)
    layer = module()
    assert layer.attend(x, x, x).output.shape == (L, E)
    assert layer.attend(x, x, x, need=["received"]).received.shape == (1, H, L)
    with pytest.raises(BadType, match=r"mask: expected a headwise mask or None, got Tensor"):
        layer.attend(x, x, x, mask=torch.ones(L, L).bool())
    with pytest.raises(BadValue, match="need: unknown 'entropie'"):
        layer.attend(x, x, x, need=["entropie"])


# --- Longformer's second projections -------------------------------------------------------------


def longformer(layer, window):
    """transformers' attention with the weights of a layer."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = transformers.LongformerConfig(
        hidden_size=E,
        num_attention_heads=H,
        attention_window=[window],
        attention_probs_dropout_prob=0.0,
    )
    theirs = LongformerSelfAttention(config, 0)
    for name, ours in LONGFORMER_PARTS:
        getattr(theirs, name).load_state_dict(layer.get_submodule(ours).state_dict())
    return theirs


def run_longformer(theirs, x, window, chosen, lengths):
    """At any length: their own padding up to a multiple of the window, which is masked."""
    length = x.shape[1]
    whole = -(-length // window) * window
    rows = F.pad(x, (0, 0, 0, whole - length))
    real = torch.arange(whole) < torch.tensor(lengths)[:, None]
    said = torch.zeros(x.shape[0], whole, dtype=x.dtype).masked_fill(~real, -10000.0)
    said[:, :length][chosen] = 10000.0
    output = theirs(
        rows,
        attention_mask=said,
        is_index_masked=said < 0,
        is_index_global_attn=said > 0,
        is_global_attn=bool(chosen.any()),
    )[0]
    return output[:, :length]


LONGFORMER_PARTS = (
    ("query", "q_proj"),
    ("key", "k_proj"),
    ("value", "v_proj"),
    ("query_global", "global_proj.q_proj"),
    ("key_global", "global_proj.k_proj"),
    ("value_global", "global_proj.v_proj"),
)


@pytest.mark.parametrize("engine", ["auto", "tiled"])
@pytest.mark.parametrize(("length", "lengths"), [(29, [29, 29]), (37, [37, 23]), (24, [24, 17])])
def test_it_is_transformers_longformer(engine, length, lengths, monkeypatch):
    softmax = F.softmax  # theirs is in float32, whatever the scores are: no oracle
    wider = torch.promote_types
    monkeypatch.setattr(
        F, "softmax", lambda x, dim, dtype: softmax(x, dim, dtype=wider(x.dtype, dtype))
    )
    window = 6
    chosen = torch.zeros(B, length, dtype=torch.bool)
    chosen[0, [0, 5]] = True  # another number of global tokens in each sample
    chosen[1, [0, 11, 13]] = True
    pattern = hw.window(window // 2, window // 2) | hw.global_tokens(chosen)
    layer = module(mask=hw.padding(lengths) & pattern, global_projections=True, engine=engine)
    with torch.no_grad():  # their module has no output projection
        layer.out_proj.weight.copy_(torch.eye(E))
        layer.out_proj.bias.zero_()
    theirs = longformer(layer, window)
    exactly = copy.deepcopy(theirs).double()
    x = torch.randn(B, length, E, requires_grad=True)
    real = (torch.arange(length) < torch.tensor(lengths)[:, None])[..., None]

    def compared(output):
        return torch.where(real, output, 0.0)  # what padding asks, theirs leaves open

    ours = compared(layer(x, x, x, need_weights=False)[0])
    plain = compared(run_longformer(theirs, x, window, chosen, lengths))
    wide = x.detach().double().requires_grad_()
    oracle = compared(run_longformer(exactly, wide, window, chosen, lengths))
    accept(ours, plain, oracle)

    seed = torch.randn_like(oracle)
    names = dict(LONGFORMER_PARTS)
    own = [layer.get_parameter(f"{name}.weight") for name in names.values()]
    got = torch.autograd.grad(ours, [x, *own], seed.float())
    near = torch.autograd.grad(
        plain, [x, *(theirs.get_parameter(f"{name}.weight") for name in names)], seed.float()
    )
    right = torch.autograd.grad(
        oracle, [wide, *(exactly.get_parameter(f"{name}.weight") for name in names)], seed
    )
    for each in zip(got, near, right, strict=True):
        accept(*each)


def test_weights_and_statistics_of_global_rows_are_in_their_places():
    layer = module(mask=hw.window(2, 2) | hw.global_tokens([3]), global_projections=True)
    x = torch.randn(B, L, E)
    result = layer.attend(x, x, x, need=["weights", "logsumexp", "entropy", "largest"])

    def exact(dtype):
        q, k, v = heads(layer, x, x, dtype)
        rows = reference(Call.of(q, k, v, mask=hw.window(2, 2) | hw.global_tokens([3])), dtype)
        theirs = reference(Call.of(*heads(layer.global_proj, x, x, dtype)), dtype)
        place = (torch.arange(L) == 3)[:, None]
        return torch.where(place, theirs.weights, rows.weights)

    plain, oracle = exact(torch.float32), exact(torch.float64)
    accept(result.weights, plain, oracle)
    accept(result.largest, plain.amax(-1), oracle.amax(-1))
    entropy = [-torch.special.xlogy(w, w).sum(-1) for w in (plain, oracle)]
    accept(result.entropy, *entropy)


def test_samples_may_have_other_numbers_of_global_tokens():
    chosen = torch.zeros(B, L, dtype=torch.bool)
    chosen[0, 4] = chosen[1, 0] = chosen[1, 3] = chosen[1, 6] = True
    layer = module(mask=hw.window(1, 1), global_projections=True)
    x = torch.randn(B, L, E, dtype=torch.float64)
    exact, plain = copy.deepcopy(layer).double(), []
    for each in (layer, exact):
        each.mask = hw.window(1, 1) | hw.global_tokens(chosen)
    together = layer(x.float(), x.float(), x.float(), need_weights=False)[0]
    alone = []
    for sample in range(B):
        one = x[sample : sample + 1]
        for each, found in ((layer, plain), (exact, alone)):
            each.mask = hw.window(1, 1) | hw.global_tokens(chosen[sample])
            row = one.to(each.out_proj.weight.dtype)
            found.append(each(row, row, row)[0])
    accept(together, torch.cat(plain), torch.cat(alone))


def test_a_mask_without_global_tokens_leaves_the_ordinary_projections():
    x = torch.randn(B, L, E)
    for mask in (hw.window(2, 2), hw.global_tokens([]), hw.global_tokens([1], symmetric=False)):
        layer = module(mask=mask, global_projections=True)
        plain = module(mask=mask)
        state = {n: t for n, t in layer.state_dict().items() if not n.startswith("global_proj")}
        plain.load_state_dict(state)
        assert torch.equal(layer(x, x, x)[0], plain(x, x, x)[0])


def test_a_bias_and_a_blind_sample_reach_the_global_rows():
    bias = torch.randn(L, L)
    mask = (hw.window(1, 1) | hw.global_tokens([2])) & hw.from_tensor(bias, "q k")
    layer = module(mask=mask, global_projections=True)
    x = torch.randn(B, L, E, requires_grad=True)
    output = layer.attend(x, x, x, mask=hw.padding([5, 0]), need=["weights"])
    call = Call.of(*heads(layer.global_proj, x, x), mask=hw.padding([5, 0]) & hw.from_tensor(bias))
    oracle = reference(call).weights[:, :, 2]
    accept(output.weights[:, :, 2], reference(call, torch.float32).weights[:, :, 2], oracle)
    assert not output.weights[1].any()
    assert torch.autograd.grad(output.output.sum(), x)[0].isfinite().all()


def test_global_projections_start_as_copies_and_are_kept():
    layer = hw.MultiheadAttention(E, H, global_projections=True)
    for name in ("q_proj", "k_proj", "v_proj"):
        ours, theirs = getattr(layer.global_proj, name), getattr(layer, name)
        assert torch.equal(ours.weight, theirs.weight)
        assert isinstance(ours, nn.Linear)
        assert ours.weight is not theirs.weight
    with torch.no_grad():
        layer.global_proj.q_proj.weight.normal_()
    other = hw.MultiheadAttention(E, H, global_projections=True)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.global_proj.q_proj.weight, layer.global_proj.q_proj.weight)


def test_the_ordinary_pass_leaves_the_rows_out_and_nothing_of_l_squared_is_made():
    mask = hw.padding([L]) & (hw.window(1, 1) | ~~hw.global_tokens([0]))
    shape = AttentionShape(1, H, L, L, 0, torch.device("cpu"))
    left = without_global_rows(mask.resolve(shape)).dense(shape)[0, 0]
    assert left[0].tolist() == [True, True] + [False] * 5
    rows = GlobalRows.of(mask.resolve(shape), shape)
    assert rows.index.tolist() == [[0]]
    x = torch.zeros(1, H, 2048, 4)
    long = without_global_rows(hw.window(8, 8) | hw.global_tokens([0, 9]))
    assert hw.plan(x, x, x, mask=long).engine == "tiled"


def test_what_global_projections_do_not_take_is_refused():
    with pytest.raises(BadValue, match=r"global_projections: it cannot be combined with ALiBi"):
        hw.MultiheadAttention(E, H, global_projections=True, position=hw.ALiBi(H))
    with pytest.raises(BadValue, match=r"global_projections: .*with add_bias_kv or add_zero_attn"):
        hw.MultiheadAttention(E, H, add_zero_attn=True, global_projections=True)
    layer, x = module(mask=hw.global_tokens([0]), global_projections=True), torch.randn(B, L, E)
    with pytest.raises(BadValue, match=r"with global_projections, expected names from .*received"):
        layer.attend(x, x, x, need=["received"])


@pytest.mark.parametrize("option", ["sinks", "global_projections"])
def test_what_pytorch_has_not_is_left_by_convert(option):
    owner = nn.ModuleList([hw.MultiheadAttention(E, H, **{option: True})])
    done = hw.convert(owner, to="torch")
    assert [name for name, _ in done.left] == ["0"]
    assert "PyTorch's module has no" in done.left[0][1].en

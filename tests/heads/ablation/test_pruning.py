"""A pruned model gives the output of the ablated model and is smaller; unsupported models fail."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadValue
from headwise.heads.ablation import ablate, every_head, prune, sites
from headwise.heads.ablation.shrink import Shared, kept_of
from headwise.heads.names import parse_heads
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny
from tests.heads.ablation.families import (
    FAMILIES,
    LENGTH,
    Family,
    Stack,
    answer,
    made,
    of_numbers,
    silence,
    silenced,
    text,
    two_texts,
)

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def accept_as_masked(model: nn.Module, heads: str, family: Family) -> nn.Module:
    """The pruned model, once it has been found to answer as the masked one."""
    small = prune(model, heads)
    masked = silenced(model, parse_heads(heads))
    oracle = answer(copy.deepcopy(masked).double(), family.batch(torch.float64))
    batch = family.batch(torch.float32)
    accept(answer(small, batch), answer(masked, batch), oracle)
    with ablate(model, heads):
        accept(answer(model, batch), answer(masked, batch), oracle)
    return small


@families
def test_a_pruned_model_equals_the_masked_one(family: Family) -> None:
    model = family.make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = accept_as_masked(model, family.heads, family)
    assert size(small) < size(model)
    assert set(before) == set(model.state_dict())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    counts = {layer: site.heads for site in sites(model) for layer in site.layers}
    for head in parse_heads(family.heads):
        counts[head.layer] -= 1
    assert {layer: site.heads for site in sites(small) for layer in site.layers} == counts


@families
def test_every_second_head_and_one_whole_layer(family: Family) -> None:
    model = family.make()
    last = sites(model)[-1].layers[0]
    gone = [h for h in every_head(sites(model)) if h.number % 2 or h.layer == last]
    small = accept_as_masked(model, ",".join(map(str, gone)), family)
    assert {site.layers[0]: site.heads for site in sites(small)}[last] == 1  # and it is silent


@families
def test_gradients_of_what_is_left_are_those_of_the_masked_model(family: Family) -> None:
    """Training goes on after pruning where that of the masked model would."""
    model = family.make()
    small, masked = prune(model, family.heads), silenced(model, parse_heads(family.heads))
    name = untouched(model, small)

    def gradient(each: nn.Module, dtype: torch.dtype) -> Tensor:
        batch = family.batch(dtype)
        result = each(**batch) if isinstance(batch, dict) else each(*batch)
        state = getattr(result, "last_hidden_state", result)
        return torch.autograd.grad(state.sin().sum(), dict(each.named_parameters())[name])[0]

    plain = gradient(masked, torch.float32)
    oracle = gradient(masked.double(), torch.float64)
    accept(gradient(small, torch.float32), plain, oracle)


def untouched(model: nn.Module, small: nn.Module) -> str:
    """The lowest parameter that has the same name and shape in both, and is no embedding."""
    shapes = {name: value.shape for name, value in small.named_parameters()}
    return next(
        name
        for name, value in model.named_parameters()
        if shapes.get(name) == value.shape and "embed" not in name and value.dim() > 1
    )


GROUPS = (
    ("L0H0,L0H1,L0H2", 1, 1, True),  # a whole group: a key head goes
    ("L0H0,L0H3", 2, 2, True),  # one of each group: query heads alone
    ("L0H0", 5, 2, False),  # groups of 2 and 3 that share no larger number
    ("L0H0,L0H1", 4, 2, False),  # 1 and 3
    ("L0H0,L0H1,L0H2,L0H4", 1, 1, True),
    ("L0H0,L0H1,L0H2,L0H3,L0H4,L0H5", 1, 1, True),  # all: one stays, silent
)


@pytest.mark.parametrize(("heads", "seen", "stored", "plain"), GROUPS, ids=lambda x: str(x))
def test_key_heads_go_with_their_groups(heads, seen, stored, plain) -> None:
    """Llama with 6 heads on 2 key heads of size 10."""
    model, family = tiny.llama(), FAMILIES[5]
    assert family.make is tiny.llama
    small = accept_as_masked(model, heads, family)
    attention = small.layers[0].self_attn
    assert attention.k_proj.weight.shape == (10 * stored, 24)
    assert attention.v_proj.weight.shape == (10 * stored, 24)
    x = torch.randn(1, 3, 24)
    assert attention.k_proj(x).shape == (1, 3, 10 * seen)
    assert (type(attention.k_proj) is nn.Linear) == plain
    assert small.layers[1].self_attn.k_proj.weight.shape == (20, 24)  # the other layer is whole


@pytest.mark.parametrize(
    ("gone", "order", "share"),
    [
        (set(), (0, 1, 2), 2),
        ({0}, (0, 1, 1, 2, 2), 1),
        ({0, 2, 4}, (0, 1, 2), 1),
        ({0, 1}, (0, 1), 2),
        ({0, 1, 2, 3, 4, 5}, (0,), 1),
    ],
)
def test_what_stays_of_six_heads_on_three(gone, order, share) -> None:
    kept = kept_of(6, range(3), gone)
    assert (kept.order, kept.share) == (order, share)
    each = [kept.groups[kept.order[n // share]] for n in range(len(kept.heads))]
    assert each == [number // 2 for number in kept.heads]  # everybody reads what it read
    assert kept.shown == tuple(kept.groups[n] for n in kept.order)
    assert kept.silent == (len(gone) == 6)


def test_a_grouped_model_still_generates_with_a_cache() -> None:
    from transformers import LlamaForCausalLM

    model = made(LlamaForCausalLM(tiny.llama().config))
    model.generation_config.eos_token_id = None
    ids = text()["input_ids"][:1]
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    heads = "L0H0,L1H3,L1H4,L1H5"
    masked = silenced(model, parse_heads(heads))
    assert torch.equal(
        prune(model, heads).generate(ids, **options), masked.generate(ids, **options)
    )


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "headwise"])
def test_it_runs_on_each_implementation(implementation) -> None:
    small = prune(tiny.llama(), "L0H0,L1H3,L1H4,L1H5")
    masked = silenced(tiny.llama(), parse_heads("L0H0,L1H3,L1H4,L1H5"))
    oracle = answer(copy.deepcopy(masked).double(), text())
    if implementation == "headwise":
        hw.convert(small)
    else:
        small.set_attn_implementation(implementation)
    accept(answer(small, text()), answer(masked, text()), oracle)


def test_heads_of_a_shared_attention_go_from_every_layer_or_none() -> None:
    model = tiny.albert()
    heads = ",".join(f"L{layer}H1" for layer in range(5))
    small = prune(model, heads)
    masked = copy.deepcopy(model)
    silence(sites(masked)[0].out, 1, 7)
    accept(answer(small, text()), answer(masked, text()), answer(masked.double(), text()))
    with pytest.raises(BadValue, match=r"heads: L0, L1, L2, L3, L4 share one attention module"):
        prune(model, "L3H1")


ALIKE = (
    (tiny.llama, "L0H0,L0H1,L0H2,L1H3,L1H4,L1H5", {"num_attention_heads": 3}),
    (tiny.llama, "L0H0,L0H3,L1H2,L1H4", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    (
        tiny.t5,
        ",".join(
            f"{part}.L{layer}H0"
            for part, layers in (("encoder", 2), ("decoder", 3), ("cross", 3))
            for layer in range(layers)
        ),
        {"num_heads": 2},
    ),
)


@pytest.mark.parametrize(("make", "heads", "says"), ALIKE)
def test_a_configuration_that_can_say_it_does(make, heads, says, tmp_path) -> None:
    """Saved and loaded again by transformers alone."""
    small = prune(make(), heads)
    for name, number in says.items():
        assert getattr(small.config, name) == number
    small.save_pretrained(tmp_path)
    again = type(small).from_pretrained(tmp_path)
    batch = two_texts() if make is tiny.t5 else text()
    assert torch.equal(answer(again, batch), answer(small, batch))


@pytest.mark.parametrize(
    ("make", "heads"),
    [
        (tiny.llama, "L0H0"),  # layers differ
        (tiny.llama, "L0H0,L1H0"),  # key heads seen several times
        (tiny.bert, "L0H0,L1H0"),  # the size of a head follows from their number
        (tiny.gpt2, "L0H0,L1H0"),
    ],
)
def test_a_configuration_that_cannot_say_it_is_left(make, heads) -> None:
    model = make()
    small = prune(model, heads)
    assert small.config.to_dict() == model.config.to_dict()
    again = prune(make(), heads)  # the way to load it
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(small.state_dict())
    assert torch.equal(answer(again, text()), answer(small, text()))


def test_it_can_be_copied_and_pickled() -> None:
    small = prune(tiny.llama(), "L0H0,L1H2")
    for again in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):  # noqa: S301 - our own
        assert torch.equal(answer(again, text()), answer(small, text()))


@pytest.mark.parametrize(
    ("first", "second", "both", "stored"),
    [
        ("L0H0", "L0H0,L1H2", "L0H0,L0H1,L1H2", 2),  # what was L0H1 is L0H0 then
        ("L0H0", "L0H2", "L0H0,L0H3", 2),  # two and two: plain again
        ("L0H0", "L0H0,L0H1", "L0H0,L0H1,L0H2", 1),  # now the whole group is gone
        ("L0H0", "L0H2,L0H3,L0H4", "L0H0,L0H3,L0H4,L0H5", 1),
    ],
)
def test_it_can_be_pruned_again(first, second, both, stored) -> None:
    model = tiny.llama()
    twice = prune(prune(model, first), second)
    masked = silenced(model, parse_heads(both))
    oracle = answer(copy.deepcopy(masked).double(), text())
    accept(answer(twice, text()), answer(masked, text()), oracle)
    once, key = prune(model, both), twice.layers[0].self_attn.k_proj
    assert type(key) is type(once.layers[0].self_attn.k_proj)
    assert key.weight.shape == (10 * stored, 24)
    assert torch.equal(answer(twice, text()), answer(once, text()))


def test_what_is_frozen_stays_frozen() -> None:
    model = tiny.llama()
    model.layers[0].self_attn.q_proj.weight.requires_grad_(False)
    small = prune(model, "L0H0")
    assert not small.layers[0].self_attn.q_proj.weight.requires_grad
    assert small.layers[0].self_attn.o_proj.weight.requires_grad
    assert small.layers[0].self_attn.q_proj.out_features == 50
    assert small.layers[0].self_attn.o_proj.in_features == 50


def test_a_shared_projection_says_what_it_is_and_follows_its_weights() -> None:
    one = nn.Linear(3, 4)
    shared = Shared(one, (0, 1, 1), 2)
    x = torch.randn(2, 3)
    assert torch.equal(shared(x), one(x)[:, [0, 1, 2, 3, 2, 3]])
    assert shared.weight is one.weight
    assert set(shared.state_dict()) == {"weight", "bias"}
    assert "order=[0, 1, 1]" in repr(shared)
    assert shared.double()(x.double()).dtype == torch.float64


def test_our_own_attention_keeps_its_extras() -> None:
    """Appended keys, sinks, global projections and norms, with an uneven choice of heads."""
    options = [
        {"add_bias_kv": True},
        {"sinks": True, "position": hw.Shaw(3, 7)},
        {"global_projections": True, "mask": hw.window(2, 2) | hw.global_tokens([0, 4])},
        {"query_norm": nn.RMSNorm(7), "key_norm": nn.RMSNorm(7)},
        {"add_zero_attn": True, "bias": False},
    ]
    for each in options:
        layer = hw.MultiheadAttention(20, 6, num_kv_heads=3, head_dim=7, batch_first=True, **each)
        model = made(Stack([layer]))
        family = Family(lambda model=model: model, of_numbers(20), "")
        for heads in ("L0H0", "L0H0,L0H1", "L0H1,L0H2,L0H4"):
            accept_as_masked(model, heads, family)


def test_pytorchs_attention_with_other_sizes_for_keys_and_values() -> None:
    layer = nn.MultiheadAttention(12, 4, kdim=5, vdim=7, add_bias_kv=True, batch_first=True).eval()
    small, masked = prune(layer, "L0H1,L0H2"), silenced(layer, parse_heads("L0H1,L0H2"))
    q, k, v = torch.randn(2, LENGTH, 12), torch.randn(2, 5, 5), torch.randn(2, 5, 7)
    wide = copy.deepcopy(masked).double()(q.double(), k.double(), v.double())
    for found, plain, oracle in zip(small(q, k, v), masked(q, k, v), wide, strict=True):
        if found.shape == oracle.shape and found.shape[-1] == 12:
            accept(found, plain, oracle)


def no_linear(model: nn.Module) -> nn.Module:
    class Own(nn.Linear):
        pass

    own = Own(24, 60, bias=False)
    model.layers[0].self_attn.q_proj = own
    return model


def tied(model: nn.Module) -> nn.Module:
    attention = model.layers[0].self_attn
    attention.k_proj.weight = attention.v_proj.weight
    return model


def with_parameter(model: nn.Module) -> nn.Module:
    model.layers[0].self_attn.scales = nn.Parameter(torch.ones(6))
    return model


def norm_of_all(model: nn.Module) -> nn.Module:
    model.layers[0].self_attn.q_norm = nn.RMSNorm(60)
    return model


def hooked() -> nn.Module:
    layer = nn.MultiheadAttention(4, 2)
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: no_linear(tiny.llama()), "q_proj is a Own, not a plain nn.Linear"),
        (lambda: tied(tiny.llama()), "it shares a parameter with another module"),
        (lambda: with_parameter(tiny.llama()), "scales cannot be divided among the heads"),
        (lambda: norm_of_all(tiny.llama()), "q_norm.weight cannot be divided"),
        (hooked, "it has hooks, which would be lost"),
        (
            lambda: hw.MultiheadAttention(4, 2, mask=hw.per_head([hw.causal(), hw.full()])),
            r"its mask per_head\(\[causal\(\), full\(\)\]\) may differ between heads",
        ),
        (
            lambda: hw.MultiheadAttention(
                4, 2, mask=hw.causal() & ~hw.from_tensor(torch.ones(2, 3, 3).bool(), "h q k")
            ),
            "may differ between heads",
        ),
        (lambda: hw.MultiheadAttention(4, 2, position=hw.ALiBi(2)), "its ALiBi has different valu"),
        (lambda: hw.MultiheadAttention(4, 2, gate=nn.Linear(4, 2)), "its gate depends on the numb"),
    ],
)
def test_what_cannot_be_cut_is_said(make, message) -> None:
    with pytest.raises(BadValue, match=rf"model: heads of .* cannot be pruned: .*{message}"):
        prune(make(), "L0H0")


def test_code_that_counts_by_its_configuration_is_not_cut() -> None:
    """A Llama whose attention reads the configuration's number of heads."""
    from transformers.models.llama.modeling_llama import LlamaAttention

    class Counting(LlamaAttention):
        def forward(self, hidden_states: Tensor, **kwargs: Tensor) -> Tensor:
            assert self.config.num_attention_heads
            return super().forward(hidden_states, **kwargs)

    model = tiny.llama()
    model.layers[0].self_attn.__class__ = Counting
    with pytest.raises(BadValue, match="its code reads num_attention_heads, which pruning"):
        prune(model, "L0H0")


def test_a_head_that_is_not_there_is_said() -> None:
    with pytest.raises(BadValue, match="heads: L0H6 does not exist"):
        prune(tiny.llama(), "L0H6")

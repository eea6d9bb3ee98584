"""An ablated head has no effect on the output; other heads and the model itself are unchanged."""

import copy

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.heads.ablation import KINDS, ablate, every_head, sites
from headwise.heads.capture import capture
from headwise.heads.names import Head, parse_heads
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny
from tests.heads.ablation.families import (
    FAMILIES,
    LENGTH,
    Family,
    Stack,
    answer,
    made,
    silence,
    silenced,
    text,
)

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@families
def test_a_head_put_to_zero_is_a_head_without_output_weights(family: Family) -> None:
    heads = parse_heads(family.heads)
    model = family.make()
    with ablate(model, family.heads) as done:
        found = answer(model, family.batch(torch.float32))
    assert done.heads == heads
    wide = silenced(model, heads).double()
    oracle = answer(wide, family.batch(torch.float64))
    accept(found, answer(silenced(model, heads), family.batch(torch.float32)), oracle)
    whole = answer(copy.deepcopy(model).double(), family.batch(torch.float64))
    assert not torch.equal(whole, oracle)  # it matters


@families
def test_the_model_is_left_as_it_was(family: Family) -> None:
    model, batch = family.make(), family.batch(torch.float32)
    before = answer(model, batch)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with ablate(model, family.heads):
        answer(model, batch)
    with pytest.raises(RuntimeError, match="on purpose"), ablate(model, family.heads):
        raise RuntimeError("on purpose")
    assert torch.equal(answer(model, batch), before)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert "forward" not in module.__dict__


def unrolled(shared: nn.Module) -> nn.Module:
    """ALBERT with an attention of its own in each layer, all of the same weights."""
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(**{**shared.config.to_dict(), "num_hidden_groups": 5})
    own = AlbertModel(config, add_pooling_layer=False).eval()
    state = {}
    for name, value in shared.state_dict().items():
        for layer in range(5):
            place = f"albert_layer_groups.{layer}."
            state[name.replace("albert_layer_groups.0.", place)] = value
    own.load_state_dict(state)
    return own


def test_of_a_shared_attention_one_layer_is_taken_out() -> None:
    model = tiny.albert()
    oracle, plain = unrolled(model).double(), unrolled(model)
    for twin in (oracle, plain):
        silence(sites(twin)[3].out, 1, 7)
    with ablate(model, "L3H1"):
        found = answer(model, text())
        again = answer(model, text())  # calls are counted anew
    accept(found, answer(plain, text()), answer(oracle, text()))
    assert torch.equal(found, again)


def test_albert_groups_of_several_layers_take_turns() -> None:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=31, embedding_size=7, hidden_size=21, num_hidden_layers=4, num_hidden_groups=2,
        inner_group_num=2, num_attention_heads=3, intermediate_size=13,
    )  # fmt: skip
    model = AlbertModel(config)
    layers = {site.name[-29:]: [str(layer) for layer in site.layers] for site in sites(model)}
    assert list(layers.values()) == [["L0", "L2"], ["L1", "L3"], ["L4", "L6"], ["L5", "L7"]]


@pytest.mark.parametrize("make", tiny.ONE_STACK + tiny.TWO_STACKS, ids=lambda make: make.__name__)
def test_heads_are_called_as_in_a_capture(make: tiny.Make) -> None:
    """A head that attends to all keys alike is seen to do so, under the same name."""
    model = make()
    inputs = next((f.batch(torch.float32) for f in FAMILIES if f.make is make), text())
    with capture(model) as seen:
        answer(model, inputs)
    assert set(seen.statistics.heads()) == set(every_head(sites(model)))
    biased = make is tiny.t5  # scores are not equal there
    one_each = {head.layer: head for head in every_head(sites(model))}
    for head in () if biased else one_each.values():
        with capture(model, heads=[head]) as seen, ablate(model, [head], "uniform"):
            answer(model, inputs)
        allowed = seen.allowed[head]
        oracle = allowed.double() / allowed.sum(-1, keepdim=True).clamp(min=1)
        accept(seen.weights[head], oracle.float(), oracle)


def test_uniform_is_the_mean_of_the_visible_values() -> None:
    """One head, values chosen, causal: row i puts out the mean of the first i + 1 values."""
    layer = hw.MultiheadAttention(3, 1, bias=False, batch_first=True, mask=hw.causal())
    with torch.no_grad():
        layer.v_proj.weight.copy_(torch.eye(3))
        layer.out_proj.weight.copy_(torch.eye(3))
    x = torch.tensor([[[3.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 9.0]]])
    with ablate(layer.eval(), "L0H0", "uniform"):
        found, _ = layer(x, x, x)
    assert found[0, :2].tolist() == [[3.0, 0.0, 0.0], [1.5, 3.0, 0.0]]


def outputs(model: nn.Module, batch: dict[str, Tensor], layer: int) -> Tensor:
    """What the heads of a layer put out, (B, L, H, Dv)."""
    seen = []
    site = sites(model)[layer]
    hook = site.out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    answer(model, batch)
    hook.remove()
    return seen[0].unflatten(-1, (site.heads, site.size))


def without(model: nn.Module, head: str, instead: Tensor) -> Tensor:
    """The answer where a head of layer 1 puts out something else, by its part of W^O."""
    twin, number = silenced(model, parse_heads(head)), Head.parse(head).number
    site = sites(model)[1]
    weight = site.out.weight[:, number * site.size : (number + 1) * site.size]
    added = instead @ weight.T
    sites(twin)[1].out.register_forward_hook(lambda *args: args[2] + added)
    return answer(twin, text())


def test_the_mean_is_over_the_real_tokens_of_the_reference() -> None:
    model = tiny.llama()
    others = [text(5), text(6)]
    means = []
    for each in (model, copy.deepcopy(model).double()):
        seen = [outputs(each, other, 1)[other["attention_mask"].bool()] for other in others]
        means.append(torch.cat(seen).double().mean(0)[4])
    with ablate(model, "L1H4", "mean", reference=others):
        found = answer(model, text())
    oracle = without(copy.deepcopy(model).double(), "L1H4", means[1])
    accept(found, without(model, "L1H4", means[0].float()), oracle)


def test_resampled_is_what_the_head_does_on_the_other_text() -> None:
    model = tiny.llama()
    other = {name: value[:1] for name, value in text(5).items()}
    wide = copy.deepcopy(model).double()
    theirs = outputs(model, other, 1)[:, :, 4], outputs(wide, other, 1)[:, :, 4]
    with ablate(model, "L1H4", "resample", reference=other):
        found = answer(model, text())
    accept(found, without(model, "L1H4", theirs[0]), without(wide, "L1H4", theirs[1]))


def test_the_seed_says_which_other_texts_are_drawn() -> None:
    model = tiny.llama()
    others = [text(seed) for seed in range(4)]

    def run(seed: int) -> list[Tensor]:
        with ablate(model, "L0H0,L1H4", "resample", reference=others, seed=seed):
            return [answer(model, text(9)) for _ in range(3)]

    first, again, other = run(1), run(1), run(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert any(not torch.equal(first[0], each) for each in first[1:])  # drawn anew for each pass


def test_resampling_a_text_by_itself_changes_nothing() -> None:
    model = tiny.bert()
    alone = {name: value[:1] for name, value in text().items()}
    with ablate(model, every_head(sites(model)), "resample", reference=alone):
        found = answer(model, alone)
    assert torch.equal(found, answer(model, alone))


def test_gradients_reach_pytorchs_own_parameters() -> None:
    """PyTorch's attention runs through ours meanwhile, without a copy."""
    layer = nn.MultiheadAttention(6, 2, batch_first=True)
    x = torch.randn(2, 3, 6)
    whole, _ = layer(x, x, x)
    plain = torch.autograd.grad(whole.sum(), layer.in_proj_weight)[0]
    with ablate(layer, "L0H0"):
        ours, _ = layer(x, x, x)
        found = torch.autograd.grad(ours.sum(), layer.in_proj_weight)[0]
    assert not found[:3].any()  # rows of q of head 0
    assert not found[12:15].any()  # rows of v of head 0
    wide = copy.deepcopy(layer).double()
    out, _ = wide(*[x.double()] * 3)
    exact = torch.autograd.grad(out.sum(), wide.in_proj_weight)[0]
    accept(found[15:], plain[15:], exact[15:])  # rows of v of head 1: as without


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_pytorchs_encoder_takes_no_fast_path_past_it() -> None:
    model = FAMILIES[12].make()
    x, padded = torch.randn(2, 5, 24), torch.zeros(2, 5, dtype=torch.bool)
    padded[1, 3:] = True
    with torch.no_grad():
        plain = silenced(model, parse_heads("L0H1"))(x, src_key_padding_mask=padded)
        oracle = silenced(model, parse_heads("L0H1")).double()(
            x.double(), src_key_padding_mask=padded
        )
        with ablate(model, "L0H1"):
            found = model(x, src_key_padding_mask=padded)
    accept(found[~padded], plain[~padded], oracle[~padded])


def test_generating_with_a_cache_goes_without_the_head() -> None:
    from transformers import LlamaForCausalLM

    model = made(LlamaForCausalLM(tiny.llama().config))
    model.generation_config.eos_token_id = None
    ids = text()["input_ids"][:1]
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    with ablate(model, "L0H1,L1H5"):
        found = model.generate(ids, **options)
    assert torch.equal(found, silenced(model, parse_heads("L0H1,L1H5")).generate(ids, **options))
    assert not torch.equal(found, model.generate(ids, **options))


def test_an_encoder_that_runs_alone_goes_without_the_head() -> None:
    from transformers import BartForConditionalGeneration

    model = made(BartForConditionalGeneration(tiny.bart().config))
    ids = text()["input_ids"][:1]
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 2}
    with ablate(model, "encoder.L1H1,cross.L0H2"):
        found = model.generate(ids, **options)
    heads = parse_heads("encoder.L1H1,cross.L0H2")
    assert torch.equal(found, silenced(model, heads).generate(ids, **options))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_says_what_it_is_in_both_languages(kind) -> None:
    for said in (kind.title, kind.formula, kind.source):
        assert said.en
        assert said.zh
    assert kind.reference == (kind.name in ("mean", "resample"))


def test_a_model_that_runs_an_attention_twice_is_refused() -> None:
    class Twice(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(super().forward(x))

    model = Twice([hw.MultiheadAttention(4, 2, batch_first=True)])
    with (
        pytest.raises(BadValue, match=r"model: layers.0 was called 2 times in one"),
        ablate(model, "L0H0"),
    ):
        model(torch.zeros(1, 3, 4))


def test_one_attention_in_two_places_is_two_layers() -> None:
    layer = hw.MultiheadAttention(4, 2, batch_first=True).eval()
    model = Stack([layer, layer])
    x = torch.randn(1, 3, 4)
    with torch.no_grad():
        first = x + layer(x, x, x)[0]
        alone = silenced(layer, parse_heads("L0H1"))
        expected = first + alone(first, first, first)[0]
        with ablate(model, "L1H1"):
            found = model(x)
        wide = copy.deepcopy(layer).double()
        exact = x.double() + wide(*[x.double()] * 3)[0]
        exact = exact + copy.deepcopy(alone).double()(exact, exact, exact)[0]
    accept(found, expected, exact)


@pytest.mark.parametrize(
    ("heads", "kind", "options", "message"),
    [
        ("L9H0", "zero", {}, r"heads: L9H0 does not exist; this model has L0H0 … L1H5"),
        ("L1H6", "zero", {}, r"heads: L1H6 does not exist"),
        ("cross.L0H0", "zero", {}, r"heads: cross.L0H0 does not exist"),
        ("head two", "zero", {}, r"heads: expected names such as L0H2"),
        ([], "zero", {}, r"heads: expected at least one head"),
        ("L0H0", "gone", {}, r"kind: unknown 'gone'; expected one of 'zero', 'mean'"),
        ("L0H0", "mean", {}, r"reference: expected at least one batch, got none"),
        ("L0H0", "resample", {}, r"reference: expected at least one batch, got none"),
    ],
)
def test_what_cannot_be_taken_out_is_said(heads, kind, options, message) -> None:
    with pytest.raises(BadValue, match=message), ablate(tiny.llama(), heads, kind, **options):
        pass


def test_what_is_no_model_no_head_and_no_batch_is_said() -> None:
    with (
        pytest.raises(BadType, match=r"model: expected a torch.nn.Module, got str"),
        ablate("llama", "L0H0"),
    ):
        pass
    with (
        pytest.raises(BadType, match=r"heads: expected names such as 'L0H2,L1H8' or a list"),
        ablate(tiny.llama(), 3),
    ):
        pass
    for reference, message in ((3, "expected batches, got int"), (["a"], "a tuple or a tensor")):
        with (
            pytest.raises(BadType, match=message),
            ablate(tiny.llama(), "L0H0", "mean", reference=reference),
        ):
            pass


def test_a_model_without_an_attention_is_refused() -> None:
    with (
        pytest.raises(BadValue, match=r"model: Linear has no attention with a supported"),
        ablate(nn.Linear(2, 2), "L0H0"),
    ):
        pass


def test_an_attention_that_is_not_known_is_not_passed_over() -> None:
    """Otherwise the layers after it would be counted wrongly."""
    from transformers import BloomConfig, BloomModel, Phi3Config, Phi3Model

    config = Phi3Config(
        vocab_size=31, hidden_size=24, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=3, intermediate_size=13, pad_token_id=0,
    )  # fmt: skip
    with (
        pytest.raises(BadValue, match=r"model: layers.0.self_attn, a Phi3Attention, has no att"),
        ablate(Phi3Model(config), "L0H0"),
    ):
        pass
    bloom = BloomModel(BloomConfig(vocab_size=31, hidden_size=24, n_layer=1, n_head=3))
    with pytest.raises(BadValue, match="model: "), ablate(bloom, "L0H0"):
        pass


def test_a_reference_of_another_length_is_refused() -> None:
    short = {name: value[:, :7] for name, value in text().items()}
    model = tiny.llama()
    with (
        pytest.raises(BadValue, match=r"reference: expected batches of texts.* got 7 and 13"),
        ablate(model, "L0H0", "resample", reference=short),
    ):
        answer(model, text())
    with (
        pytest.raises(BadValue, match=r"reference: expected batches of texts.* got 13 and 7"),
        ablate(model, "L0H0", "resample", reference=[text(), short]),
    ):
        pass
    assert LENGTH == 13


def test_a_reference_larger_than_memory_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("headwise.heads.ablation.methods.MOST_NUMBERS", 100)
    with (
        pytest.raises(BadValue, match=r"stores at most 100 values of reference"),
        ablate(tiny.llama(), "L0H0", "resample", reference=text()),
    ):
        pass


class Shifted(nn.LayerNorm):
    """A normalisation with a bias, as a part of an attention."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (tiny.t5, "a position bias is added"),
        (tiny.gpt_oss, "a learned sink takes"),
        (lambda: hw.MultiheadAttention(6, 2, position=hw.ALiBi(2)), "a position term is added"),
        (
            lambda: hw.MultiheadAttention(6, 2, position=hw.TransformerXL(2, 3, embed_dim=5)),
            "a position term is added",
        ),
        (lambda: hw.MultiheadAttention(6, 2, sinks=True), "a learned sink takes"),
        (
            lambda: hw.MultiheadAttention(6, 2, global_projections=True),
            "global tokens have separate query",
        ),
    ],
)
def test_where_scores_hold_more_than_queries_uniform_is_refused(make, message) -> None:
    model = make()
    head = every_head(sites(model))[:1]
    with (
        pytest.raises(BadValue, match=f"kind: 'uniform' sets queries.*{message}"),
        ablate(model, head, "uniform"),
    ):
        pass


def test_a_normalisation_with_a_bias_is_no_query_of_zero() -> None:
    model = tiny.llama()
    model.layers[0].self_attn.q_norm = nn.LayerNorm(10)
    with (
        pytest.raises(BadValue, match="a normalisation adds a bias"),
        ablate(model, "L0H0", "uniform"),
    ):
        pass
    with ablate(model, "L1H0", "uniform"):
        pass

"""Models of transformers give the same output on headwise as on "eager", in float64."""

import copy
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import BadType, BadValue, EngineRefused, MissingExtra
from headwise.masks import Mask
from headwise.nn.huggingface import NAME, attention_function, register, transformers_masks
from headwise.nn.huggingface.transformers_masks import PatternMask, mask_function
from headwise.shapes import AttentionShape
from headwise.verify.oracle.tolerance import accept
from tests.heads import tiny
from tests.heads.tiny import ONE_STACK, PLAIN_ONLY, TWO_STACKS, Make

LENGTH, REAL, TARGET = 13, 11, 7
DECODERS = (tiny.gpt2, tiny.llama, tiny.mistral, *PLAIN_ONLY)


def vit(implementation: str = "sdpa") -> nn.Module:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=21, num_hidden_layers=2, num_attention_heads=3, intermediate_size=13,
        image_size=15, patch_size=5, attn_implementation=implementation,
    )  # fmt: skip
    return tiny._made(ViTModel(config, add_pooling_layer=False))


def whisper(implementation: str = "sdpa") -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=31, d_model=24, encoder_layers=2, decoder_layers=3, num_mel_bins=5,
        encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=13,
        decoder_ffn_dim=11, max_source_positions=17, max_target_positions=19, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        attn_implementation=implementation,
    )  # fmt: skip
    return tiny._made(WhisperModel(config))


def text(side: str = "right") -> dict[str, Tensor]:
    """Two samples of 13 tokens, the second with two of padding."""
    torch.manual_seed(5)
    real = torch.ones(2, LENGTH, dtype=torch.long)
    real[1, REAL:] = 0
    real = real if side == "right" else real.flip(1)
    return {"input_ids": torch.randint(3, 31, (2, LENGTH)), "attention_mask": real}


def two_texts(side: str = "right") -> dict[str, Tensor]:
    """An encoder's 13 tokens and a decoder's 7, both with padding."""
    real = torch.ones(2, TARGET, dtype=torch.long)
    real[1, 5:] = 0
    ids = text()["input_ids"][:, :TARGET].flip(1)
    return {**text(side), "decoder_input_ids": ids, "decoder_attention_mask": real}


def inputs_of(make: Make, side: str) -> dict[str, Tensor]:
    torch.manual_seed(3)
    if make is vit:
        return {"pixel_values": torch.randn(2, 3, 15, 15)}
    if make is whisper:
        return {
            "input_features": torch.randn(2, 5, 34),
            "decoder_input_ids": torch.randint(3, 31, (2, TARGET)),
        }
    return two_texts(side) if make in TWO_STACKS else text(side)


def wide(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }


def real_rows(inputs: dict[str, Tensor], answer: Tensor) -> Tensor:
    name = "decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask"
    return answer[inputs[name].bool()] if name in inputs else answer.flatten(0, 1)


def answers(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """The answer on real tokens, and the gradients of all parameters in one row."""
    found = real_rows(inputs, model(**inputs).last_hidden_state)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(found.square().mean(), weights, allow_unused=True)
    return [found.detach(), torch.cat([g.flatten() for g in gradients if g is not None])]


def twins(make: Make, *, blind: bool = False) -> tuple[nn.Module, nn.Module, nn.Module]:
    """A model for headwise; the same on eager; and in float64, with a softmax in float64 too.

    Some eager attentions have their softmax in float32 whatever the model's dtype, so that where a
    query sees no key the lowest float64 number becomes minus infinity, and the answer NaN. Their
    "sdpa" has not.
    """
    plain = make("eager")
    exact = make("sdpa" if blind and make not in PLAIN_ONLY else "eager").double()
    exact.load_state_dict({name: value.double() for name, value in plain.state_dict().items()})
    return copy.deepcopy(plain), plain, exact


def same(ours: list[Tensor], plain: list[Tensor], exact: list[Tensor]) -> None:
    for found, usual, right in zip(ours, plain, exact, strict=True):
        assert bool(found.isfinite().all())
        accept(found, usual, right)


@pytest.mark.parametrize("make", [*ONE_STACK, *PLAIN_ONLY, *TWO_STACKS, vit, whisper])
def test_answers_and_gradients_are_those_of_eager_attention(make: Make) -> None:
    ours, plain, exact = twins(make)
    done = hw.convert(ours)
    assert done.changed
    assert not done.left
    assert ours.config._attn_implementation == NAME
    inputs = inputs_of(make, "right")
    same(answers(ours, inputs), answers(plain, inputs), answers(exact, wide(inputs)))


@pytest.mark.parametrize("make", [*ONE_STACK, *TWO_STACKS])
def test_padding_on_the_left_leaves_blind_rows_and_no_trace(make: Make) -> None:
    ours, plain, exact = twins(make, blind=True)
    hw.convert(ours)
    inputs = inputs_of(make, "left")
    same(answers(ours, inputs), answers(plain, inputs), answers(exact, wide(inputs)))


@pytest.mark.parametrize("make", PLAIN_ONLY)
def test_padding_on_the_left_is_as_none_at_all(make: Make) -> None:
    """Positions in these are relative, so the second sample alone is the oracle."""
    ours, plain, exact = twins(make)
    hw.convert(ours)
    inputs = text("left")
    alone = {"input_ids": inputs["input_ids"][1:, LENGTH - REAL :]}
    with torch.no_grad():
        found = ours(**inputs).last_hidden_state[1:, LENGTH - REAL :]
        usual, right = plain(**alone).last_hidden_state, exact(**alone).last_hidden_state
    accept(found, usual, right)


@pytest.mark.parametrize("chunks", [(5, 4, 4), (12, 1), (3, *(1,) * 10)])
@pytest.mark.parametrize("make", DECODERS)
def test_chunks_with_a_cache_give_what_the_whole_gives(make: Make, chunks: tuple[int, ...]) -> None:
    ours, plain, exact = twins(make)
    hw.convert(ours)
    ids = text()["input_ids"]
    cache, parts = None, []
    with torch.no_grad():
        for chunk in ids.split(list(chunks), 1):
            out = ours(input_ids=chunk, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.last_hidden_state)
        usual, right = (twin(input_ids=ids).last_hidden_state for twin in (plain, exact))
    accept(torch.cat(parts, 1), usual, right)


def language_model(make: Make) -> nn.Module:
    import transformers

    base = make("eager")
    kind = type(base).__name__.removesuffix("Model")
    name = f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    config = copy.deepcopy(base.config)
    config.pad_token_id, config.eos_token_id = 0, None
    model = getattr(transformers, name)._from_config(config, attn_implementation="eager")
    return tiny._made(model)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("make", DECODERS)
def test_the_same_tokens_are_generated(make: Make, cache: str) -> None:
    model = language_model(make)
    options = {
        "max_new_tokens": 17, "do_sample": False, "cache_implementation": cache,
        "disable_compile": True,
    }  # fmt: skip
    inputs = text("left")
    usual = model.generate(**inputs, **options)
    hw.convert(model)
    assert torch.equal(model.generate(**inputs, **options), usual)
    assert usual.shape == (2, LENGTH + 17)


@pytest.mark.parametrize("make", TWO_STACKS)
def test_a_decoder_with_a_cache_and_cross_attention(make: Make) -> None:
    ours, plain, exact = twins(make)
    hw.convert(ours)
    inputs = two_texts()
    ids = inputs.pop("decoder_input_ids")
    del inputs["decoder_attention_mask"]
    cache, parts = None, []
    with torch.no_grad():
        for chunk in ids.split([4, 2, 1], 1):
            out = ours(**inputs, decoder_input_ids=chunk, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.last_hidden_state)
        usual, right = (t(**inputs, decoder_input_ids=ids)[0] for t in (plain, exact))
    accept(torch.cat(parts, 1), usual, right)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every attention of a model was called with."""
    calls: list[dict[str, Any]] = []

    def spy(*tensors: Tensor, **options: Any) -> Any:
        calls.append(options)
        return hw.attend(*tensors, **options)

    monkeypatch.setattr(attention_function, "attend", spy)
    return calls


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (tiny.bert, {"full()"}),
        (tiny.llama, {"causal()"}),
        (tiny.mistral, {"causal() & window(4, 0)"}),
        (tiny.gpt_oss, {"causal()", "causal() & window(4, 0)"}),
    ],
)
def test_masks_are_patterns_and_no_matrices(
    make: Make, names: set[str], seen: list[dict[str, Any]]
) -> None:
    model = make()
    hw.convert(model)
    padded = text()
    model(input_ids=padded["input_ids"])
    assert {each["mask"].name.replace("window(4, 0) & causal()", "causal() & window(4, 0)")
            for each in seen} == names  # fmt: skip
    seen.clear()
    model(**padded)
    real = f"padding(<bool (2, {LENGTH})>)"
    assert all(each["mask"].name.endswith(real) for each in seen)


def test_packed_texts_stay_apart() -> None:
    ours, plain, exact = twins(tiny.mistral)
    hw.convert(ours)
    places = torch.cat((torch.arange(5), torch.arange(8)))[None]
    inputs = {"input_ids": text()["input_ids"][:1], "position_ids": places, "use_cache": False}
    same(answers(ours, inputs), answers(plain, inputs), answers(exact, inputs))


def rules() -> dict[str, Any]:
    """Every rule that transformers makes, and compositions of them."""
    from transformers import masking_utils as theirs

    texts = torch.tensor([[0] * 4 + [1] * 9, [0] * 7 + [1] * 6])
    places = torch.stack((torch.cat((torch.arange(4), torch.arange(9))), torch.arange(13)))
    places[1, 7:] -= 7
    left = torch.tensor([0, 3])
    causal, band = theirs.causal_mask_function, theirs.sliding_window_overlay(4)
    packed = theirs.packed_sequence_mask_function(texts)
    blocks = theirs.blockwise_overlay(torch.tensor([[-1] * 3 + [2] * 4 + [-1] * 6] * 2))

    def of_their_own(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q * 3 + k) % 4 > 0

    def remapped(rule: Any) -> Any:
        return theirs.remap_positions_for_packed_sequence(rule, places)

    return {
        "causal": causal,
        "full": theirs.bidirectional_mask_function,
        "sliding": theirs.sliding_window_causal_mask_function(4),
        "sliding alone": band,
        "both ways": theirs.sliding_window_bidirectional_mask_function(3),
        "chunked": theirs.chunked_causal_mask_function(5, left),
        "packed": theirs.and_masks(remapped(causal), packed),
        "packed sliding": theirs.and_masks(remapped(theirs.and_masks(band, causal)), packed),
        "remapped alone": remapped(causal),
        "remapped chunks": theirs.and_masks(remapped(theirs.chunked_overlay(5, left)), packed),
        "or": theirs.or_masks(causal, blocks),
        "own": of_their_own,
    }


KNOWN = (
    "causal", "full", "sliding", "sliding alone", "both ways", "chunked", "packed",
    "packed sliding",
)  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [*KNOWN, "remapped alone", "remapped chunks", "or", "own"])
def test_a_rule_means_what_transformers_means(name: str, padded: bool) -> None:
    from transformers import masking_utils

    real = text("left")["attention_mask"].bool() if padded else None
    asked = {"batch_size": 2, "q_length": LENGTH, "kv_length": LENGTH, "attention_mask": real}
    asked |= {"mask_function": rules()[name], "allow_is_causal_skip": "packed" not in name}
    found = mask_function(**asked)
    wanted = masking_utils.sdpa_mask(**(asked | {"allow_is_causal_skip": False}))
    if name not in KNOWN:
        assert isinstance(found, Tensor)
        assert torch.equal(found, wanted)
        return
    assert isinstance(found, PatternMask)
    shape = AttentionShape(2, 1, LENGTH, LENGTH, found.offset, torch.device("cpu"))
    allowed = found.mask.dense(shape)
    assert torch.equal(allowed.expand_as(wanted), wanted)


@pytest.mark.parametrize(("q_offset", "kv_offset", "queries"), [(9, 0, 4), (12, 8, 1), (20, 9, 2)])
@pytest.mark.parametrize("name", ["causal", "sliding", "chunked"])
def test_a_cache_shifts_queries_and_keys(
    name: str, q_offset: int, kv_offset: int, queries: int
) -> None:
    from transformers import masking_utils

    real = torch.ones(2, q_offset + queries, dtype=torch.bool)
    real[1, :10] = False
    asked = {"batch_size": 2, "q_length": queries, "kv_length": q_offset + queries - kv_offset}
    asked |= {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": rules()[name]}
    asked |= {"attention_mask": real}
    found = mask_function(**asked)
    wanted = masking_utils.sdpa_mask(**asked, allow_is_causal_skip=False)
    keys = int(asked["kv_length"])
    shape = AttentionShape(2, 1, queries, keys, found.offset, torch.device("cpu"))
    assert torch.equal(found.mask.dense(shape).expand_as(wanted), wanted)


def test_one_new_token_needs_no_mask_where_it_sees_every_key() -> None:
    asked = {"batch_size": 1, "q_length": 1, "kv_length": 5, "q_offset": 4}
    sliding = rules()["sliding"]
    assert mask_function(**asked).mask == hw.full()
    assert mask_function(**asked, mask_function=sliding).mask == hw.window(3, 0) & hw.causal()
    assert mask_function(**asked | {"kv_length": 4, "kv_offset": 1}).mask == hw.full()
    real = torch.ones(1, 5, dtype=torch.bool)
    real[0, 1] = False
    found = mask_function(**asked, attention_mask=real).mask
    assert found.name == "causal() & padding(<bool (1, 5)>)"


def test_who_asks_for_a_tensor_gets_one() -> None:
    asked = {"batch_size": 1, "q_length": 5, "kv_length": 5}
    for flags in (
        {"allow_is_causal_skip": False},
        {"use_vmap": True},
        {"q_offset": torch.zeros((), dtype=torch.long)},
    ):
        found = mask_function(**asked, **flags)
        assert torch.equal(found, torch.ones(1, 1, 5, 5, dtype=torch.bool).tril())
    assert isinstance(mask_function(**asked, device="cpu"), PatternMask)


def test_a_mask_of_the_callers_own_is_kept() -> None:
    ours, plain, exact = twins(tiny.llama)
    hw.convert(ours)
    allowed = torch.rand(2, 1, LENGTH, LENGTH) > 0.4
    allowed |= torch.eye(LENGTH, dtype=torch.bool)
    ids = text()["input_ids"]
    lowest = torch.finfo(torch.float32).min
    floats = torch.where(allowed, 0.0, lowest)
    with torch.no_grad():
        usual = plain(input_ids=ids, attention_mask=floats).last_hidden_state
        right = exact(input_ids=ids, attention_mask=floats.double()).last_hidden_state
        for mask in (allowed, floats):
            accept(ours(input_ids=ids, attention_mask=mask).last_hidden_state, usual, right)


@pytest.mark.parametrize("pattern", [hw.window(3, 0), hw.window(1, 0) | hw.global_tokens([0])])
def test_a_pattern_is_tried_on_a_trained_model(pattern: Mask) -> None:
    ours, plain, exact = twins(tiny.llama)
    hw.convert(ours, mask=pattern)
    shape = AttentionShape(1, 1, LENGTH, LENGTH, 0, torch.device("cpu"))
    allowed = (pattern & hw.causal()).dense(shape)
    floats = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    ids = text()["input_ids"]
    with torch.no_grad():
        usual = plain(input_ids=ids, attention_mask=floats).last_hidden_state
        right = exact(input_ids=ids, attention_mask=floats.double()).last_hidden_state
        accept(ours(input_ids=ids).last_hidden_state, usual, right)
        start = ours(input_ids=ids[:, :9], use_cache=True)
        rest = ours(input_ids=ids[:, 9:], cache=start.cache)
    accept(torch.cat((start[0], rest[0]), 1), usual, right)


@pytest.mark.parametrize("make", TWO_STACKS)
def test_a_pattern_leaves_attention_to_the_other_text_alone(
    make: Make, seen: list[dict[str, Any]]
) -> None:
    model = make()
    hw.convert(model, mask=hw.window(2, 2), engine="eager")
    model(**two_texts())
    names = [each["mask"].name for each in seen]
    assert sum("window(2, 2)" not in name for name in names) == 3
    assert sum("window(2, 2)" in name for name in names) == 5
    assert {each["engine"] for each in seen} == {"eager"}


def test_a_sliding_cache_refuses_a_mask_that_counts_from_the_start() -> None:
    model = tiny.mistral()
    hw.convert(model, mask=hw.global_tokens([0]) | hw.window(2, 0))
    ids = text()["input_ids"]
    past = model(input_ids=ids[:, :9], use_cache=True).cache
    with pytest.raises(BadValue, match=r"mask: .* from the first token, but this model's"):
        model(input_ids=ids[:, 9:], cache=past)


@pytest.mark.parametrize("make", [tiny.bert, tiny.gpt_oss])
def test_weights_are_returned_where_they_are_asked_for(make: Make) -> None:
    ours, plain, exact = twins(make)
    hw.convert(ours)
    inputs = text()
    with torch.no_grad():
        found, usual, right = (
            twin(**inputs, output_attentions=True).attentions for twin in (ours, plain, exact)
        )
    assert len(found) == 2
    real = inputs["attention_mask"].bool()
    for each in zip(found, usual, right, strict=True):
        accept(*(weights.transpose(1, 2)[real] for weights in each))


@pytest.mark.parametrize("make", [*ONE_STACK, *PLAIN_ONLY, *TWO_STACKS, vit])
def test_back_to_what_it_ran_on(make: Make) -> None:
    model = make()
    before = model.config._attn_implementation
    inputs = inputs_of(make, "right")
    with torch.no_grad():
        usual = model(**inputs).last_hidden_state
        changed = hw.convert(model, mask=hw.window(1, 1)).changed
        moved = model(**inputs).last_hidden_state
        hw.convert(model)  # again, without the mask
        assert hw.convert(model, to="torch").changed == changed
        assert torch.equal(model(**inputs).last_hidden_state, usual)
    assert not torch.equal(moved, usual)
    assert model.config._attn_implementation == before
    assert not any(hasattr(module, attention_function.SETTINGS) for module in model.modules())


def test_what_was_set_by_hand_is_said_and_left() -> None:
    register()
    model = tiny.bert()
    model.set_attn_implementation(NAME)
    done = hw.convert(model, to="torch")
    assert not done.changed
    assert [name for name, _ in done.left] == [
        f"encoder.layer.{n}.attention.self" for n in range(2)
    ]
    assert "switched without convert()" in done.left[0][1].en
    assert model.config._attn_implementation == NAME


def test_a_model_inside_another_module_beside_torchs_attention() -> None:
    model = nn.ModuleDict({"text": tiny.bert(), "head": nn.MultiheadAttention(21, 3)})
    done = hw.convert(model)
    layers = [f"text.encoder.layer.{n}.attention.self" for n in range(2)]
    assert done.changed == ("head", *layers)
    assert isinstance(model["head"], hw.MultiheadAttention)
    assert hw.convert(model, to="torch").changed == ("head", *layers)
    assert model["text"].config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_computes_attention_itself_is_left() -> None:
    from transformers import ReformerConfig, ReformerModel

    config = ReformerConfig(
        attn_layers=["local", "lsh"], hidden_size=24, num_attention_heads=2, vocab_size=31,
        attention_head_size=12, feed_forward_size=13, axial_pos_embds=False, is_decoder=False,
        max_position_embeddings=37, num_buckets=2,
    )  # fmt: skip
    model = ReformerModel(config)
    done = hw.convert(model)
    assert not done.changed
    assert len(done.left) >= 2
    assert all(
        "attention without transformers' attention interface" in why.en for _, why in done.left
    )
    assert model.config._attn_implementation != NAME


def test_dropout_while_training() -> None:
    model = tiny.bert().train()
    inputs = text()
    hw.convert(model)
    first, second = (model(**inputs).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)
    hw.convert(model, engine="flex")
    with pytest.raises(EngineRefused, match="engine: 'flex' cannot run this call"):
        model(**inputs)


def test_what_is_not_known_is_refused() -> None:
    model = tiny.llama()
    hw.convert(model)
    with pytest.raises(BadValue, match=r"cu_seq_lens_q: .* headwise does not support"):
        model(**text(), cu_seq_lens_q=torch.tensor([0, 13]))


def test_a_model_that_cuts_its_mask_is_told_what_it_has() -> None:
    mask = mask_function(1, 5, 5)
    with pytest.raises(BadType, match=r"indexes its mask like a tensor, .* passes the mask causal"):
        mask[:, :, :, :3]


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match="needs the package 'transformers'"):
        register()


def test_wrong_arguments_change_nothing() -> None:
    model = tiny.bert()
    with pytest.raises(BadValue, match="engine: unknown 'cuda'; expected one of 'auto'"):
        hw.convert(model, engine="cuda")
    with pytest.raises(BadType, match="mask: expected a headwise mask or None, got Tensor"):
        hw.convert(model, mask=torch.ones(3, 3))  # type: ignore[arg-type]
    assert model.config._attn_implementation == "sdpa"


def test_a_decoder_without_a_mask_is_causal_from_the_first_key() -> None:
    """transformers' "sdpa" has it so: a static cache that is empty has keys beyond the queries."""
    module = nn.Module()
    module.is_causal = True  # type: ignore[assignment]
    q, k, v = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 7)
    found, weights = attention_function.attention_function(module, q, k, v, None)
    causal = {"is_causal": True}
    usual = nn.functional.scaled_dot_product_attention(q, k, v, **causal)
    wide = (x.double() for x in (q, k, v))
    right = nn.functional.scaled_dot_product_attention(*wide, **causal)
    accept(found, usual.transpose(1, 2), right.transpose(1, 2))
    assert weights is None


def test_names_of_rules_are_still_theirs() -> None:
    """A rule that is no longer told from others would be written out, right and slow."""
    from transformers import masking_utils

    assert len(transformers_masks._kinds(masking_utils)) == 8

"""Trained models give the same output on headwise. Tests are skipped if a model is not downloaded:
`headwise models get minilm` downloads it, and likewise rxnmapper, anarcii and smollm2.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.heads.models import cache_folder, is_cached, model_named
from headwise.heads.models.load import load
from headwise.nn import GrowingCache, KVCache, SlidingCache, StaticCache, load_layout
from headwise.verify.oracle.tolerance import accept

pytestmark = pytest.mark.slow

TEXTS = {
    "minilm": "The old man who lived by the river had not spoken to his brother since the flood.",
    "rxnmapper": "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
}


def last(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**inputs).last_hidden_state[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("name", ["minilm", "rxnmapper"])
def test_encoders(name: str) -> None:
    if not is_cached(model_named(name)):
        pytest.skip(f"{name} is not in the cache; headwise models get {name}")
    model = load(name).model
    ids = torch.tensor([load(name).tokenizer(TEXTS[name])["input_ids"]])
    ids = torch.cat((ids, ids))
    real = torch.ones_like(ids)
    real[1, -5:] = 0
    inputs = {"input_ids": ids, "attention_mask": real}
    model.set_attn_implementation("eager")
    usual, right = last(model, inputs), last(copy.deepcopy(model).double(), inputs)
    assert hw.convert(model).changed
    accept(last(model, inputs), usual, right)


CHAINS = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
)
"""The variable domains of trastuzumab, of different lengths."""


@pytest.mark.parametrize("path", ["training", "eval", "weights"])
def test_an_encoder_decoder_on_torchs_own_module(path: str) -> None:
    """anarcii: its six attentions are nn.MultiheadAttention, exchanged by `convert`."""
    if not is_cached(model_named("anarcii")):
        pytest.skip("anarcii is not in the cache; headwise models get anarcii")
    loaded = load("anarcii")
    model, read = loaded.model, loaded.tokenizer
    ids = read(list(CHAINS), padding=True, return_tensors="pt")["input_ids"]
    assert (ids == read.pad_token_id).any()
    said = model.decoded(ids)
    ours = copy.deepcopy(model)
    done = hw.convert(ours)
    assert (len(done.changed), done.left) == (6, ())
    if path == "weights":  # as a reader of heads asks for them
        for module in ours.modules():
            if isinstance(module, hw.MultiheadAttention):
                module.forward = functools.partial(_with_weights, module.forward)
    with torch.no_grad():
        exact = copy.deepcopy(model).double().train()  # training leaves torch's fast path
        found, usual = (each.train(path == "training")(ids, said).logits for each in (ours, model))
        accept(found, usual, exact(ids, said).logits)
    assert torch.equal(ours.eval().decoded(ids), said)


def _with_weights(forward: Any, *given: Tensor, **options: Any) -> Any:
    return forward(*given, **options | {"need_weights": True})


@pytest.fixture(scope="module")
def smollm2() -> Any:
    from transformers import AutoModelForCausalLM

    folder = cache_folder() / "smollm2"
    if not (folder / "model.safetensors").is_file():
        pytest.skip("smollm2 is not in the cache; headwise models get smollm2")
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


PROMPT = torch.tensor([[504, 2355, 1095, 618, 4483, 411, 260, 4998, 553, 441, 9224, 288, 480]])


def test_a_language_model_says_the_same(smollm2: Any) -> None:
    options = {"max_new_tokens": 50, "do_sample": False, "attention_mask": PROMPT.ne(0)}
    with torch.no_grad():
        usual, said = smollm2(PROMPT).logits, smollm2.generate(PROMPT, **options)
        exact = copy.deepcopy(smollm2).double()
        exact.set_attn_implementation("sdpa")  # its eager softmax is float32 in any dtype
        right = exact(PROMPT).logits
        ours = copy.deepcopy(smollm2)
        assert len(hw.convert(ours).changed) == 30
        accept(ours(PROMPT).logits, usual, right)
        assert torch.equal(ours.generate(PROMPT, **options), said)
    assert said.shape == (1, PROMPT.shape[1] + 50)


def test_a_window_over_a_long_text_with_bounded_memory(smollm2: Any) -> None:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicSlidingWindowLayer

    model = copy.deepcopy(smollm2.model)
    hw.convert(model, mask=hw.window(1023, 0))
    torch.manual_seed(0)
    ids = torch.randint(5, 40000, (1, 4096))
    cache = DynamicCache()
    cache.layers = [DynamicSlidingWindowLayer(1024) for _ in model.layers]
    with torch.no_grad():
        parts = [model(ids[:, :3], cache=cache)[0]]
        parts += [model(part, cache=cache)[0] for part in ids[:, 3:].split(1021, 1)]
    assert torch.cat(parts, 1).isfinite().all()
    assert {layer.keys.shape[2] for layer in cache.layers} == {1023}


def test_a_window_in_chunks_is_the_window_at_once(smollm2: Any) -> None:
    """Against their own eager attention, the window being written out as a mask of floats."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicSlidingWindowLayer

    model, exact = copy.deepcopy(smollm2.model), copy.deepcopy(smollm2.model).double()
    exact.set_attn_implementation("sdpa")
    hw.convert(model, mask=hw.window(30, 0))
    ids = PROMPT.repeat(1, 12)[:, :149]  # of drawn tokens, a single one's rounding would decide
    far = ~torch.ones(149, 149, dtype=torch.bool).tril().triu(-30)
    floats = torch.zeros(1, 1, 149, 149).masked_fill(far, torch.finfo(torch.float32).min)
    cache = DynamicCache()
    cache.layers = [DynamicSlidingWindowLayer(31) for _ in model.layers]
    with torch.no_grad():
        found = torch.cat([model(part, cache=cache)[0] for part in ids.split(37, 1)], 1)
        usual = smollm2.model(ids, attention_mask=floats)[0]
        right = exact(ids, attention_mask=floats.double())[0]
    accept(found, usual, right)


class Turns(nn.Module):
    """Their rotary angles in float64; theirs are float32 in any dtype, which is no oracle."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dim, self.base = config.head_dim, config.rope_parameters["rope_theta"]

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        even = torch.arange(0, self.dim, 2, dtype=torch.float64)
        angles = position_ids[..., None].double() * self.base ** (-even / self.dim)
        both = torch.cat((angles, angles), -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def exactly(theirs: Any) -> Any:
    """SmolLM2's layers in float64 throughout."""
    exact = copy.deepcopy(theirs.model).double()
    exact.set_attn_implementation("sdpa")  # its eager softmax is float32 in any dtype
    exact.rotary_emb = Turns(exact.config)
    return exact


class Ours(nn.Module):
    """SmolLM2 with our attention in place of theirs, called as a module with our caches."""

    def __init__(self, theirs: nn.Module, mask: hw.Mask) -> None:
        super().__init__()
        config, base = theirs.config, theirs.model
        self.embed, self.norm, self.head = base.embed_tokens, base.norm, theirs.lm_head
        self.blocks, self.attentions = base.layers, nn.ModuleList()
        for block in base.layers:
            self.attentions.append(
                hw.MultiheadAttention(
                    config.hidden_size,
                    config.num_attention_heads,
                    bias=False,
                    batch_first=True,
                    num_kv_heads=config.num_key_value_heads,
                    mask=mask,
                    position=hw.Rotary(
                        config.head_dim, pairs="halves", base=config.rope_parameters["rope_theta"]
                    ),
                    dtype=block.self_attn.q_proj.weight.dtype,
                )
            )
            load_layout(self.attentions[-1], block.self_attn.state_dict(), "separate")
        self.eval()

    def forward(
        self, ids: Tensor, caches: list[KVCache] | None = None, padded: Tensor | None = None
    ) -> Tensor:
        """The last hidden states (B, L, E)."""
        x = self.embed(ids)
        every = [None] * len(self.attentions) if caches is None else caches
        for block, attention, cache in zip(self.blocks, self.attentions, every, strict=True):
            rows = block.input_layernorm(x)
            x = x + attention(rows, rows, rows, padded, need_weights=False, cache=cache)[0]
            x = x + block.mlp(block.post_attention_layernorm(x))
        return self.norm(x)

    def caches(self, made: Callable[[], KVCache]) -> list[KVCache]:
        return [made() for _ in self.attentions]


@pytest.mark.parametrize("made", [GrowingCache, lambda: StaticCache(128)])
def test_fifty_greedy_tokens_with_our_cache(smollm2: Any, made: Callable[[], KVCache]) -> None:
    options = {"max_new_tokens": 50, "do_sample": False, "attention_mask": PROMPT.ne(0)}
    ours = Ours(copy.deepcopy(smollm2), hw.causal())
    caches, ids, rows = ours.caches(made), PROMPT, []
    with torch.no_grad():
        said = smollm2.generate(PROMPT, **options)
        while ids.shape[1] < said.shape[1]:
            rows.append(ours(ids[:, 0 if not rows else -1 :], caches))
            ids = torch.cat((ids, ours.head(rows[-1][:, -1:]).argmax(-1)), 1)
        usual = smollm2.model(said[:, :-1])[0]
        right = exactly(smollm2)(said[:, :-1])[0]
    assert torch.equal(ids, said)
    accept(torch.cat(rows, 1), usual, right)


def test_texts_of_different_lengths_with_our_cache(smollm2: Any) -> None:
    """Padded on the left; rotary positions see distances only, so each says what it says alone."""
    ours = Ours(copy.deepcopy(smollm2), hw.causal())
    short, caches = PROMPT[:, :8], ours.caches(GrowingCache)
    ids = torch.cat((PROMPT, nn.functional.pad(short, (PROMPT.shape[1] - 8, 0))))
    padded = torch.zeros(ids.shape, dtype=torch.bool)
    padded[1, : PROMPT.shape[1] - 8] = True
    said = [PROMPT, short]
    with torch.no_grad():
        for step in range(20):
            rows = ours(ids if not step else ids[:, -1:], caches, None if step else padded)
            ids = torch.cat((ids, ours.head(rows[:, -1:]).argmax(-1)), 1)
        for number, text in enumerate(said):
            alone = smollm2.generate(
                text, max_new_tokens=20, do_sample=False, attention_mask=text.ne(0)
            )
            assert torch.equal(ids[number, -20:], alone[0, -20:])


def test_a_window_of_ours_over_a_long_text_with_bounded_memory(smollm2: Any) -> None:
    """4096 tokens, of which no layer holds more than 1023 between the calls."""
    ours = Ours(copy.deepcopy(smollm2), hw.causal() & hw.window(1023, 0))
    caches = ours.caches(lambda: SlidingCache(1023))
    ids, some = PROMPT.repeat(1, 316)[:, :4096], 1500
    far = ~torch.ones(some, some, dtype=torch.bool).tril().triu(-1023)
    floats = torch.zeros(1, 1, some, some).masked_fill(far, torch.finfo(torch.float32).min)
    exact = exactly(smollm2)
    with torch.no_grad():
        parts = [ours(part, caches) for part in ids.split(1021, 1)]
        usual = smollm2.model(ids[:, :some], attention_mask=floats)[0]
        right = exact(ids[:, :some], attention_mask=floats.double())[0]
    assert {(cache.length, cache.seen) for cache in caches} == {(1023, 4096)}
    held = {
        (part.content.k.untyped_storage().nbytes(), part.content.v.untyped_storage().nbytes())
        for part in caches
    }
    assert held == {(3 * 1023 * 64 * 4,) * 2}
    accept(torch.cat(parts, 1)[:, :some], usual, right)

"""Attention modules of PyTorch and transformers: accepted, with known faults or an adapter."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwise.verify import verify

E, H = 12, 3


def bert(kind: str, implementation: str = "eager") -> nn.Module:
    from transformers import BertConfig
    from transformers.models.bert import modeling_bert as bert

    config = BertConfig(hidden_size=E, num_attention_heads=H, intermediate_size=7)
    config._attn_implementation = implementation
    return getattr(bert, kind)(config)


def gpt2() -> nn.Module:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=E, n_head=H)
    config._attn_implementation = "eager"
    return GPT2Attention(config, layer_idx=0)


def llama(groups: int, implementation: str = "eager") -> nn.Module:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = LlamaConfig(
        hidden_size=E, num_attention_heads=H, num_key_value_heads=groups, intermediate_size=7
    )
    config._attn_implementation = implementation
    return LlamaAttention(config, 0)


def t5(relative: bool) -> nn.Module:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=E, d_kv=E // H, num_heads=H, d_ff=7)
    config._attn_implementation = "eager"
    return T5Attention(config, has_relative_attention_bias=relative)


def longformer(kind: str = "LongformerSelfAttention") -> nn.Module:
    from transformers import LongformerConfig
    from transformers.models.longformer import modeling_longformer as longformer

    config = LongformerConfig(hidden_size=E, num_attention_heads=H, attention_window=[4])
    return getattr(longformer, kind)(config, 0)


def notes(report) -> str:
    return "\n".join(note.en for note in report.notes)


def failures(report) -> list[str]:
    return [f"{f.check.name}: {f.failed}" for f in report.findings if not f.passed]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: bert("BertSelfAttention"), "it has no output projection"),
        (lambda: bert("BertSelfAttention", "sdpa"), "attention_mask: True = may attend"),
        (lambda: bert("BertAttention"), "the attention was found at self; the layers around it"),
        (gpt2, "attention_mask: a float that is added to the scores (found by trial)"),
        (lambda: llama(H), 'it rotates queries and keys as by Rotary(pairs="halves")'),
        (lambda: llama(1), "it has 1 key/value heads, shared by its query heads"),
        pytest.param(
            lambda: llama(1, "sdpa"),
            'it rotates queries and keys as by Rotary(pairs="halves")',
            marks=pytest.mark.xfail(
                strict=True, reason="unproven: the convention of attention_mask is not recognised"
            ),
        ),
    ],
    ids=["bert", "bert sdpa", "bert layer", "gpt2", "llama", "llama grouped", "llama sdpa"],
)
def test_transformers_attentions_are_accepted(make: Callable[[], nn.Module], said: str) -> None:
    report = verify(make(), embed_dim=E, heads=H)
    assert failures(report) == []
    assert report.accepted
    assert said in notes(report)


@pytest.mark.parametrize("relative", [False, True])
def test_t5_is_named_by_what_it_leaves_out_on_purpose(relative: bool) -> None:
    report = verify(t5(relative), embed_dim=E, heads=H)
    assert not report.accepted
    assert [mistake.name for mistake in report.mistakes[0]] == ["no_scale"]
    assert "omits the division by sqrt(D) on purpose" in notes(report)
    zeroed = "relative_attention_bias.weight: set to 0, not verified"
    assert (zeroed in notes(report)) is relative


@pytest.mark.parametrize("kind", ["LongformerSelfAttention", "LongformerAttention"])
def test_longformer_is_accepted_on_its_own_window(kind: str) -> None:
    report = verify(longformer(kind), embed_dim=E, heads=H)
    assert failures(report) == []
    assert report.accepted
    assert "it has its own mask, window(2, 2)" in notes(report)
    (forward,) = [f for f in report.findings if f.check.name == "module_forward"]
    assert forward.trials


def test_a_wrong_longformer_is_named() -> None:
    class NoScale(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (E // H) ** 0.5

    attention = longformer()
    attention.query = NoScale(E, E)
    report = verify(attention, embed_dim=E, heads=H)
    assert not report.accepted
    assert "no_scale" in {m.name for group in report.mistakes for m in group}


def test_the_fused_function_is_called_by_its_documented_arguments() -> None:
    report = verify(F.scaled_dot_product_attention)
    assert failures(report) == []
    assert report.accepted
    assert "is_causal=True with fewer queries than keys: upper-left" in notes(report)
    assert "NaN in a masked value reaches the output" in notes(report)
    assert report.conventions.runner.signature.left == (
        *("dropout_p", "is_causal", "scale", "enable_gqa"),
    )


def test_torch_has_its_known_faults_and_no_other() -> None:
    report = verify(nn.MultiheadAttention)
    assert report.accepted
    for fault in (
        "a query that sees no key gives NaN",
        "it returns the weights after dropout",
        "hooks on out_proj are not called",
        "NaN in a masked value reaches the output",
    ):
        assert fault in notes(report)


def test_a_layer_around_an_attention_is_verified_where_the_attention_stands() -> None:
    layer = nn.TransformerEncoderLayer(E, H, 7, batch_first=True)
    report = verify(layer, embed_dim=E, heads=H)
    assert report.accepted
    assert "the attention was found at self_attn; the layers around it were not" in notes(report)


def test_two_attentions_in_one_layer_are_not_guessed_between() -> None:
    layer = nn.TransformerDecoderLayer(E, H, 7, batch_first=True)
    report = verify(layer, embed_dim=E, heads=H)
    assert report.status == "unproven"
    assert "are not one attention's projections" in str(report.not_compared)


class Flagged(nn.MultiheadAttention):
    """Takes a causal flag, aligned as its class says."""

    shift = 0

    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads, batch_first=True)

    def forward(self, query, key, value, attn_mask=None, is_causal=False):
        if is_causal:
            offset = self.shift * (key.shape[1] - query.shape[1])
            pairs = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool)
            attn_mask = ~pairs.tril(offset) if self.shift is not None else None
        return super().forward(query, key, value, attn_mask=attn_mask, need_weights=False)


class LowerRight(Flagged):
    shift = 1


class Deaf(Flagged):
    def forward(self, query, key, value, attn_mask=None, is_causal=False):
        return super().forward(query, key, value, attn_mask=attn_mask)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Flagged, "is_causal=True with fewer queries than keys: upper-left"),
        (LowerRight, "is_causal=True with fewer queries than keys: lower-right"),
        (Deaf, "is_causal=True is not a causal mask: the output differs"),
        (nn.MultiheadAttention, "is_causal: it raises where no mask is given"),
    ],
)
def test_what_a_causal_flag_does_is_found_by_trying(target, said: str) -> None:
    assert said in notes(verify(target))


class ForgetsTheFirst(nn.MultiheadAttention):
    """Two masks at once: the padding takes the place of the other mask."""

    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads, batch_first=True)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        if key_padding_mask is not None:
            attn_mask = None
        given = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        return super().forward(query, key, value, need_weights=False, **given)


def test_two_masks_at_once_are_tried() -> None:
    report = verify(ForgetsTheFirst)
    assert failures(report) == ["masks_together: causal in one argument, padding in another"]

"""Rotary scaling compared with the functions and modules of transformers."""

from importlib import import_module

import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import headwise as hw
from headwise.errors import BadType, BadValue
from headwise.nn import GrowingCache
from headwise.positions import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    YaRN,
    frequencies_from,
)
from headwise.verify.oracle.tolerance import accept

CPU, D, MAX = torch.device("cpu"), 24, 96
FACTORS = {
    "short_factor": [1 + n / 9 for n in range(12)],
    "long_factor": [2.0 + n for n in range(12)],
}
PARAMETERS = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.5},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 24},
    "yarn-betas": {"factor": 6.0, "original_max_position_embeddings": 16, "beta_fast": 5.0,
                   "beta_slow": 0.5, "truncate": False},
    "yarn-scale": {"factor": 4.0, "original_max_position_embeddings": 24, "attention_factor": 1.7},
    "yarn-deepseek": {"factor": 40.0, "original_max_position_embeddings": 24, "mscale": 0.7,
                      "mscale_all_dim": 1.1},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 48},
    "longrope": {"original_max_position_embeddings": 24, **FACTORS},
    "longrope-scale": {"original_max_position_embeddings": 24, "factor": 9.0,
                       "attention_factor": 0.8, **FACTORS},
}  # fmt: skip


def config(kind, partial=1.0):
    parameters = {"rope_type": kind.partition("-")[0], "rope_theta": 700.0, **PARAMETERS[kind]}
    if partial != 1.0:
        parameters["partial_rotary_factor"] = partial
    return LlamaConfig(
        hidden_size=2 * D,
        num_attention_heads=2,
        head_dim=D,
        max_position_embeddings=MAX,
        rope_parameters=parameters,
    )


@pytest.mark.parametrize("length", [5, 24, 25, MAX, MAX + 1, 3 * MAX])
@pytest.mark.parametrize("kind", PARAMETERS)
def test_the_angles_are_transformers_own(kind, length):
    of = config(kind)
    right, scale = ROPE_INIT_FUNCTIONS[of.rope_parameters["rope_type"]](of, CPU, seq_len=length)
    own = frequencies_from(of.rope_parameters, MAX)
    at = own.at_length(length)
    accept(at.per_pair(D, CPU).float(), right, right.double())
    assert own.length_scale == scale
    tensor = own.at_length(torch.tensor(length)).per_pair(D, CPU)
    accept(tensor, at.per_pair(D, CPU).float(), at.per_pair(D, CPU))


@pytest.mark.parametrize("length", [7, MAX + 11])
@pytest.mark.parametrize("partial", [1.0, 0.5])
@pytest.mark.parametrize("kind", [kind for kind in PARAMETERS if "longrope" not in kind])
def test_turned_queries_and_keys_are_llamas(kind, partial, length):
    q, k = torch.randn(2, 3, length, D), torch.randn(2, 1, length, D)
    of, dim = config(kind, partial), int(D * partial)
    cos, sin = LlamaRotaryEmbedding(of)(q, torch.arange(length)[None])
    own = hw.Rotary(
        D, pairs="halves", rotary_dim=dim, frequencies=frequencies_from(of.rope_parameters, MAX)
    )
    right = apply_rotary_pos_emb(q[..., :dim], k[..., :dim], cos, sin)
    exact = own.content(q.double(), k.double(), None)
    for found, theirs, oracle in zip(own.content(q, k, None), right, exact, strict=True):
        accept(found, torch.cat((theirs, found[..., dim:]), -1), oracle)
        assert torch.equal(found[..., dim:], oracle[..., dim:].float())
    places = torch.arange(length).expand(2, -1)
    for found, oracle in zip(own.at(places, places).content(q, k, None), exact, strict=True):
        accept(found, oracle.float(), oracle)


@pytest.mark.parametrize(
    ("module", "name", "sections", "interleaved"),
    [("qwen2_vl", "Qwen2VLRotaryEmbedding", [4, 5, 3], False),
     ("qwen3_vl", "Qwen3VLTextRotaryEmbedding", [6, 3, 3], True)],
)  # fmt: skip
def test_positions_of_several_axes_are_qwens(module, name, sections, interleaved):
    library = import_module(f"transformers.models.{module}.modeling_{module}")
    parameters = {"rope_type": "default", "rope_theta": 900.0, "mrope_section": sections}
    text = AutoConfig.for_model(module).get_text_config()
    text.rope_parameters, text.head_dim = parameters, D
    text.hidden_size, text.num_attention_heads = 2 * D, 2
    q, k = torch.randn(2, 3, 9, D), torch.randn(2, 1, 9, D)
    places = torch.randint(0, 50, (3, 2, 9))
    cos, sin = getattr(library, name)(text)(q, places)
    right = apply_rotary_pos_emb(q, k, cos, sin)
    own = hw.Rotary(
        D,
        pairs="halves",
        frequencies=frequencies_from(parameters, MAX),
        sections=sections,
        interleaved=interleaved,
    )
    bound = own.at(places, places)
    exact = bound.content(q.double(), k.double(), None)
    for found, theirs, oracle in zip(bound.content(q, k, None), right, exact, strict=True):
        accept(found, theirs, oracle)
    one = own.at(places[:, 0], places[:, 0]).content(q[:1], k[:1], None)
    assert torch.equal(one[0], bound.content(q, k, None)[0][:1])
    text_only = own.content(q, k, None)  # a text has one number for all axes
    plain = hw.Rotary(D, pairs="halves", frequencies=own.frequencies).content(q, k, None)
    assert torch.equal(text_only[0], plain[0])


SCALED = [
    LinearScaling(factor=2.0),
    DynamicNTK(factor=2.0, original_length=6),
    YaRN(factor=4.0, original_length=32),
    Llama3Scaling(factor=8.0, original_length=64),
    LongRoPE(short_factors=[1.0] * 4, long_factors=[3.0] * 4, factor=4.0, original_length=6),
]


@pytest.mark.parametrize("frequencies", SCALED, ids=repr)
def test_scores_depend_on_distances_only(frequencies):
    """At a fixed length: all of a call's queries and keys turn alike."""
    rotary = hw.Rotary(8, pairs="neighbours", frequencies=frequencies)
    q, k = torch.randn(1, 1, 1, 8).double(), torch.randn(1, 1, 1, 8).double()
    scores = []
    for shift in (0, 5):
        end = torch.tensor([4 + shift, 20])
        turned = rotary.at(end, torch.tensor([1 + shift, 20])).content(
            q.expand(-1, -1, 2, -1), k.expand(-1, -1, 2, -1), None
        )
        scores.append((turned[0][:, :, 0] * turned[1][:, :, 0]).sum())
    accept(scores[0], scores[1].float(), scores[1])


@pytest.mark.parametrize("frequencies", SCALED, ids=repr)
def test_token_by_token_the_last_query_is_that_of_the_whole_text(frequencies):
    """Keys are cached before rotation, so that a longer text turns all of them again."""
    rotary = hw.Rotary(8, pairs="halves", frequencies=frequencies)
    layer = hw.MultiheadAttention(16, 2, batch_first=True, mask=hw.causal(), position=rotary)
    layer, x, cache = layer.double().eval(), torch.randn(1, 9, 16).double(), GrowingCache()
    with torch.no_grad():
        for n, token in enumerate(x.split(1, 1), 1):
            step, whole = layer(token, token, token, cache=cache)[0], layer(*[x[:, :n]] * 3)[0]
            accept(step[:, 0], whole[:, -1].float(), whole[:, -1])


def test_what_is_printed_can_be_written():
    rotary = hw.Rotary(8, pairs="halves", frequencies=SCALED[0], sections=[2, 1, 1])
    assert "frequencies=LinearScaling(base=10000.0, factor=2.0)" in repr(rotary)
    assert "sections=(2, 1, 1), interleaved=False" in repr(rotary)
    names = vars(import_module("headwise.positions"))
    for frequencies in SCALED:
        again = eval(repr(frequencies), dict(names))  # noqa: S307
        at = (each.at_length(7).per_pair(8, CPU) for each in (again, frequencies))
        assert torch.equal(*at)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LinearScaling(factor=0.5), BadValue, "LinearScaling: factor must be .* >= 1"),
        (lambda: LinearScaling(factor="2"), BadValue, "factor must be a finite .*, got '2'"),
        (lambda: LinearScaling(base=1.0, factor=2.0), BadValue, "LinearScaling: base must be"),
        (lambda: DynamicNTK(factor=2.0, original_length=0), BadValue, "original_length must be >="),
        (lambda: YaRN(factor=2.0, original_length=8, beta_fast=0), BadValue, "beta_fast must be a"),
        (lambda: YaRN(factor=2.0, original_length=8.5), BadType, "original_length must be an int"),
        (lambda: Llama3Scaling(factor=2.0, original_length=8, low_frequency=4.0), BadValue,
         "Llama3Scaling: low_frequency must be below high_frequency, got 4.0 and 4.0"),
        (lambda: LongRoPE(short_factors=[0.0], long_factors=[1.0], factor=2.0, original_length=8),
         BadValue, "short_factors must be a finite number > 0, got 0.0"),
        (lambda: frequencies_from({"rope_type": "new"}, 8), BadValue, "rope_type: unknown 'new'"),
        (lambda: hw.Rotary(8, pairs="halves", sections=[1, 2]), BadValue,
         r"the sum of sections must be rotary_dim / 2 = 4, got \[1, 2\]"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(monkeypatch, make, error, message):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(error, match=message) as caught:
        make()
    assert caught.value.text.zh != caught.value.text.en


def test_longrope_wants_a_factor_for_each_pair():
    rope = LongRoPE(short_factors=[1.0], long_factors=[1.0, 2.0], factor=2.0, original_length=8)
    with pytest.raises(BadValue, match="short_factors must contain one factor for each of 2 pairs"):
        rope.per_pair(4, CPU)


def test_places_on_axes_are_checked():
    rotary, q = hw.Rotary(8, pairs="halves", sections=[2, 2]), torch.randn(1, 1, 3, 8)
    with pytest.raises(BadValue, match=r"of shape \(2, 3\) or \(2, 1, 3\), got \(3, 3\)"):
        rotary.at(torch.ones(3, 3), torch.ones(3, 3)).content(q, q, None)

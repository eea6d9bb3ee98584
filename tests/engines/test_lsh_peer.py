"""LSH attention compared with transformers' Reformer under the same rotations.

The tests use one round without padding, in which both have the same definition. In several rounds,
the first chunk of the Reformer in a round attends to the last chunk of the previous round, and a
pair that meets twice counts twice. With padding, its first chunk attends to the padding. In
headwise, a pair counts once, as in the paper, and padding forms no chunk.
"""

import pytest
import torch

import headwise as hw
from headwise.call import Call
from headwise.engines import eager, lsh, sdpa
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept

HEADS, DIM, CHUNK, BUCKETS, LENGTH, BATCH, SEED = 3, 7, 4, 6, 44, 2, 5


@pytest.fixture(params=[True, False], ids=["causal", "both ways"])
def peer(request, monkeypatch):
    """Its layer with tiny random weights and our rotations; whether it is causal; the input."""
    modeling = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    from transformers import ReformerConfig

    torch.manual_seed(1)
    config = ReformerConfig(
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        attention_head_size=DIM,
        lsh_attn_chunk_length=CHUNK,
        num_hashes=1,
        num_buckets=BUCKETS,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=request.param,
        attn_layers=["lsh"],
        axial_pos_embds=False,
    )
    layer, x = modeling.LSHSelfAttention(config).eval(), torch.randn(BATCH, LENGTH, HEADS * DIM)
    generator = torch.Generator().manual_seed(SEED * 1_000_003)
    ours = torch.randn(HEADS, BUCKETS // 2, DIM, generator=generator)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: ours.mT[:, :, None])
    output, _, buckets = layer(x)
    monkeypatch.undo()
    return layer, x, output, buckets, request.param


def call(layer, x, causal: bool) -> Call:
    """The same attention here: shared QK, the keys normalised, the own key a last resort."""
    split = (BATCH, LENGTH, HEADS, DIM)
    q = layer.query_key(x).view(split).transpose(1, 2)
    k = layer._len_norm(q)  # with its own epsilon
    v = layer.value(x).view(split).transpose(1, 2)
    mask = hw.lsh(1, chunk=CHUNK, buckets=BUCKETS, seed=SEED, own=False)
    return Call.of(q, k, v, mask=hw.causal() & mask if causal else mask)


def test_its_output_is_that_of_the_reference_under_the_mask(peer):
    layer, x, output, _, causal = peer
    ours = call(layer, x, causal)
    found = output.view(BATCH, LENGTH, HEADS, DIM).transpose(1, 2)
    accept(found, reference(ours, torch.float32).output, reference(ours).output)
    for engine in (eager, sdpa, lsh):
        result = engine.run(ours).output
        accept(result, reference(ours, torch.float32).output, reference(ours).output)


def test_its_sorted_buckets_are_our_places(peer):
    layer, x, _, buckets, causal = peer
    mask = call(layer, x, causal).mask
    places = (mask.right if causal else mask).keys[:, :, 0]
    order = buckets[:, :, 0].argsort(dim=-1, stable=True)
    assert torch.equal(places.long().argsort(dim=-1), order)
    assert len(buckets.unique()) == BUCKETS

"""The comparisons of time: the cases, the implementations of headwise, and the requirements."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headwise as hw
from benchmarks import peers
from benchmarks.work import (
    DIM,
    EMBED,
    FORWARD_AND_BACKWARD,
    HEADS,
    OURS,
    Asked,
    Case,
    Contender,
    Run,
    Work,
    dense_flops,
    window_flops,
)

LONGFORMER, LOCAL = "transformers Longformer", "local-attention"
FLEX, UNFOLDED = "FlexAttention, compiled", "padding + unfold + SDPA"
SDPA, TORCH = "SDPA", "nn.MultiheadAttention"
REFORMER, REFORMER_PYTORCH = "transformers Reformer", "reformer-pytorch"
DENSE_BIAS = "SDPA with the bias in a float mask"

ROUNDS, CHUNK, REACH = 4, 64, 64


def ours(mask: hw.Mask | None = None, position: hw.Position | None = None) -> Contender:
    """Return `attend` with a mask and a position, on the engine that it selects."""

    def make(work: Work) -> Run:
        where = None if position is None else position.to(work.q.dtype)
        learned = () if where is None else tuple(where.parameters())
        return lambda: work.done(
            hw.attend(work.q, work.k, work.v, mask=mask, position=where), learned
        )

    return make


torch.manual_seed(1)
SHAW, TRANSFORMER_XL = hw.Shaw(REACH, DIM), hw.TransformerXL(HEADS, DIM)


def table(dtype: torch.dtype) -> Tensor:
    """Return Shaw's vectors in a dtype."""
    return SHAW.table.to(dtype)


def terms(length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, v and r of Transformer-XL; r begins with the distance 1 - length."""
    position = TRANSFORMER_XL.to(dtype)
    differences = torch.arange(1 - length, length)
    return position.u, position.v, position.relative(differences, position.u, 1.0).vectors


def tokens(length: int) -> Tensor:
    """Return the sorted indices of 64 random global tokens."""
    drawn = torch.Generator().manual_seed(2)
    return torch.randperm(length, generator=drawn)[:64].sort().values


def with_globals(length: int) -> hw.Mask:
    """Return the mask of a window of 256 keys on both sides and 64 global tokens."""
    return hw.window(256, 256) | hw.global_tokens(tokens(length).tolist())


def ours_with_globals(work: Work) -> Run:
    """Prepare `attend` with the mask of `with_globals`."""
    return ours(with_globals(work.q.shape[2]))(work)


def ours_hashed(work: Work) -> Run:
    """Prepare `attend` with the shared queries and keys of the Reformer: k is q, normalised."""
    mask = hw.lsh(ROUNDS, chunk=CHUNK, seed=0, own=False)
    k = F.normalize(work.q, dim=-1)
    return lambda: [hw.attend(work.q, k, work.v, mask=mask)]


def module(kind: str) -> Contender:
    """Return a module of the given kind; its input (1, L, E) has the values of q."""

    def make(work: Work) -> Run:
        torch.manual_seed(1)
        theirs = nn.MultiheadAttention(EMBED, HEADS, batch_first=True).to(work.q.dtype).eval()
        layer = hw.convert(theirs).model if kind.startswith("ours") else theirs
        x = work.q.transpose(1, 2).flatten(2)
        if kind == "ours, statistics":
            return lambda: statistics(layer, x)
        weights = kind == "theirs, weights"
        return lambda: [layer(x, x, x, need_weights=weights, average_attn_weights=False)[0]]

    return make


def statistics(layer: hw.MultiheadAttention, x: Tensor) -> list[Tensor]:
    """Compute the output, and the entropy and column sums of every head; return the output."""
    result = layer.attend(x, x, x, need=("entropy", "received"))
    return [result.output]


def projected(length: int) -> float:
    """Return the forward FLOPs of attention and of its four projections."""
    return dense_flops(length) + 8.0 * EMBED * EMBED * length


def fixed(mask: hw.Mask, position: hw.Position | None = None) -> Callable[[int], tuple]:
    """Return a function that gives the same mask and position for every length."""
    return lambda _: (mask, position)


WINDOW = hw.window(256, 256)
PAIRS = window_flops(256, 256)

CASES = (
    Case(
        "window(256, 256), forward",
        Asked(4, {LONGFORMER: 8.0, LOCAL: 4.5, FLEX: 1.9}, 0.55),
        16384,
        PAIRS,
        {
            OURS: ours(WINDOW),
            LONGFORMER: lambda work: peers.longformer(512)(work),
            LOCAL: lambda work: peers.local_attention(128, causal=False)(work),
            FLEX: lambda work: peers.flex(256, 256)(work),
        },
        fixed(WINDOW),
        (LONGFORMER, LOCAL, FLEX),
    ),
    Case(
        "causal() & window(511, 0), forward",
        Asked(4, {LOCAL: 5.5, FLEX: 1.5}),
        4096,
        window_flops(511, 0),
        {
            OURS: ours(hw.causal() & hw.window(511, 0)),
            LOCAL: lambda work: peers.local_attention(512, causal=True)(work),  # one more key
            FLEX: lambda work: peers.flex(511, 0)(work),
        },
        fixed(hw.causal() & hw.window(511, 0)),
        (FLEX,),
    ),
    Case(
        "window(256, 256), forward + backward",
        Asked(5, {LONGFORMER: 7.0, LOCAL: 2.4, UNFOLDED: 1.3}, 0.45),
        4096,
        lambda length: FORWARD_AND_BACKWARD * PAIRS(length),
        {
            OURS: ours(WINDOW),
            LONGFORMER: lambda work: peers.longformer(512)(work),
            LOCAL: lambda work: peers.local_attention(128, causal=False)(work),
            UNFOLDED: peers.unfolded(256, 256),
        },
        fixed(WINDOW),
        (LONGFORMER, LOCAL, UNFOLDED),
        backward=True,
    ),
    Case(
        "window(256, 256) and 64 global tokens, forward",
        Asked(6, {LONGFORMER: 6.0}),
        16384,
        lambda length: PAIRS(length) + 2 * 4.0 * HEADS * DIM * 64 * length,
        {OURS: ours_with_globals, LONGFORMER: lambda work: peers.longformer(512, tokens)(work)},
        lambda length: (with_globals(length), None),
        (LONGFORMER,),
    ),
    Case(
        "lsh, 4 rounds, chunks of 64, forward",
        Asked(7, {REFORMER: 2.5, REFORMER_PYTORCH: 2.5}),
        16384,
        lambda length: 4.0 * HEADS * DIM * length * 2 * CHUNK * ROUNDS,
        {
            OURS: ours_hashed,
            REFORMER: lambda work: peers.reformer(ROUNDS, CHUNK)(work),
            REFORMER_PYTORCH: lambda work: peers.reformer_pytorch(ROUNDS, CHUNK)(work),
        },
    ),
    Case(
        "Shaw, 64 distances, forward",
        Asked(9, {DENSE_BIAS: 2.1, SDPA: 1 / 1.5}),
        4096,
        dense_flops,
        {OURS: ours(None, SHAW), DENSE_BIAS: peers.shaw_gathered(table, SHAW), SDPA: peers.sdpa()},
        fixed(hw.full(), SHAW),
        (DENSE_BIAS,),
    ),
    Case(
        "Transformer-XL, forward",
        Asked(9, {DENSE_BIAS: 3.3}),
        4096,
        dense_flops,
        {
            OURS: ours(None, TRANSFORMER_XL),
            DENSE_BIAS: peers.transformer_xl_shifted(terms, TRANSFORMER_XL),
            SDPA: peers.sdpa(),
        },
        fixed(hw.full(), TRANSFORMER_XL),
        (DENSE_BIAS,),
    ),
    Case(
        "full(), forward",
        Asked(10, {SDPA: 0.95}),
        4096,
        dense_flops,
        {OURS: ours(), SDPA: peers.sdpa()},
        fixed(hw.full()),
        (SDPA,),
    ),
    Case(
        "full(), forward + backward",
        Asked(10, {SDPA: 0.95}),
        4096,
        lambda length: FORWARD_AND_BACKWARD * dense_flops(length),
        {OURS: ours(), SDPA: peers.sdpa()},
        fixed(hw.full()),
        (SDPA,),
        backward=True,
    ),
    Case(
        "causal(), forward",
        Asked(10, {SDPA: 0.95}),
        4096,
        lambda length: dense_flops(length) / 2,
        {OURS: ours(hw.causal()), SDPA: peers.sdpa(is_causal=True)},
        fixed(hw.causal()),
        (SDPA,),
    ),
    Case(
        "MultiheadAttention without weights, forward",
        Asked(10, {TORCH: 1.0}),
        4096,
        projected,
        {OURS: module("ours"), TORCH: module("theirs")},
    ),
    Case(
        "MultiheadAttention with entropy and column sums, forward",
        Asked(10, {TORCH: 1.6}),
        4096,
        projected,
        {OURS: module("ours, statistics"), TORCH: module("theirs, weights")},
    ),
)

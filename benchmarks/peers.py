"""The other implementations, each adapted to take q, k and v (1, H, L, D)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.work import DIM, EMBED, HEADS, Contender, Run, Work


def sdpa(**options: Any) -> Contender:
    """Return PyTorch's `scaled_dot_product_attention`."""
    return lambda work: (
        lambda: work.done(F.scaled_dot_product_attention(work.q, work.k, work.v, **options))
    )


def unfolded(left: int, right: int) -> Contender:
    """Return a window as users write it: keys padded and unfolded into overlapping blocks, SDPA."""
    block = 128

    def make(work: Work) -> Run:
        length = work.q.shape[2]
        width, blocks = block + left + right, -(-length // block)
        row, column = torch.arange(block)[:, None], torch.arange(width)
        near = (column >= row) & (column <= row + left + right)
        key = torch.arange(blocks)[:, None, None] * block + column - left
        mask = near & (key >= 0) & (key < length)  # (blocks, block, width)

        def run() -> list[Tensor]:
            more = blocks * block - length
            q = F.pad(work.q[0], (0, 0, 0, more)).unflatten(1, (blocks, block))
            k, v = (
                F.pad(t[0], (0, 0, left, right + more)).unfold(1, width, block).mT
                for t in (work.k, work.v)
            )
            output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return work.done(output.flatten(1, 2)[None, :, :length])

        return run

    return make


def flex(left: int, right: int) -> Contender:
    """Return compiled FlexAttention; its block mask is built in advance, without (L, L)."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    compiled = torch.compile(flex_attention)
    side = 128

    def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        del b, h
        return (q - k <= left) & (k - q <= right)

    def make(work: Work) -> Run:
        count = work.q.shape[2] // side
        row, column = torch.arange(count)[:, None], torch.arange(count)
        least, most = (row - column - 1) * side + 1, (row - column + 1) * side - 1  # of q - k
        any_seen = (least <= left) & (most >= -right)
        all_seen = (most <= left) & (least >= -right)

        def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
            order = chosen.int().sort(stable=True, dim=-1, descending=True).indices.int()
            return chosen.sum(-1).int()[None, None], order[None, None]

        blocks = BlockMask.from_kv_blocks(
            *listed(any_seen & ~all_seen), *listed(all_seen), BLOCK_SIZE=side, mask_mod=allowed
        )
        return lambda: work.done(compiled(work.q, work.k, work.v, block_mask=blocks))

    return make


def local_attention(size: int, *, causal: bool) -> Contender:
    """Return the package `local-attention`.

    Queries in windows of ``size`` attend to 1 window behind if causal, else to 2 on each side.
    """
    from local_attention import LocalAttention

    layer = LocalAttention(
        window_size=size,
        look_backward=1 if causal else 2,
        look_forward=0 if causal else 2,
        causal=causal,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )
    return lambda work: lambda: work.done(layer(work.q, work.k, work.v))


class Given(nn.Module):
    """A projection that ignores its input and returns given values."""

    def __init__(self, rows: Callable[[], Tensor]) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        del x
        return self.rows().clone()


def longformer(window: int, tokens: Callable[[int], Tensor] | None = None) -> Contender:
    """Return transformers' LongformerSelfAttention; its projections return q, k and v."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=EMBED,
        num_attention_heads=HEADS,
        attention_window=[window],
        attention_probs_dropout_prob=0.0,
    )
    layer: Any = LongformerSelfAttention(config, 0).eval()

    def make(work: Work) -> Run:
        length = work.q.shape[2]
        chosen = None if tokens is None else tokens(length)

        def rows(t: Tensor) -> Tensor:
            return t[0].transpose(0, 1).reshape(length, 1, EMBED)

        layer.query, layer.key, layer.value = (
            Given(lambda t=t: rows(t)) for t in (work.q, work.k, work.v)
        )
        mask, is_global = torch.zeros(1, length), torch.zeros(1, length, dtype=torch.bool)
        mask, hidden = mask.to(work.q.dtype), torch.zeros(1, length, EMBED, dtype=work.q.dtype)
        if chosen is not None:
            mask[0, chosen], is_global[0, chosen] = 10000.0, True
            layer.query_global = Given(lambda: rows(work.q)[chosen])
            layer.key_global, layer.value_global = (
                Given(lambda t=t: rows(t)) for t in (work.k, work.v)
            )
        options = {
            "attention_mask": mask,
            "is_index_masked": torch.zeros(1, length, dtype=torch.bool),
            "is_index_global_attn": is_global,
            "is_global_attn": chosen is not None,
        }

        def run() -> list[Tensor]:
            output = layer(hidden, **options)[0]
            return work.done(output.view(1, length, HEADS, DIM).transpose(1, 2))

        return run

    return make


def reformer_pytorch(rounds: int, chunk: int) -> Contender:
    """Return `LSHAttention` of the package `reformer-pytorch`, in which q is also k."""
    from reformer_pytorch.reformer_pytorch import LSHAttention

    layer = LSHAttention(bucket_size=chunk, n_hashes=rounds, causal=False, dropout=0.0).eval()
    return lambda work: lambda: [layer(work.q[0], work.v[0])[0][None]]


def reformer(rounds: int, chunk: int) -> Contender:
    """Return transformers' LSHSelfAttention; it chooses its number of buckets."""
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    def make(work: Work) -> Run:
        length = work.q.shape[2]
        config = ReformerConfig(
            hidden_size=EMBED,
            num_attention_heads=HEADS,
            attention_head_size=DIM,
            lsh_attn_chunk_length=chunk,
            num_hashes=rounds,
            num_buckets=None,
            max_position_embeddings=length,
            lsh_num_chunks_before=1,
            lsh_num_chunks_after=0,
            is_decoder=False,
            lsh_attention_probs_dropout_prob=0.0,
            attn_layers=["lsh"],
            axial_pos_embds=False,
        )
        layer: Any = LSHSelfAttention(config).eval()
        layer.query_key, layer.value = (
            Given(lambda t=t: t.transpose(1, 2).reshape(1, length, EMBED)) for t in (work.q, work.v)
        )
        hidden = torch.zeros(1, length, EMBED)

        def run() -> list[Tensor]:
            output = layer(hidden, num_hashes=rounds)[0]
            return [output.view(1, length, HEADS, DIM).transpose(1, 2)]

        return run

    return make


def shaw_gathered(table: Callable[[torch.dtype], Tensor], owner: nn.Module) -> Contender:
    """Return SDPA with Shaw's bias, gathered from q · table, as a float mask (1, H, L, L)."""

    def make(work: Work) -> Run:
        length = work.q.shape[2]
        far = len(table(work.q.dtype)) // 2
        place = torch.arange(length)
        index = (place[None] - place[:, None]).clamp(-far, far) + far

        def run() -> list[Tensor]:
            products = work.q @ table(work.q.dtype).T / math.sqrt(DIM)
            bias = products.gather(-1, index.expand(1, HEADS, -1, -1))
            output = F.scaled_dot_product_attention(work.q, work.k, work.v, attn_mask=bias)
            return work.done(output, owner.parameters())

        return run

    return make


def transformer_xl_shifted(
    terms: Callable[[int, torch.dtype], tuple[Tensor, Tensor, Tensor]], owner: nn.Module
) -> Contender:
    """Return SDPA with the bias of Transformer-XL as a float mask (1, H, L, L).

    The bias is (q + v) · r for every distance, padded and reshaped (the "relative shift").

    Args:
        terms: returns u (H, D), v (H, D) and r (H, 2 L - 1, D) from the distance 1 - L.
        owner: the position encoding whose parameters get a gradient.
    """

    def make(work: Work) -> Run:
        length = work.q.shape[2]

        def run() -> list[Tensor]:
            u, v, r = terms(length, work.q.dtype)
            products = (work.q + v[:, None]) @ r.mT / math.sqrt(DIM)  # (1, H, L, 2 L - 1)
            padded = F.pad(products, (1, 0)).view(1, HEADS, 2 * length, length)
            bias = padded[:, :, 1:].reshape(1, HEADS, length, -1)[..., :length]
            q = work.q + u[:, None]
            output = F.scaled_dot_product_attention(q, work.k, work.v, attn_mask=bias)
            return work.done(output, owner.parameters())

        return run

    return make

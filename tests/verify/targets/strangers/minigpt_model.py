"""
A very small GPT, trained on the collected lyrics of my favourite bands.
Most of it follows the usual tutorials; the attention uses the fused kernel
when this version of torch has it.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class LyricsConfig:
    context: int = 64
    vocab: int = 97
    depth: int = 2
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.1
    bias: bool = True


class CausalSelfAttention(nn.Module):

    def __init__(self, config: LyricsConfig):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        # one matmul for all three
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.p = config.dropout
        self.flash = hasattr(F, "scaled_dot_product_attention")
        if not self.flash:
            print("no flash, falling back")
            tri = torch.tril(torch.ones(config.context, config.context))
            self.register_buffer("tri", tri.view(1, 1, config.context, config.context))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        if self.flash:
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=None,
                dropout_p=self.p if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            att = att.masked_fill(self.tri[:, :, :T, :T] == 0, float("-inf"))
            att = F.dropout(F.softmax(att, dim=-1), self.p, self.training)
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.n2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class LyricsGPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tok = nn.Embedding(config.vocab, config.n_embd)
        self.pos = nn.Embedding(config.context, config.n_embd)
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.depth)])
        self.norm = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab, bias=False)

    def forward(self, idx):
        t = torch.arange(idx.size(1), device=idx.device)
        return self.head(self.norm(self.blocks(self.tok(idx) + self.pos(t))))


if __name__ == "__main__":
    m = LyricsGPT(LyricsConfig())
    print(m(torch.randint(0, 97, (2, 10))).shape)

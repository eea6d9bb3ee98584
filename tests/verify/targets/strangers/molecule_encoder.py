"""Encoder over SMILES tokens, used for the solubility regressions."""
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class EncoderConfig:
    hidden_size: int = 48
    attn_heads: int = 3
    ffn_size: int = 96
    layers: int = 2
    vocab: int = 60
    attn_dropout: float = 0.0


class SmilesAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_heads = config.attn_heads
        self.head_size = config.hidden_size // config.attn_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attn_dropout)

    def transpose_for_scores(self, x):
        new_shape = x.size()[:-1] + (self.num_heads, self.head_size)
        return x.view(new_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask is additive, (B, 1, 1, T): zeros where a token is, a very
        negative number where there is none."""
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))

        attention_scores = torch.matmul(q, k.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.num_heads)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask

        probs = self.dropout(attention_scores.softmax(dim=-1))
        ctx = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        ctx = ctx.view(ctx.size()[:-2] + (-1,))
        return self.dense(ctx)


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.att = SmilesAttention(config)
        self.n1 = nn.LayerNorm(config.hidden_size)
        self.n2 = nn.LayerNorm(config.hidden_size)
        self.ff = nn.Sequential(nn.Linear(config.hidden_size, config.ffn_size), nn.ReLU(),
                                nn.Linear(config.ffn_size, config.hidden_size))

    def forward(self, x, mask=None):
        x = self.n1(x + self.att(x, mask))
        return self.n2(x + self.ff(x))


class SmilesEncoder(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.emb = nn.Embedding(config.vocab, config.hidden_size, padding_idx=0)
        self.layers = nn.ModuleList([EncoderLayer(config) for _ in range(config.layers)])

    def forward(self, ids):
        mask = (ids == 0)[:, None, None, :].float() * torch.finfo(torch.float32).min
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return x

"""Modules that ignore their mask or apply it wrongly, and a correct module of each kind."""

import math

import torch
from torch import nn

MISTAKES = {
    "attention": (),
    "added": (),
    "Two": (),
    "Lengths": (),
    "transposed": ("mask_transposed",),
    "weak": ("mask_too_weak",),
    "ignored": ("mask_ignored",),
    "PaddingIgnored": ("mask_ignored",),
    "LengthsIgnored": ("mask_ignored",),
}


def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores if mask is None else scores.masked_fill(mask == 0, -1e9)).softmax(-1) @ v


def transposed(q, k, v, mask=None):
    return attention(q, k, v, None if mask is None else mask.transpose(-1, -2))


def weak(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores if mask is None else scores.masked_fill(mask == 0, -10.0)).softmax(-1) @ v


def ignored(q, k, v, attn_bias=None):
    return attention(q, k, v)


def added(q, k, v, attn_bias=None, is_causal=False):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores if attn_bias is None else scores + attn_bias).softmax(-1) @ v


def strange(q, k, v, attn_bias=None):
    if attn_bias is not None:
        raise TypeError("no tensor")
    return attention(q, k, v)


class Two(nn.Module):
    """As in PyTorch: True = blocked, in two arguments."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )

    def padded(self, scores, key_padding_mask):
        return scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)

    def forward(self, q, k, v, attn_mask=None, key_padding_mask=None):
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, x in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        if key_padding_mask is not None:
            scores = self.padded(scores, key_padding_mask)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class PaddingIgnored(Two):
    def padded(self, scores, key_padding_mask):
        return scores


class PaddingStrange(Two):
    def padded(self, scores, key_padding_mask):
        raise TypeError("no tensor")


class Lengths(Two):
    """As in Dive into Deep Learning: how many keys of each sample are real."""

    def forward(self, queries, keys, values, valid_lens=None):
        hidden = None
        if valid_lens is not None:
            hidden = torch.arange(keys.shape[1])[None] >= valid_lens[:, None]
        return super().forward(queries, keys, values, key_padding_mask=hidden)


class LengthsIgnored(Two):
    def forward(self, queries, keys, values, valid_lens=None):
        return super().forward(queries, keys, values)

import torch.nn.functional as F
from torch import nn
import torch


class DecoderCrossAttention(nn.Module):
    """Target attends to source. Tensors are (batch, len, emb)."""

    def __init__(self, emb, heads, p=0.1):
        super().__init__()
        self.heads, self.p = heads, p
        self.dk = emb // heads
        self.tgt = nn.Linear(emb, emb)
        self.src = nn.Linear(emb, emb * 2)
        self.last = nn.Linear(emb, emb)

    def forward(self, x, memory, key_padding_mask=None):
        # key_padding_mask: (batch, src_len), True for <pad>
        b, t, e = x.shape
        s = memory.shape[1]
        q = self.tgt(x).view(b, t, self.heads, self.dk)
        k, v = self.src(memory).view(b, s, 2, self.heads, self.dk).unbind(2)

        logits = torch.einsum("bthd,bshd->bhts", q, k) / self.dk ** 0.5
        if key_padding_mask is not None:
            logits = logits.masked_fill(key_padding_mask.view(b, 1, 1, s), -1e9)
        w = F.dropout(logits.softmax(-1), self.p)
        y = torch.einsum("bhts,bshd->bthd", w, v).reshape(b, t, e)
        return self.last(y)

"""Image captioning decoder: words look at image regions."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class RegionAttention(nn.Module):
    def __init__(self, n_feat: int, n_heads: int, region_dim: int = None):
        super().__init__()
        region_dim = region_dim or n_feat
        assert n_feat % n_heads == 0
        self.n_heads = n_heads
        self.d = n_feat // n_heads
        self.lin_q = nn.Linear(n_feat, n_feat)
        self.lin_k = nn.Linear(region_dim, n_feat)
        self.lin_v = nn.Linear(region_dim, n_feat)
        self.lin_out = nn.Linear(n_feat, n_feat)

    def forward(self, words, regions, mem_mask=None):
        """
        :param words: (B, T, n_feat)
        :param regions: (B, R, region_dim)
        :param mem_mask: (B, R); 1 where there is a region, 0 where the list was padded
        :return: (B, T, n_feat)
        """
        B, T, E = words.size()
        R = regions.size(1)
        q = self.lin_q(words).view(B, T, self.n_heads, self.d).permute(0, 2, 1, 3)
        k = self.lin_k(regions).view(B, R, self.n_heads, self.d).permute(0, 2, 3, 1)
        v = self.lin_v(regions).view(B, R, self.n_heads, self.d).permute(0, 2, 1, 3)
        e = torch.matmul(q, k).div_(self.d ** 0.5)
        if mem_mask is not None:
            m = mem_mask.view(B, 1, 1, R)
            e.masked_fill(m == 0, float("-inf"))
        a = F.softmax(e, dim=-1)
        y = torch.matmul(a, v).permute(0, 2, 1, 3).reshape(B, T, E)
        return self.lin_out(y)


class CaptionDecoderLayer(nn.Module):
    def __init__(self, n_feat, n_heads, region_dim):
        super().__init__()
        self.gru = nn.GRU(n_feat, n_feat, batch_first=True)
        self.look = RegionAttention(n_feat, n_heads, region_dim)
        self.norm = nn.LayerNorm(n_feat)

    def forward(self, words, regions, mem_mask=None):
        h, _ = self.gru(words)
        return self.norm(h + self.look(h, regions, mem_mask))

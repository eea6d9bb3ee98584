# -*- coding: utf-8 -*-
import torch
import torch.nn as nn


class ToySelfAttention(nn.Module):
    """多头自注意力（不分批）：输入 (L, E)，输出 (L, E)。"""

    def __init__(self, n_dim, heads=2):
        super().__init__()
        self.n_dim = n_dim
        self.heads = heads
        self.hd = n_dim // heads
        self.Wq = nn.Parameter(torch.empty(n_dim, n_dim))
        self.Wk = nn.Parameter(torch.empty(n_dim, n_dim))
        self.Wv = nn.Parameter(torch.empty(n_dim, n_dim))
        self.Wo = nn.Parameter(torch.empty(n_dim, n_dim))
        for w in self.parameters():
            nn.init.xavier_normal_(w)

    def forward(self, x):
        L = x.shape[0]
        # 线性变换后分头 -> (heads, L, hd)
        q = torch.matmul(x, self.Wq).view(L, self.heads, self.hd).transpose(0, 1)
        k = torch.matmul(x, self.Wk).view(L, self.heads, self.hd).transpose(0, 1)
        v = torch.matmul(x, self.Wv).view(L, self.heads, self.hd).transpose(0, 1)
        # 注意力分数
        score = torch.matmul(k, q.transpose(1, 2)) / self.hd ** 0.5
        alpha = torch.softmax(score, -1)
        # 合并各头
        y = torch.matmul(alpha, v).transpose(0, 1).reshape(L, self.n_dim)
        return y @ self.Wo

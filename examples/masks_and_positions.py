"""Combine masks, add a position encoding, return the weights, and show which engine runs.

组合掩码，加上位置编码，返回注意力权重，并查看所用的引擎。
"""

import torch

import headwise as hw

torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 4, 6, 8).unbind()  # (B, H, L, D)

mask = hw.causal() & hw.window(3, 0) & hw.padding([6, 4])
print(mask)
print((hw.causal() & hw.window(3, 0)).draw(6))

result = hw.attend(q, k, v, mask=mask, position=hw.ALiBi(4), need=["weights"])
assert result.weights is not None
print("row sums of the second sample:", result.weights[1, 0].sum(-1).tolist())
print(hw.plan(q, k, v, mask=mask, position=hw.ALiBi(4), need=["weights"]))

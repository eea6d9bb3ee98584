"""Train PyTorch's encoder layer with the attention of headwise: the loss falls as with PyTorch's.

把 PyTorch 编码器层中的注意力换成 headwise 的注意力并训练：损失与原来一样下降。
"""

import torch
from torch import nn

import headwise as hw


def encoder(swap: bool) -> nn.TransformerEncoderLayer:
    """Return an encoder layer with PyTorch's attention, or with headwise's and the same weights."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, dropout=0.0, batch_first=True)
    if swap:
        ours = hw.MultiheadAttention(16, 4, batch_first=True)
        ours.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = ours
    return layer


def train(layer: nn.Module, steps: int = 20) -> list[float]:
    """Train the layer to output the mean of the sequence at every position; return the losses."""
    torch.manual_seed(1)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    dtype, losses = next(layer.parameters()).dtype, []
    for _ in range(steps):
        x = torch.randn(8, 7, 16).to(dtype)
        loss = (layer(x) - x.mean(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    theirs, ours = train(encoder(swap=False)), train(encoder(swap=True))
    print(f"torch    {theirs[0]:.4f} -> {theirs[-1]:.4f}")
    print(f"headwise {ours[0]:.4f} -> {ours[-1]:.4f}")

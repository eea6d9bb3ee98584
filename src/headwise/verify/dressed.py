"""Modules of other projects that are called in a way which no trial would find.

Each is dressed as a module of one tensor; what it attends to by itself is then found like
everybody else's.
"""

import torch
from torch import Tensor, nn

LONGFORMER = ("transformers.models.longformer.modeling_longformer", "LongformerSelfAttention")


class Longformer(nn.Module):
    """transformers' Longformer on a sequence of any length, without global tokens.

    The model around it pads the sequence to a multiple of its window and says which tokens are
    padding; here this stands beside the attention itself.
    """

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.num_heads = attention.num_heads

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, L, E) to the same."""
        batch, length, _ = hidden_states.shape
        window = 2 * int(self.attention.one_sided_attn_window_size)  # type: ignore[arg-type]
        more = max(window, -(-length // window) * window) - length
        padded = nn.functional.pad(hidden_states, (0, 0, 0, more))
        hidden = torch.arange(length + more, device=padded.device).expand(batch, -1) >= length
        output: Tensor = self.attention(
            padded,
            attention_mask=padded.new_zeros(hidden.shape).masked_fill(hidden, -10000.0),
            is_index_masked=hidden,
            is_index_global_attn=torch.zeros_like(hidden),
            is_global_attn=False,
        )[0]
        return output[:, :length]


def dressed(module: nn.Module) -> nn.Module:
    """The module, or where it is one of those known here a module around it that can be called."""
    kind = type(module)
    return Longformer(module) if (kind.__module__, kind.__name__) == LONGFORMER else module

import torch
from torch import nn, Tensor
from typing import Optional


class QuestionPassageAttention(nn.Module):
    r"""Question tokens read a retrieved passage.

    Shapes:
        - question: :math:`(N, L, H)`
        - passage: :math:`(N, S, H)`
        - passage_pad: :math:`(N, S)`, bool, ``True`` at padding
        - output: :math:`(N, L, H)`
    """

    def __init__(self, hidden: int, nhead: int, bias: bool = True, device=None) -> None:
        super().__init__()
        if hidden % nhead != 0:
            raise ValueError("hidden % nhead != 0")
        self.nhead = nhead
        kw = dict(bias=bias, device=device)
        self.q_proj = nn.Linear(hidden, hidden, **kw)
        self.k_proj = nn.Linear(hidden, hidden, **kw)
        self.v_proj = nn.Linear(hidden, hidden, **kw)
        self.o_proj = nn.Linear(hidden, hidden, **kw)

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.nhead, -1)).transpose(1, 2)

    def forward(self, question: Tensor, passage: Tensor, passage_pad: Optional[Tensor] = None) -> Tensor:
        q = self._heads(self.q_proj(question))
        k = self._heads(self.k_proj(passage))
        v = self._heads(self.k_proj(passage))
        s = (q @ k.mT) * (q.size(-1) ** -0.5)
        if passage_pad is not None:
            s = s.masked_fill(passage_pad[:, None, None, :], torch.finfo(s.dtype).min)
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))

"""A transformer with the attention of headwise has the same training losses."""

import copy

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.verify.oracle.tolerance import accept

STEPS, B, L, E, H, SYMBOLS = 200, 8, 7, 12, 2, 5


class Reverser(nn.Module):
    """Learns to write a sequence backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, E)
        self.places = nn.Embedding(L, E)
        self.transformer = nn.Transformer(E, H, 1, 1, 16, dropout=0.0, batch_first=True)
        self.read = nn.Linear(E, SYMBOLS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        ahead = torch.ones(L, L, dtype=torch.bool).triu(1)
        place = self.places.weight
        found = self.transformer(
            self.symbols(source) + place, self.symbols(target) + place, tgt_mask=ahead
        )
        return self.read(found)


def losses(model: nn.Module) -> Tensor:
    """The loss of every step, (STEPS,)."""
    drawn = torch.Generator().manual_seed(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    found = []
    for _ in range(STEPS):
        source = torch.randint(SYMBOLS, (B, L), generator=drawn)
        wanted = source.flip(1)
        before = torch.cat((torch.zeros(B, 1, dtype=torch.long), wanted[:, :-1]), 1)
        loss = nn.functional.cross_entropy(model(source, before).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


@pytest.mark.slow
def test_the_losses_are_those_of_torchs_attention() -> None:
    theirs = Reverser()
    ours, exact = copy.deepcopy(theirs), copy.deepcopy(theirs).double()
    assert len(hw.convert(ours).changed) == 3
    curve, plain, right = losses(ours), losses(theirs), losses(exact)
    assert 10 * right[-20:].mean() < right[:20].mean()  # it was learned
    accept(curve, plain, right)

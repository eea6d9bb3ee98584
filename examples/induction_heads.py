"""Take the induction heads out of a model and see its loss on repeated random tokens rise.

    python examples/induction_heads.py            a model of two layers, built by hand
    python examples/induction_heads.py smollm2    a trained one (headwise models get smollm2)

The first repetition shows which heads look for what came after an earlier occurrence of a token
(Olsson et al. 2022); other texts then show what the model loses without them.
"""

import sys
from functools import partial

import torch
from torch import Tensor, nn

import headwise as hw
from headwise.heads.ablation import against_random, next_token_loss, repeated

TOKENS, PERIOD, TIMES = 24, 12, 3
LENGTH = PERIOD * TIMES
SHARP = 40.0
"""How large a score of a match is; any other score is 0."""


class ByHand(nn.Module):
    """Two layers of four heads, of which one in each was given weights: together they induce.

    A token's row holds four one-hot blocks: itself, its position, the token before it, and what is
    predicted. L0H0 attends to the position before and copies its token into the third block. L1H0
    attends to where its own token was the token before, and copies that token into the fourth.
    """

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        size = LENGTH
        width = 3 * TOKENS + LENGTH
        self.layers = nn.ModuleList(
            hw.MultiheadAttention(
                width, heads, bias=False, head_dim=size, batch_first=True, mask=hw.causal()
            )
            for _ in range(2)
        )
        token, place = slice(0, TOKENS), slice(TOKENS, TOKENS + LENGTH)
        before, after = slice(width - 2 * TOKENS, width - TOKENS), slice(width - TOKENS, width)
        shift = torch.eye(LENGTH).roll(1, 1)  # row i of q asks for position i: made by i + 1
        shift[-1, 0] = 0
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.02)
            self._give(self.layers[0], (place, shift), (place, token), before)
            self._give(self.layers[1], (token, torch.eye(TOKENS)), (before, token), after)

    @staticmethod
    def _give(
        layer: nn.Module, asks: tuple[slice, Tensor], looks: tuple[slice, slice], writes: slice
    ) -> None:
        """Weights for head 0: what it asks with, looks at, reads and writes."""
        (source, how), (at, reads) = asks, looks
        size = layer.head_dim
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            projection.weight[:size] = 0
        layer.out_proj.weight[:, :size] = 0
        rows = how.shape[0]
        layer.q_proj.weight[:rows, source] = how * SHARP * size**0.5
        layer.k_proj.weight[:rows, at] = torch.eye(rows)
        layer.v_proj.weight[:TOKENS, reads] = torch.eye(TOKENS)
        layer.out_proj.weight[writes, :TOKENS] = torch.eye(TOKENS) * 8

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, L, TOKENS) of ids (B, L)."""
        token = nn.functional.one_hot(ids, TOKENS).float()
        place = torch.eye(LENGTH)[: ids.shape[1]].expand(len(ids), -1, -1)
        x = torch.cat((token, place, torch.zeros(*ids.shape, 2 * TOKENS)), -1)
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x[..., -TOKENS:]


def trained(name: str) -> tuple[nn.Module, Tensor, list[object]]:
    """A trained model, the ids to draw from, and its induction heads: scores above 1/2."""
    from headwise.heads.capture import capture
    from headwise.heads.metrics.repetition import INDUCTION
    from headwise.heads.models.load import load

    loaded = load(name)
    special = torch.tensor(sorted(loaded.tokenizer.all_special_ids))
    every = torch.arange(loaded.config.vocab_size)
    ids = every[~torch.isin(every, special)]
    with capture(loaded.model) as seen, torch.no_grad():
        loaded.model(input_ids=repeated(ids.tolist(), texts=4, seed=1000))
    scores = {head: seen.statistics.value(INDUCTION, head) for head in seen.statistics.heads()}
    return loaded.model, ids, [head for head, score in scores.items() if score > 0.5]


def main(name: str = "") -> None:
    """Measure and print."""
    if name:
        model, ids, heads = trained(name)
        period, times, texts = 25, 4, 4
    else:
        model, ids, heads = ByHand().eval(), torch.arange(TOKENS), ["L1H0"]
        period, times, texts = PERIOD, TIMES, 8

    def batch(seed: int) -> dict[str, Tensor] | Tensor:
        drawn = repeated(ids.tolist(), texts=texts, period=period, times=times, seed=seed)
        return {"input_ids": drawn} if name else drawn

    loss = partial(next_token_loss, start=period)  # what came before
    found = against_random(model, batch, heads, loss)
    print(f"heads taken out: {', '.join(map(str, found.heads))}")
    for words, each in (
        ("the loss rises by", found.theirs),
        ("without as many others by", found.random),
        ("the difference is", found.more),
    ):
        print(f"{words} {each.mean:.3f} nats, 95 % interval {each.low:.3f} … {each.high:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

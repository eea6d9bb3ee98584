"""Ablate the induction heads of a model and measure the rise of its loss on repeated tokens.

    python examples/induction_heads.py            a model of two layers with constructed weights
    python examples/induction_heads.py smollm2    a trained model (headwise models get smollm2)

An induction head attends to the tokens after earlier occurrences of a token (Olsson et al. 2022).
The heads of a trained model are selected on one set of sequences; the loss is measured on another.
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
"""The score of a matching pair; all other scores are about 0."""


class ByHand(nn.Module):
    """Two layers of four heads; one head of each layer has constructed weights for induction.

    The hidden state of a token has four one-hot blocks: the token, its position, the previous
    token, and the predicted token. L0H0 attends to the previous position and copies the token there
    into the third block. L1H0 attends to the tokens whose third block is the query's token, and
    copies these tokens into the fourth block.
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
        shift = torch.eye(LENGTH).roll(1, 1)  # q of position i + 1 matches position i
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
        """Set the weights of head 0: the blocks for its query, key, value and output."""
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
        """Return the logits (B, L, TOKENS) of token ids (B, L)."""
        token = nn.functional.one_hot(ids, TOKENS).float()
        place = torch.eye(LENGTH)[: ids.shape[1]].expand(len(ids), -1, -1)
        x = torch.cat((token, place, torch.zeros(*ids.shape, 2 * TOKENS)), -1)
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x[..., -TOKENS:]


def trained(name: str) -> tuple[nn.Module, Tensor, list[object]]:
    """Return a trained model, the ids of its tokens, and its heads with a score above 1/2."""
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
    """Ablate the heads and print the rises of the loss."""
    if name:
        model, ids, heads = trained(name)
        period, times, texts = 25, 4, 4
    else:
        model, ids, heads = ByHand().eval(), torch.arange(TOKENS), ["L1H0"]
        period, times, texts = PERIOD, TIMES, 8

    def batch(seed: int) -> dict[str, Tensor] | Tensor:
        drawn = repeated(ids.tolist(), texts=texts, period=period, times=times, seed=seed)
        return {"input_ids": drawn} if name else drawn

    loss = partial(next_token_loss, start=period)  # index of the first predicted token
    found = against_random(model, batch, heads, loss)
    print(f"ablated heads: {', '.join(map(str, found.heads))}")
    for words, each in (
        ("without these heads, the loss rises by", found.theirs),
        ("without the same number of random heads, it rises by", found.random),
        ("the difference is", found.more),
    ):
        print(f"{words} {each.mean:.3f} nats, 95 % interval {each.low:.3f} … {each.high:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

"""The cases that every engine must pass; sizes are distinct primes, inputs are seeded."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise import masks
from headwise.call import Call
from headwise.masks import Mask
from headwise.positions import ALiBi, Position, Rotary, Shaw, T5Bias, TransformerXL

Draw = Callable[..., Tensor]  # draws normal float64 numbers: ``draw(5, 7)``


@dataclass(frozen=True)
class Case:
    """An attention call with a mask, a position and sizes, which are primes or multiples of G."""

    name: str
    mask: Callable[["Case", Draw], Mask]
    batch: int = 2
    heads: int = 3
    groups: int = 3
    queries: int = 5
    keys: int = 7
    dim: int = 11
    value_dim: int = 13
    scale: float | None = None
    position: Callable[["Case", Draw], Position] | None = None

    def call(
        self, dtype: torch.dtype, *, seed: int = 0, need: Collection[str] = (), grad: bool = False
    ) -> Call:
        """Return the call in a dtype; the numbers of all dtypes agree up to rounding.

        `need` is as in `headwise.attend`; if `grad` is true, q, k and v require gradients.
        """
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        q = draw(self.batch, self.heads, self.queries, self.dim)
        k = draw(self.batch, self.groups, self.keys, self.dim)
        v = draw(self.batch, self.groups, self.keys, self.value_dim)
        q, k, v = (x.to(dtype).requires_grad_(grad) for x in (q, k, v))
        mask = self.mask(self, draw)
        position = None if self.position is None else _seeded(self.position(self, draw), draw)
        return Call.of(q, k, v, mask=mask, position=position, scale=self.scale, need=need)


def _seeded(position: Position, draw: Draw) -> Position:
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.copy_(draw(*parameter.shape))
    return position


def _booleans(case: Case, draw: Draw) -> Mask:
    """Allow about three quarters of the pairs; query 1 of every head is fully masked."""
    allowed = draw(case.batch, case.heads, case.queries, case.keys) > -0.7
    allowed[:, :, 1] = False
    return masks.from_tensor(allowed)


def _floats(case: Case, draw: Draw) -> Mask:
    bias = draw(case.heads, case.queries, case.keys)
    return masks.from_tensor(bias.float().masked_fill(bias < -1.0, -torch.inf), "h q k")


CASES: tuple[Case, ...] = (
    Case("full", lambda _c, _d: masks.full()),
    Case("one of everything", lambda _c, _d: masks.full(), 1, 1, 1, 1, 1, 1, 1),
    Case("another scale", lambda _c, _d: masks.full(), scale=0.7),
    Case("causal", lambda _c, _d: masks.causal(), queries=7),
    Case("causal, fewer queries", lambda _c, _d: masks.causal()),
    Case("causal, more queries: blind rows", lambda _c, _d: masks.causal(), queries=7, keys=5),
    Case("window", lambda _c, _d: masks.window(2, 1)),
    Case("causal window", lambda _c, _d: masks.causal() & masks.window(1, 0)),
    Case(
        "padding, one sample empty", lambda c, _d: masks.padding([c.keys - 2] * (c.batch - 1) + [0])
    ),
    Case("causal and padding", lambda _c, _d: masks.causal() & masks.padding([7, 3])),
    Case("opposite of a window", lambda _c, _d: ~masks.window(1, 1)),
    Case("booleans with blind rows", _booleans),
    Case("float bias", _floats),
    Case("float bias and causal", lambda c, d: _floats(c, d) & masks.causal()),
    Case("grouped heads", lambda _c, _d: masks.causal(), heads=6, groups=3),
    Case("one key/value head", lambda _c, _d: masks.full(), heads=3, groups=1),
    Case("grouped heads, booleans", _booleans, heads=6, groups=2),
    Case("appended key", lambda _c, _d: masks.appended(masks.causal(), 1)),
    Case("prefix", lambda _c, _d: masks.prefix([3, 5])),
    Case("documents", lambda _c, _d: masks.documents([4, 3]) & masks.causal()),
    Case(
        "a mask for each head",
        lambda _c, _d: masks.per_head([masks.causal(), masks.window(1, 1), masks.full()]),
    ),
    Case(
        "dilated window and global tokens",
        lambda _c, _d: masks.dilated(1, 1, step=2) | masks.global_tokens([0]),
    ),
    Case("strided", lambda _c, _d: masks.strided(3), queries=7),
    Case("block sparse", lambda _c, _d: masks.block_sparse(torch.eye(3).bool(), 3)),
    Case(
        "random blocks",
        lambda _c, _d: masks.random_blocks(2, 1, seed=0) & masks.causal(),
        queries=7,
    ),
    Case(
        "rotary",
        lambda _c, _d: masks.causal(),
        position=lambda c, _: Rotary(c.dim, pairs="halves", rotary_dim=c.dim // 2 * 2),
    ),
    Case("ALiBi", lambda _c, _d: masks.causal(), position=lambda c, _: ALiBi(c.heads)),
    Case("T5 bias", lambda _c, _d: masks.full(), position=lambda c, _: T5Bias(c.heads)),
    Case(
        "Shaw, keys and values",
        lambda _c, _d: masks.padding([7, 0]),
        position=lambda c, _: Shaw(2, c.dim, value_dim=c.value_dim),
    ),
    Case(
        "Transformer-XL",
        lambda _c, _d: masks.window(3, 1),
        position=lambda c, _: TransformerXL(c.heads, c.dim, embed_dim=17),
    ),
    Case("many keys", lambda _c, _d: masks.causal(), queries=67, keys=131, dim=17, value_dim=19),
)

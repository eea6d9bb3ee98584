"""Two caches of one's own: pages of memory as in vLLM, and keys and values in 8 bits.

两个自定义缓存：像 vLLM 那样按页分配内存，以及用 8 位存储键和值。
"""

import torch
from torch import Tensor

import headwise as hw
from headwise.nn import GrowingCache, KeyValues, KVCache


class PagedCache(KVCache):
    """Keys and values in pages of a fixed size from one pool, which are found by a table."""

    def __init__(self, pages: int, size: int, groups: int, dim: int) -> None:
        super().__init__()
        self.keys = torch.zeros(pages, groups, size, dim)
        self.values = torch.zeros(pages, groups, size, dim)
        self.size, self.pages, self.count = size, pages, 0
        self.free = list(range(pages))
        self.table: list[list[int]] = []  # the pages of each sample

    @property
    def length(self) -> int:
        return self.count

    def reset(self) -> None:
        super().reset()
        self.free, self.table, self.count = list(range(self.pages)), [], 0

    def reorder(self, index: Tensor) -> None:
        """Full pages are shared; the last, which the next token is written to, is copied."""
        super().reorder(index)
        table = [list(self.table[sample]) for sample in index.tolist()]
        for pages in table if self.count % self.size else []:
            copy = self.free.pop()
            for pool in (self.keys, self.values):
                pool[copy] = pool[pages[-1]]
            pages[-1] = copy
        used = {page for pages in table for page in pages}
        self.free = [page for page in range(self.pages) if page not in used]
        self.table = table

    def store(self, k: Tensor, v: Tensor, real: Tensor | None) -> KeyValues:
        if real is not None:
            raise ValueError("PagedCache keeps no padding: give each sample a cache of its own")
        self.table = self.table or [[] for _ in k]
        for token in range(k.shape[2]):
            place = self.count % self.size
            for sample, pages in enumerate(self.table):
                if not place:
                    pages.append(self.free.pop())
                self.keys[pages[-1], :, place] = k[sample, :, token]
                self.values[pages[-1], :, place] = v[sample, :, token]
            self.count += 1
        return KeyValues(self.gathered(self.keys), self.gathered(self.values), None)

    def gathered(self, pool: Tensor) -> Tensor:
        """(B, G, S, D), which a kernel for pages would read in place."""
        pages = pool[torch.tensor(self.table)]  # (B, pages, G, size, D)
        return pages.transpose(1, 2).flatten(2, 3)[:, :, : self.count]


class Int8Cache(KVCache):
    """Keys and values as integers from -127 to 127, with a scale for each token and head.

    Of the inner caches one holds the integers, the other the scales, so that they grow, drop and
    reorder tokens alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.integers, self.scales = GrowingCache(), GrowingCache()

    @property
    def length(self) -> int:
        return self.integers.length

    @property
    def real(self) -> Tensor | None:
        return self.integers.real

    def reset(self) -> None:
        super().reset()
        self.integers.reset()
        self.scales.reset()

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self.integers.reorder(index)
        self.scales.reorder(index)

    def store(self, k: Tensor, v: Tensor, real: Tensor | None) -> KeyValues:
        (k8, k_scale), (v8, v_scale) = self.quantised(k), self.quantised(v)
        integers = self.integers.extend(k8, v8, real)
        scales = self.scales.extend(k_scale, v_scale)
        return KeyValues(integers.k * scales.k, integers.v * scales.v, integers.real)

    @staticmethod
    def quantised(rows: Tensor) -> tuple[Tensor, Tensor]:
        scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        return (rows / scale).round().to(torch.int8), scale


def decode(layer: hw.MultiheadAttention, x: Tensor, cache: KVCache) -> Tensor:
    """The outputs, a few tokens at a time."""
    with torch.no_grad():
        steps = [layer(part, part, part, cache=cache)[0] for part in x.split([5, 1, 1, 3, 1], 1)]
    return torch.cat(steps, 1)


def example() -> tuple[hw.MultiheadAttention, Tensor]:
    """A layer and a text."""
    torch.manual_seed(0)
    position = hw.Rotary(8, pairs="halves")
    options = {"num_kv_heads": 2, "mask": hw.causal(), "position": position}
    return hw.MultiheadAttention(32, 4, batch_first=True, **options).eval(), torch.randn(2, 11, 32)


if __name__ == "__main__":
    layer, x = example()
    whole = decode(layer, x, GrowingCache())
    paged = PagedCache(pages=16, size=4, groups=2, dim=8)
    print("pages: equal", torch.equal(decode(layer, x, paged), whole), "of", paged.table)
    eight = Int8Cache()
    error = (decode(layer, x, eight) - whole).abs().max() / whole.abs().max()
    print(f"8 bits: {eight.integers.content.k.dtype}, largest error {error:.1%} of the output")

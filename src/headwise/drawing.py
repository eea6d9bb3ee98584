"""A mask as a document with its drawing and the number of allowed pairs; the list of all masks."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import avg_pool2d

from headwise.document import Block, Code, Document, Heading, HeatMap, Paragraph, Table
from headwise.lang import Text, joined, same
from headwise.masks import EXAMPLES, Tile
from headwise.masks.expression import parse
from headwise.masks.tiles import SIDE, Tiles
from headwise.planning import tile_counts
from headwise.shapes import AttentionShape

LENGTH, SMALL = 16, 8
"""Default number of queries and keys of a drawing, and of those in the list of all masks."""

CELLS = {"text": 48, "markdown": 48, "json": 48, "html": 256}
"""The most cells on each side of a drawing, by format."""

EVALUATED, COUNTED = 2**24, 2**26
"""The most pairs that are drawn one by one, and the most pairs in mixed tiles to count."""

DRAWN = 8  # the most drawings if samples or heads differ
SHADES = "·░▒▓■"


@dataclass(frozen=True)
class Shown:
    """A mask at one size, with the number of allowed keys of each query."""

    text: str  # the expression
    tiles: Tiles  # the tiles of the resolved mask
    seen: list[list[list[int]]] | None  # allowed keys per query, (B or 1, H or 1, Lq), if counted

    @classmethod
    def of(cls, text: str, queries: int | None, keys: int | None) -> "Shown":
        """Parse, resolve and count a mask; an invalid expression or size raises BadValue."""
        mask = parse(text)
        sizes = mask.required_sizes()
        keys = keys or sizes.get("Lk") or queries or LENGTH
        queries = queries or sizes.get("Lq") or keys
        batch, heads = sizes.get("B", 1), sizes.get("H", 1)
        shape = AttentionShape(batch, heads, queries, keys, keys - queries, torch.device("cpu"))
        tiles = Tiles.of(mask.shown(shape), shape)
        mixed = batch * heads * (tiles.pairs(Tile.MIXED) + queries)
        counted = mask.by_distance or mixed <= COUNTED
        return cls(" ".join(text.split()), tiles, tiles.seen()[0].tolist() if counted else None)

    @property
    def rows(self) -> list[int]:
        """The number of allowed keys per query, for every sample and head whose masks differ."""
        return [n for sample in self.seen or () for head in sample for n in head]

    @property
    def pairs(self) -> int:
        return self.tiles.shape.queries * self.tiles.shape.keys

    def share(self) -> tuple[float, float]:
        """Return a lower and an upper bound of the share of allowed pairs; equal if counted."""
        if self.seen is not None:
            exact = sum(self.rows) / max(len(self.rows) * self.tiles.shape.keys, 1)
            return exact, exact
        full, empty = self.tiles.pairs(Tile.FULL), self.tiles.pairs(Tile.EMPTY)
        return full / self.pairs, 1 - empty / self.pairs

    def drawings(self, cells: int) -> Iterable[tuple[Text, int, list[list[float]]]]:
        """Yield title, pairs on a side of a cell, and the share of each cell's pairs, 0 to 1."""
        shape, step = self.tiles.shape, self.step(cells)
        if self.pairs > EVALUATED:
            kinds = Tiles.of(self.tiles.mask, shape, step).kinds
            yield Text(""), step, (kinds / 2).tolist()
            return
        batch, heads = self.distinct()
        both = [(b, h) for b in range(batch) for h in range(heads)]
        for b, h in both[:DRAWN]:
            title = [Text("sample {index}", index=b)] * (batch > 1)
            title += [Text("head {index}", index=h)] * (heads > 1)
            yield joined(Text(", "), title), step, _pooled(self.tiles, b, h, step)

    def distinct(self) -> tuple[int, int]:
        """Return the number of samples and of heads for which the rule differs."""
        one = replace(self.tiles.shape, queries=1, keys=1).indices()
        batch, heads = (1, 1, *self.tiles.mask.rule(*one).shape)[-4:-2]
        return batch, heads

    def step(self, cells: int) -> int:
        """Return the number of queries and keys of a cell."""
        return -(-max(self.tiles.shape.queries, self.tiles.shape.keys) // cells)

    def document(self, kind: str) -> Document:
        cells = CELLS[kind]
        drawn = [_drawing(*drawing, kind) for drawing in self.drawings(cells)]
        batch, heads = self.distinct()
        legend = _legend(self.step(cells), self.pairs > EVALUATED, _KEYS[kind == "html"])
        blocks: list[Block] = [Paragraph(legend), *(block for some in drawn for block in some)]
        if len(drawn) < batch * heads and self.pairs <= EVALUATED:
            left = batch * heads - len(drawn)
            blocks.append(Paragraph(Text("{left} more drawings are omitted.", left=left)))
        return Document(same(self.text), (*blocks, _table(self)))

    def as_json(self) -> str:
        """Return the mask as JSON; values that were not counted are null."""
        shape, rows, (least, most) = self.tiles.shape, self.rows, self.share()
        counted, seen = self.seen is not None, None
        if counted:
            seen = {"min": min(rows), "mean": sum(rows) / len(rows), "max": max(rows)}
        _, step, values = next(iter(self.drawings(CELLS["json"])))
        whole = {
            "format": "headwise.show/1",
            "mask": self.text,
            "batch": shape.batch,
            "heads": shape.heads,
            "queries": shape.queries,
            "keys": shape.keys,
            "keys_seen": seen,
            "share": least if counted else None,
            "share_between": [least, most],
            "blind": rows.count(0) if counted else None,
            "tiles": self.tiles.counts(),
            "drawing": {"pairs_on_a_side": step, "share": values},
        }
        return json.dumps(whole, ensure_ascii=False, allow_nan=False) + "\n"


def _pooled(tiles: Tiles, b: int, h: int, step: int) -> list[list[float]]:
    """Return the share of allowed pairs in each cell, for one sample and head."""
    _, _, query, key = tiles.shape.indices()
    sample, head = torch.full((1, 1, 1, 1), b), torch.full((1, 1, 1, 1), h)
    allowed = tiles.mask.rule(sample, head, query, key)
    dense = allowed.expand(1, 1, tiles.shape.queries, tiles.shape.keys).float()
    values: list[list[float]] = avg_pool2d(dense, step, ceil_mode=True)[0, 0].tolist()
    return values


def _drawing(title: Text, step: int, values: list[list[float]], kind: str) -> list[Block]:
    """Return a figure for an HTML page, characters for other formats."""
    if kind != "html":
        lines = Code("\n".join(" ".join(map(_shade, row)) for row in values), "text")
        return [Heading(title, 3), lines] if title.en else [lines]
    rows = [str(i * step) for i in range(len(values))]
    columns = [str(j * step) for j in range(len(values[0]))]
    seen = [[value or float("nan") for value in row] for row in values]
    return [HeatMap(title if title.en else Text("the mask"), seen, rows, columns)]


def _shade(share: float) -> str:
    """Return the character of a cell: for no pair, up to three thirds, or every pair allowed.

    Example:
        >>> "".join(map(_shade, (0.0, 0.1, 0.5, 0.99, 1.0)))
        '·░▒▓■'
    """
    return SHADES[0] if not share else SHADES[4] if share == 1 else SHADES[1 + int(share * 3)]


_KEYS = (
    (Text("■"), Text("▒"), Text("▓▒░ in thirds"), Text("·")),
    (Text("dark"), Text("lighter"), Text("lighter if fewer"), Text("beige")),
)
"""The marks for all, mixed, some and no pairs: as characters, and as colours of a figure."""


def _legend(step: int, by_tile: bool, key: tuple[Text, Text, Text, Text]) -> Text:
    rows = Text(
        "Rows are queries and columns are keys, counted from 0; the last query is aligned "
        "with the last key."
    )
    every, mixed, some, none = key
    if step == 1:
        cell = Text("{every}: may attend, {none}: may not attend.", every=every, none=none)
    elif by_tile:
        cell = Text(
            "A cell is a tile of {step:,} × {step:,} pairs, not evaluated singly. "
            "{every}: all may attend, {mixed}: mixed or unknown, {none}: none.",
            step=step,
            every=every,
            mixed=mixed,
            none=none,
        )
    else:
        cell = Text(
            "A cell is {step:,} × {step:,} pairs. {every}: all may attend, {some}, {none}: none.",
            step=step,
            every=every,
            some=some,
            none=none,
        )
    return Text("{rows} {cell}", rows=rows, cell=cell)


def _table(shown: Shown) -> Block:
    shape, tiles = shown.tiles.shape, tile_counts(shown.tiles.counts())
    sizes = [same(f"{shape.queries:,} × {shape.keys:,}")]
    sizes += [Text("{count} samples", count=shape.batch)] * (shape.batch > 1)
    sizes += [Text("{count} heads", count=shape.heads)] * (shape.heads > 1)
    rows = [
        (Text("queries × keys"), joined(Text(", "), sizes)),
        *_counts(shown),
        (Text("tiles of {side} × {side}", side=SIDE), joined(Text(", "), tiles)),
    ]
    return Table((Text("property"), Text("value")), rows)


def _counts(shown: Shown) -> list[tuple[Text, Text]]:
    share, (least, most) = Text("pairs that may attend"), shown.share()
    if shown.seen is None:
        between = Text(
            "between {least:.2%} and {most:.2%}, not counted, since mixed tiles hold "
            "more than {counted:,} pairs",
            least=least,
            most=most,
            counted=COUNTED,
        )
        return [(share, between)]
    rows = shown.rows
    low, mean, high = min(rows), sum(rows) / len(rows), max(rows)
    seen = Text("{low:,} to {high:,}, {mean:,.2f} on average", low=low, high=high, mean=mean)
    blind = Text("{blind:,} of {num_rows:,}", blind=rows.count(0), num_rows=len(rows))
    return [
        (Text("allowed keys per query"), seen),
        (share, same(f"{least:.2%}")),
        (Text("fully masked queries (output 0)"), blind),
    ]


def every_mask() -> Document:
    """Return the list of all masks, each with a small drawing."""
    introduction = Text(
        "Masks combine with & (both allow), | (either allows) and ~ (the opposite): "
        'headwise show "causal() & window(3, 0)".'
    )
    blocks: list[Block] = [Paragraph(introduction)]
    for text, what in EXAMPLES.items():
        blocks += [Heading(same(text), 3), Paragraph(what), Code(_small(text), "text")]
    return Document(Text("Every mask"), blocks)


def every_mask_as_json() -> str:
    """Return the list of all masks as JSON."""
    masks = [
        {
            "name": text.partition("(")[0],
            "example": text,
            "what": {"en": what.en, "zh": what.zh},
            "drawing": _small(text).splitlines(),
        }
        for text, what in EXAMPLES.items()
    ]
    return json.dumps({"format": "headwise.masks/1", "masks": masks}, ensure_ascii=False) + "\n"


def _small(text: str) -> str:
    mask = parse(text)
    sizes = mask.required_sizes()
    batch, heads, length = sizes.get("B", 1), sizes.get("H", 1), sizes.get("Lk", SMALL)
    shape = AttentionShape(batch, heads, length, length, 0, torch.device("cpu"))
    rows = mask.shown(shape).dense(shape)[0, 0].tolist()
    return "\n".join(" ".join(SHADES[-1] if seen else SHADES[0] for seen in row) for row in rows)

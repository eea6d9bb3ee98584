"""A mask from a tensor: booleans, or floats that are added to the scores."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from headwise.errors import BadType, BadValue, one_of
from headwise.lang import Text
from headwise.masks.arguments import needs_operator
from headwise.masks.mask import Mask, Tile
from headwise.shapes import AttentionShape, Index, Truth, check_dense

Layout = Literal["q k", "b q k", "h q k", "b h q k"]


@dataclass(frozen=True, repr=False, eq=False)
class FromTensor(Mask):
    """The mask of `from_tensor`. Once resolved, ``tensor`` is (B or 1, H or 1, Lq, Lk)."""

    tensor: Tensor
    layout: Layout | None = None
    offset: int | None = None

    def rule(self, b: Index, h: Index, q: Index, k: Index) -> Truth:
        return is_allowed(self._at(b, h, q, k))

    def tile(self, q: range, k: range) -> Tile:
        if self.offset is None:
            return Tile.MIXED
        rows = slice(q[0] - self.offset, q[-1] + 1 - self.offset)
        part = unexpanded(self.tensor[:, :, rows, k[0] : k[-1] + 1])
        if Tile.of(is_allowed(part[:, :, 0])) is Tile.MIXED:  # the first query alone shows it
            return Tile.MIXED
        return Tile.of(is_allowed(part))

    def bias(self, b: Index, h: Index, q: Index, k: Index) -> Tensor | None:
        if not self.biased:
            return None
        here = self._at(b, h, q, k)
        wide = here.to(torch.promote_types(here.dtype, torch.float32))
        return wide.masked_fill(here <= blocked_below(here.dtype), 0.0)

    @property
    def biased(self) -> bool:
        return self.tensor.is_floating_point()

    @property
    def name(self) -> str:
        kind = str(self.tensor.dtype).removeprefix("torch.")
        return f"from_tensor(<{kind} {tuple(self.tensor.shape)}>)"

    def required_sizes(self) -> dict[str, int]:
        layout = self.layout or {2: "q k", 4: "b h q k"}.get(self.tensor.dim(), "")
        letters = [{"b": "B", "h": "H", "q": "Lq", "k": "Lk"}[axis] for axis in layout.split()]
        return dict(zip(letters, self.tensor.shape, strict=False))

    def resolve(self, shape: AttentionShape) -> Mask:
        if self.offset is not None:
            return self
        arranged = arrange(self.tensor, self.layout, shape)
        sizes = (*arranged.shape[:2], shape.queries, shape.keys)
        stored = unexpanded(arranged).to(shape.device).expand(sizes)
        return FromTensor(stored, "b h q k", shape.offset)

    def visible_keys(self, shape: AttentionShape) -> Tensor | None:
        b, h, q, k = shape.indices()
        return self.rule(b, h, q, k).any(dim=(1, 2)) if shape.queries else None

    def draw(self, queries: int, keys: int | None = None) -> str:
        rows, columns = self.tensor.shape[-2:]
        if (queries, columns if keys is None else keys) != (rows, columns):
            raise BadValue(
                "draw: this mask has {rows} queries and {columns} keys; use "
                "draw({rows}, {columns})",
                rows=rows,
                columns=columns,
            )
        return super().draw(rows, columns)

    def _at(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        if self.offset is None:
            raise BadValue(
                "from_tensor: a tensor mask must be resolved for a call before its "
                "rule is evaluated; use mask.resolve(shape) or mask.dense(shape)"
            )
        batch, heads = self.tensor.shape[:2]
        return self.tensor[0 if batch == 1 else b, 0 if heads == 1 else h, q - self.offset, k]


def from_tensor(tensor: Tensor, layout: Layout | None = None) -> Mask:
    """Return a mask from a tensor: booleans, or floats that are added to the scaled scores.

    A float that is -inf, or the lowest finite number of its type (or of bfloat16), blocks the pair.
    A row in which every key is blocked is fully masked, with output 0.

    Args:
        tensor: boolean, True where a query may attend (the opposite of PyTorch's
            ``attn_mask`` in `torch.nn.MultiheadAttention`), or floating point.
        layout: the axes: "q k", "b q k", "h q k" or "b h q k". An axis of size 1 broadcasts.
            Without a layout, two axes are read as "q k", and three axes as "b q k" or "h q k",
            whichever fits the call, with q and k at their full size; if both fit, the call raises
            an error that asks for the layout.

    Raises:
        BadType, BadValue: if the tensor is neither boolean nor floating point, not dense, or a
            float tensor of 0 and 1 only; or, when called, if its shape does not fit or fits in two
            ways.

    Example:
        >>> print(from_tensor(torch.tensor([[True, False], [True, True]])).draw(2))
        ■ ·
        ■ ■
    """
    check_dense("from_tensor", tensor)
    if tensor.dtype != torch.bool and not tensor.is_floating_point():
        raise BadType(
            "from_tensor: expected bool or floating point, got {tensor_dtype}; for 0/1 "
            "integers use tensor.bool(), where True means may attend",
            tensor_dtype=tensor.dtype,
        )
    if layout is not None and layout not in get_args(Layout):
        raise one_of("layout", layout, get_args(Layout))
    check_float_mask(tensor, "from_tensor")
    return FromTensor(tensor, layout)


def check_float_mask(tensor: Tensor, argument: str) -> None:
    """Refuse a float mask of zeros and ones: it is added to the scores and blocks nothing."""
    unread = torch.compiler.is_compiling() or needs_operator() or tensor.is_meta
    if tensor.dtype == torch.bool or unread:
        return
    values = unexpanded(tensor)
    ones = values == 1
    if bool(ones.any()) and bool((ones | (values == 0)).all()):
        raise BadValue(
            "{argument}: this float mask holds only 0 and 1; floats are added to the "
            "scores, so it would block nothing. For a mask pass .bool(); for a bias of "
            "exactly 1 add a constant to it, which the softmax ignores",
            argument=argument,
        )


def unexpanded(tensor: Tensor) -> Tensor:
    """Return the tensor with one entry on each expanded axis: every number in memory once.

    Example:
        >>> unexpanded(torch.zeros(3).expand(2, 3)).shape
        torch.Size([1, 3])
    """
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def blocked_below(dtype: torch.dtype) -> float:
    """Return the largest number of a float mask that still means blocked."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.bfloat16).min)


def is_allowed(tensor: Tensor) -> Truth:
    """Return which entries of a mask allow their pair; NaN allows it, so that it shows."""
    return tensor if tensor.dtype == torch.bool else ~(tensor <= blocked_below(tensor.dtype))


def arrange(tensor: Tensor, layout: Layout | None, shape: AttentionShape) -> Tensor:
    """Return the tensor as a view (B or 1, H or 1, Lq, Lk); refuse it if no or two ways fit."""
    readings = [layout] if layout else _readings(tensor, shape)
    broadcasts = "bhqk" if layout or tensor.dim() == 4 else "bh"
    fitting = [reading for reading in readings if _fits(tensor, reading, shape, broadcasts)]
    if not fitting:
        raise _unfit(tensor, layout, shape)
    if len(fitting) > 1:
        raise BadValue(
            "mask: a tensor of shape {tensor_shape} can be read as {words}; say which with "
            "from_tensor(tensor, layout='{fitting_0}')",
            tensor_shape=tuple(tensor.shape),
            words=" or ".join(f"'{reading}'" for reading in fitting),
            fitting_0=fitting[0],
        )
    if layout is None and tensor.dim() == 2 and shape.batch == shape.queries > 1:
        raise BadValue(
            "mask: a tensor of shape {tensor_shape} can be (Lq, Lk) or the padding (B, Lk) of this "
            "batch; say which with from_tensor(tensor, layout='q k') or padding(tensor)",
            tensor_shape=tuple(tensor.shape),
        )
    views = {"q k": tensor[None, None], "b q k": tensor[:, None], "h q k": tensor[None]}
    return views.get(fitting[0], tensor)


def _readings(tensor: Tensor, shape: AttentionShape) -> list[Layout]:
    if tensor.dim() != 3:
        return ["q k"] if tensor.dim() == 2 else ["b h q k"]
    alike = shape.heads == 1 or tensor.shape[0] == 1
    return ["b q k"] if alike else ["h q k"] if shape.batch == 1 else ["b q k", "h q k"]


def _fits(tensor: Tensor, layout: Layout, shape: AttentionShape, broadcasts: str) -> bool:
    """Return whether the axes have the sizes of the call, or size 1 where that broadcasts."""
    sizes = {"b": shape.batch, "h": shape.heads, "q": shape.queries, "k": shape.keys}
    axes = layout.split()
    if tensor.dim() != len(axes):
        return False
    return all(
        size == sizes[axis] or (size == 1 and axis in broadcasts)
        for axis, size in zip(axes, tensor.shape, strict=True)
    )


def _unfit(tensor: Tensor, layout: Layout | None, shape: AttentionShape) -> BadValue:
    got = Text("{shape}", shape=tuple(tensor.shape))
    if layout:
        got = Text("{shape} read as '{layout}'", shape=tuple(tensor.shape), layout=layout)
    return BadValue(
        "mask: a tensor of shape {got} does not fit (B, H, Lq, Lk) = {shape}; expected "
        "(Lq, Lk), (B, Lq, Lk), (H, Lq, Lk) or (B, H, Lq, Lk), where an axis may be 1 if all four "
        "or the layout are given. For padding (B, Lk) use padding(...)",
        got=got,
        shape=(shape.batch, shape.heads, shape.queries, shape.keys),
    )

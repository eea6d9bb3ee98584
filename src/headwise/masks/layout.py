"""Which axis of a mask tensor is which."""

from typing import Literal

from torch import Tensor

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.shapes import Frame

Layout = Literal["q k", "b q k", "h q k", "b h q k"]


def arrange(tensor: Tensor, layout: Layout | None, frame: Frame) -> Tensor:
    """The tensor as (B or 1, H or 1, Lq, Lk), a view.

    Raises:
        BadValue: if the shape does not fit the frame, or fits it in two ways.
    """
    readings = [layout] if layout else _readings(tensor, frame)
    fitting = [reading for reading in readings if _fits(tensor, reading, frame)]
    if not fitting:
        raise _unfit(tensor, layout, frame)
    if len(fitting) > 1:
        raise _ambiguous(tensor, fitting)
    if layout is None and tensor.dim() == 2 and frame.batch == frame.queries > 1:
        raise _padding_or_mask(tensor)
    return _view(tensor, fitting[0])


def _readings(tensor: Tensor, frame: Frame) -> list[Layout]:
    if tensor.dim() != 3:
        return ["q k"] if tensor.dim() == 2 else ["b h q k"]
    alike = frame.heads == 1 or tensor.shape[0] == 1
    return ["b q k"] if alike else ["h q k"] if frame.batch == 1 else ["b q k", "h q k"]


def _fits(tensor: Tensor, layout: Layout, frame: Frame) -> bool:
    sizes = {"b": frame.batch, "h": frame.heads, "q": frame.queries, "k": frame.keys}
    axes = layout.split()
    if tensor.dim() != len(axes):
        return False
    return all(
        size == sizes[axis] or (size == 1 and axis in "bh")
        for axis, size in zip(axes, tensor.shape, strict=True)
    )


def _view(tensor: Tensor, layout: Layout) -> Tensor:
    if layout == "q k":
        return tensor[None, None]
    if layout == "b q k":
        return tensor[:, None]
    return tensor[None] if layout == "h q k" else tensor


def _unfit(tensor: Tensor, layout: Layout | None, frame: Frame) -> BadValue:
    shape = (frame.batch, frame.heads, frame.queries, frame.keys)
    got = Text("{shape}", shape=tuple(tensor.shape))
    if layout:
        got = Text("{shape} read as '{layout}'", shape=tuple(tensor.shape), layout=layout)
    return BadValue(
        "mask: a tensor of shape {got} does not fit (B, H, Lq, Lk) = {shape}; expected "
        "(Lq, Lk), (B, Lq, Lk), (H, Lq, Lk) or (B, H, Lq, Lk), where B and H may be 1. "
        "For padding (B, Lk) use padding(...)",
        got=got,
        shape=shape,
    )


def _ambiguous(tensor: Tensor, fitting: list[Layout]) -> BadValue:
    words = " or ".join(f"'{reading}'" for reading in fitting)
    return BadValue(
        "mask: a tensor of shape {tensor_shape} can be read as {words}; say which with "
        "from_tensor(tensor, layout='{fitting_0}')",
        tensor_shape=tuple(tensor.shape),
        words=words,
        fitting_0=fitting[0],
    )


def _padding_or_mask(tensor: Tensor) -> BadValue:
    return BadValue(
        "mask: a tensor of shape {tensor_shape} can be (Lq, Lk) or the padding (B, Lk) "
        "of this batch; say which with from_tensor(tensor, layout='q k') or "
        "padding(tensor)",
        tensor_shape=tuple(tensor.shape),
    )

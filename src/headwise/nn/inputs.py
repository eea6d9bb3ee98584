"""What a module is given: checked, and turned to (B, L, E) and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue


def batch_first(x: Tensor, is_first: bool) -> Tensor:
    """x as (B, L, ·), from (L, ·), (B, L, ·) or (L, B, ·)."""
    if x.dim() == 2:
        return x[None]
    return x if is_first else x.transpose(0, 1)


def as_given(y: Tensor, given: Tensor, is_first: bool) -> Tensor:
    """y (B, L, ·) in the layout of the tensor that was given."""
    if given.dim() == 2:
        return y[0]
    return y if is_first else y.transpose(0, 1)


def check_inputs(inputs: Mapping[str, Tensor], sizes: Mapping[str, int], is_first: bool) -> None:
    """Refuse inputs that do not fit the module or each other.

    Args:
        inputs: query, key and value by name.
        sizes: the last axis of each by the argument that set it: embed_dim, kdim, vdim.
        is_first: whether the module reads (B, L, E).

    Raises:
        BadType: if one is no tensor.
        BadValue: if a shape does not fit.
    """
    for (name, x), (argument, size) in zip(inputs.items(), sizes.items(), strict=True):
        _check_one(name, x, argument, size)
    if len({x.dim() for x in inputs.values()}) > 1:
        raise _disagree("the number of axes", "轴数", inputs)
    query, key, value = (batch_first(x, is_first) for x in inputs.values())
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        layout = f"{'(B, L, E)' if is_first else '(L, B, E)'} with batch_first={is_first}"
        raise _disagree(f"the batch size B, read as {layout},", f"批大小 B（{layout}）", inputs)
    if key.shape[1] != value.shape[1]:
        raise _disagree("the length S of key and value", "key 和 value 的长度 S", inputs)


def check_dtypes(inputs: Mapping[str, Tensor], projections: Mapping[str, nn.Module]) -> None:
    """Refuse inputs in another dtype than the weights, unless autocast is on.

    Raises:
        BadValue: if an input's dtype is not that of its projection.
    """
    for (name, x), (owner, projection) in zip(inputs.items(), projections.items(), strict=True):
        if type(projection) is not nn.Linear or torch.is_autocast_enabled(x.device.type):
            continue
        kind = projection.weight.dtype
        if x.dtype != kind:
            raise BadValue(
                f"{name}: expected {kind}, the dtype of {owner}.weight, got {x.dtype}; "
                f"use {name}.to({kind}) or module.to({x.dtype})",
                f"{name}：应为 {owner}.weight 的 dtype {kind}，收到 {x.dtype}；"
                f"请用 {name}.to({kind}) 或 module.to({x.dtype})",
            )


def _check_one(name: str, x: Tensor, argument: str, size: int) -> None:
    if not isinstance(x, Tensor):
        raise BadType(
            f"{name}: expected a tensor, got {type(x).__name__}",
            f"{name}：应为张量，收到 {type(x).__name__}",
        )
    if x.is_nested:
        raise BadValue(
            f"{name}: expected a dense tensor, got a nested one; "
            "use x.to_padded_tensor(0.0) with key_padding_mask",
            f"{name}：应为普通张量，收到嵌套张量；"
            "请用 x.to_padded_tensor(0.0)，并给出 key_padding_mask",
        )
    if x.dim() not in (2, 3):
        raise BadValue(
            f"{name}: expected two axes (length, size) or three with a batch, got {tuple(x.shape)}",
            f"{name}：应为两个轴（长度、大小），或加上批共三个轴，收到 {tuple(x.shape)}",
        )
    if x.shape[-1] != size:
        raise BadValue(
            f"{name}: expected a last axis of size {argument}={size}, got {tuple(x.shape)}; "
            f"make the module with {argument}={x.shape[-1]} or project the input first",
            f"{name}：最后一个轴的大小应为 {argument}={size}，收到 {tuple(x.shape)}；"
            f"请在构造模块时设 {argument}={x.shape[-1]}，或先对输入做投影",
        )


def _disagree(en: str, zh: str, inputs: Mapping[str, Tensor]) -> BadValue:
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
    return BadValue(
        f"query, key, value: {en} must agree, got {shapes}; a batch is either in all three or in "
        "none, and batch_first says which axis it is",
        f"query, key, value：{zh}必须一致，收到 {shapes}；三者要么都带批，要么都不带，"
        "批在哪个轴由 batch_first 决定",
    )

"""PyTorch's mask arguments as a headwise `Mask`.

In PyTorch's ``attn_mask`` and ``key_padding_mask`` True means blocked, and floats are added to the
scores; in a headwise mask True means may attend. This is the one file where the two meet.
"""

import warnings
from collections.abc import Mapping, MutableMapping
from typing import NoReturn, Protocol, cast

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks import Mask, causal, full, padding
from headwise.masks.mask import And
from headwise.masks.patterns.from_tensor import (
    FromTensor,
    blocked_below,
    check_float_mask,
    unexpanded,
)
from headwise.masks.patterns.padding import Padding
from headwise.nn.projections import QKV
from headwise.shapes import AttentionShape

CALLER = 6
"""How many calls lie between `_warn_of_padding` and the line that called the module."""


class PaddingOrMask(UserWarning):
    """A mask was read as (L, S) and looks like the padding (B, S) of the same batch."""

    def __init__(self, text: Text) -> None:
        super().__init__(text.en)
        self.text = text


def from_torch(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    frame: AttentionShape,
    batched: bool,
) -> list[Mask]:
    """The masks that the arguments of ``forward`` stand for; all of them hold together.

    Args:
        attn_mask: True = blocked, or floats to add: (L, S), (B*H, L, S), (B, L, S), (B, 1, L, S),
            (1, H, L, S) or (B, H, L, S); for unbatched input also (H, L, S).
        key_padding_mask: True = padding, or floats to add: (B, S); for unbatched input (S,).
        is_causal: no query sees a later key; the last query stands at the last key.
        frame: B, H, L and S of this call.
        batched: whether the input has a batch axis.

    Raises:
        BadType: if a mask is neither boolean nor floating point.
        BadValue: if a shape does not fit or fits in two ways, or if a float mask is 0/1.

    Example:
        >>> frame = Frame(1, 1, 2, 3, 1, torch.device("cpu"))
        >>> (mask,) = from_torch(None, torch.tensor([[False, False, True]]), False, frame, True)
        >>> print(mask.draw(2, 3))
        ■ ■ ·
        ■ ■ ·
    """
    masks: list[Mask] = []
    if attn_mask is not None:
        _check("attn_mask", attn_mask)
        if batched and attn_mask.dim() == 2:
            _warn_of_padding(attn_mask, frame)
        masks.append(_attention(attn_mask, frame))
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask)
        masks.append(_padding(key_padding_mask, frame, batched))
    if is_causal:
        masks.append(causal())
    return masks


def together(masks: list[Mask]) -> Mask:
    """All of the masks at once; full() if there is none."""
    if not masks:
        return full()
    whole = masks[0]
    for mask in masks[1:]:
        whole = whole & mask
    return whole


def real_keys(mask: Mask, frame: AttentionShape) -> Tensor | None:
    """(B or 1, S), False on keys that the mask plainly hides from every query; None if unknown.

    It reads paddings and tensors only, and never builds an (L, S) of its own.
    """
    if isinstance(mask, And):
        left, right = real_keys(mask.left, frame), real_keys(mask.right, frame)
        return right if left is None else left if right is None else left & right
    if isinstance(mask, Padding):
        b, h, q, k = frame.indices()
        return mask.rule(b, h, q[:, :, :1], k)[:, 0, 0] if frame.queries else None
    if isinstance(mask, FromTensor):
        seen = _visible(unexpanded(mask.tensor)).any(2).any(1)
        return seen.expand(-1, mask.tensor.shape[3])
    return None


def _visible(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.bool else tensor > blocked_below(tensor.dtype)


def _check(name: str, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise BadType(
            "{name}: expected a tensor or None, got {mask_type}; a headwise mask is "
            "given to the constructor: MultiheadAttention(..., mask=...)",
            name=name,
            mask_type=type(mask).__name__,
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise BadType(
            "{name}: expected bool (True = blocked) or floating point (added to the "
            "scores), got {mask_dtype}; use .bool()",
            name=name,
            mask_dtype=mask.dtype,
        )
    check_float_mask(mask, name)


def _attention(mask: Tensor, frame: AttentionShape) -> Mask:
    """As (B or 1, H or 1, L, S), with headwise's polarity."""
    whole = _four_axes(mask, frame)
    held = unexpanded(whole).to(frame.device)
    held = (~held if held.dtype == torch.bool else held).expand(whole.shape)
    return FromTensor(held, "b h q k", frame.offset)


def _four_axes(mask: Tensor, frame: AttentionShape) -> Tensor:
    batch, heads, size = frame.batch, frame.heads, (frame.queries, frame.keys)
    if mask.dim() not in (2, 3, 4) or mask.shape[-2:] != size:
        raise _unfit(mask, frame)
    if mask.dim() == 2:
        return mask[None, None]
    if mask.dim() == 4:
        if mask.shape[0] not in (1, batch) or mask.shape[1] not in (1, heads):
            raise _unfit(mask, frame)
        return mask
    count = mask.shape[0]
    if count == batch == heads > 1:
        raise _ambiguous(mask)
    if count == batch * heads:
        return mask.reshape(batch, heads, *size)
    if count in (1, batch):
        return mask[:, None]
    raise _unfit(mask, frame)


def _padding(mask: Tensor, frame: AttentionShape, batched: bool) -> Mask:
    """A padding, or a bias that every query of a sample shares."""
    expected = (frame.batch, frame.keys) if batched else (frame.keys,)
    if mask.shape != expected:
        letters = "(B, S)" if batched else "(S,)"
        raise BadValue(
            "key_padding_mask: expected {letters} = {expected}, got {mask_shape}; it "
            "says which keys are padding, True = padding. A mask over queries and keys "
            "is attn_mask",
            letters=letters,
            expected=expected,
            mask_shape=tuple(mask.shape),
        )
    rows = (mask if batched else mask[None]).to(frame.device)
    if rows.dtype == torch.bool:
        return padding(~rows)
    if _hides_only(rows):
        return padding(_visible(rows))
    bias = rows[:, None, None, :].expand(-1, -1, frame.queries, -1)
    return FromTensor(bias, "b h q k", frame.offset)


def _hides_only(rows: Tensor) -> bool:
    """Whether a float padding holds 0 and blocked places only, as far as can be known."""
    if rows.requires_grad or rows.is_meta or torch.compiler.is_compiling():
        return False
    return bool(((rows == 0) | (rows <= blocked_below(rows.dtype))).all())


def _warn_of_padding(mask: Tensor, frame: AttentionShape) -> None:
    """Warn where (L, S) could be the padding (B, S): the shape alone cannot tell."""
    alike = frame.batch == frame.queries > 1 and mask.shape == (frame.queries, frame.keys)
    if alike and not torch.compiler.is_compiling() and _like_padding(mask):
        shape = tuple(mask.shape)
        text = Text(
            "attn_mask: {shape} is read as (L, S), and looks like the padding (B, S) of "
            "this batch; for padding use key_padding_mask=, for a mask of queries and "
            "keys pass attn_mask[None, None] to say so",
            shape=shape,
        )
        warnings.warn(PaddingOrMask(text), stacklevel=CALLER)


def _like_padding(mask: Tensor) -> bool:
    """Whether each row blocks one run at an end, as padding does, and no triangle explains it."""
    blocked = ~_visible(mask) if mask.is_floating_point() else mask
    if mask.is_floating_point() and bool((mask[~blocked] != 0).any()):
        return False  # a bias
    ends_only = bool(((blocked[:, 1:] != blocked[:, :-1]).sum(1) <= 1).all())
    alike = bool((blocked == blocked[:1]).all())  # then both readings give the same
    banded = mask.shape[1] > 1 and bool((blocked[1:, 1:] == blocked[:-1, :-1]).all())
    return ends_only and not alike and not banded


def _unfit(mask: Tensor, frame: AttentionShape) -> BadValue:
    got, (length, keys) = tuple(mask.shape), (frame.queries, frame.keys)
    batch, heads = frame.batch, frame.heads
    allowed = (
        f"(L, S) = {(length, keys)}, (B*H, L, S) = {(batch * heads, length, keys)}, "
        f"(B, L, S) = {(batch, length, keys)}, or (B, H, L, S) = {(batch, heads, length, keys)}"
    )
    return BadValue(
        "attn_mask: expected {allowed} where B and H may be 1, got {got}; padding (B, "
        "S) = {value} goes to key_padding_mask",
        allowed=allowed,
        got=got,
        value=(batch, keys),
    )


def _ambiguous(mask: Tensor) -> BadValue:
    got = tuple(mask.shape)
    return BadValue(
        "attn_mask: {got} can be one mask a sample or one a head, since B = H; pass "
        "attn_mask[:, None] for (B, 1, L, S) or attn_mask[None] for (1, H, L, S)",
        got=got,
    )


class Owner(Protocol):
    """What packing needs to know of the module: its sizes, and whether PyTorch would pack it."""

    embed_dim: int
    kdim: int
    vdim: int

    @property
    def rows(self) -> tuple[int, int, int]:
        """How many rows q_proj, k_proj and v_proj have."""
        ...

    @property
    def packs(self) -> bool:
        """Whether PyTorch would keep the three weights as one."""
        ...


class NotPacked:
    """Stands where PyTorch keeps a packed parameter, and refuses to be used as one.

    `torch.nn.TransformerEncoder` looks at ``self_attn.in_proj_weight`` to decide whether it may
    bypass the module; an object with ``__torch_function__`` tells it not to.
    """

    @classmethod
    def __torch_function__(
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> NoReturn:
        del func, types, args, kwargs
        raise _unpacked()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(str(_unpacked()))


class PackedBias:
    """The same for the bias, which is None in a module that was made without: as in PyTorch."""

    def __get__(self, module: nn.Module | None, owner: type) -> "NotPacked | None":
        del owner
        bare = module is not None and getattr(module.q_proj, "bias", None) is None
        return None if bare else NotPacked()


def _unpacked() -> BadType:
    return BadType(
        "in_proj_weight, in_proj_bias: headwise keeps the projections apart and has no "
        "packed parameter; use q_proj, k_proj and v_proj, or state_dict() for the "
        "packed names"
    )


def pack(
    module: nn.Module, state: MutableMapping[str, object], prefix: str, metadata: object
) -> None:
    """Rename what `nn.Module.state_dict` collected; a post hook."""
    del metadata
    owner = cast("Owner", module)
    packed: dict[str, object] = {}
    if _plain(owner, state, prefix):
        weights = [cast("Tensor", state.pop(f"{prefix}{name}.weight")) for name in QKV]
        if owner.packs:
            packed[f"{prefix}in_proj_weight"] = torch.cat(weights)
        else:
            packed |= {f"{prefix}{n}_weight": w for n, w in zip(QKV, weights, strict=True)}
        if f"{prefix}q_proj.bias" in state:
            biases = [cast("Tensor", state.pop(f"{prefix}{name}.bias")) for name in QKV]
            packed[f"{prefix}in_proj_bias"] = torch.cat(biases)
    others = {key: state.pop(key) for key in list(state) if key.startswith(prefix)}
    state.update(packed | others)  # PyTorch's order


def unpack(
    module: nn.Module,
    state: MutableMapping[str, object],
    prefix: str,
    metadata: object,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Give each projection its part of a state_dict in PyTorch's names; a pre hook of loading.

    A tensor of another size is cut in three all the same, so that each projection says what it
    expected and what it got.
    """
    del metadata, strict, missing, unexpected, errors
    rows = cast("Owner", module).rows
    for kind in ("weight", "bias"):
        if any(f"{prefix}{name}.{kind}" in state for name in QKV):
            continue
        packed = state.get(f"{prefix}in_proj_{kind}")
        if isinstance(packed, Tensor) and packed.dim():
            del state[f"{prefix}in_proj_{kind}"]
            fits = packed.shape[0] == sum(rows)
            parts = packed.tensor_split((rows[0], rows[0] + rows[1]) if fits else 3)
            state.update({f"{prefix}{n}.{kind}": p for n, p in zip(QKV, parts, strict=True)})
    for name in QKV:
        if f"{prefix}{name}_weight" in state and f"{prefix}{name}.weight" not in state:
            state[f"{prefix}{name}.weight"] = state.pop(f"{prefix}{name}_weight")


def _plain(module: "Owner", state: Mapping[str, object], prefix: str) -> bool:
    """Whether q, k and v all hold a weight of the size PyTorch gives it, and at most a bias."""
    whole = {"weight", "bias"} if f"{prefix}q_proj.bias" in state else {"weight"}
    kinds = set()
    for name, rows, columns in zip(
        QKV, module.rows, (module.embed_dim, module.kdim, module.vdim), strict=True
    ):
        start = f"{prefix}{name}."
        if {key.removeprefix(start) for key in state if key.startswith(start)} != whole:
            return False
        shapes = {"weight": (rows, columns), "bias": (rows,)}
        for kind in whole:
            tensor = state[start + kind]
            if not isinstance(tensor, Tensor) or tensor.shape != shapes[kind]:
                return False
            kinds.add((tensor.dtype, tensor.device))
    return len(kinds) == 1

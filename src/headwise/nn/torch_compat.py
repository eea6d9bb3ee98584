"""The interface of `torch.nn.MultiheadAttention`: its mask arguments and its state_dict.

In PyTorch's ``attn_mask`` and ``key_padding_mask`` True means blocked, and floats are added to the
scores; in a headwise mask True means may attend. The names of parameters correspond as follows:

    q_proj.weight, k_proj.weight, v_proj.weight   <->  in_proj_weight, stacked in this order; or
                                                       q_proj_weight, k_proj_weight, v_proj_weight
    q_proj.bias,   k_proj.bias,   v_proj.bias     <->  in_proj_bias

Weights are packed where PyTorch packs them: if kdim = vdim = embed_dim = H·D and no key/value heads
are shared. If a projection is wrapped or quantised, as in LoRA, no parameter is renamed.
"""

import functools
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from headwise.call import is_tracing
from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks import Mask, causal, full, padding
from headwise.masks.arguments import without_numbers
from headwise.masks.mask import And, both
from headwise.masks.patterns.by_length import Padding
from headwise.masks.patterns.from_tensor import FromTensor, check_float_mask, is_allowed, unexpanded
from headwise.nn.projections import QKV
from headwise.shapes import AttentionShape, broadcasts

STACK_LEVEL = 6  # the number of stack frames from `_warn_of_padding` to the module's caller


class PaddingOrMask(UserWarning):
    """Warning that a mask read as (L, S) looks like the padding (B, S) of the batch."""

    def __init__(self, text: Text) -> None:
        super().__init__(text.en)
        self.text = text


def from_torch(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    shape: AttentionShape,
    batched: bool,
) -> list[Mask]:
    """Convert the mask arguments of `MultiheadAttention.forward` to a list of headwise masks.

    Raises BadType or BadValue if the dtype or shape of a mask does not fit or is ambiguous.

    Example:
        >>> shape = AttentionShape(1, 1, 2, 3, 1, torch.device("cpu"))
        >>> (mask,) = from_torch(None, torch.tensor([[False, False, True]]), False, shape, True)
        >>> print(mask.draw(2, 3))
        ■ ■ ·
        ■ ■ ·
    """
    masks: list[Mask] = []
    if attn_mask is not None:
        _check("attn_mask", attn_mask)
        if batched and attn_mask.dim() == 2:
            _warn_of_padding(attn_mask, shape)
        masks.append(_attention(attn_mask, shape))
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask)
        masks.append(_padding(key_padding_mask, shape, batched))
    if is_causal:
        masks.append(causal())
    return masks


def intersect(masks: list[Mask]) -> Mask:
    """Return the intersection of the masks, or full() for an empty list."""
    return functools.reduce(operator.and_, masks) if masks else full()


def real_keys(mask: Mask, shape: AttentionShape) -> Tensor | None:
    """Return (B or 1, S), False on keys that padding or a tensor mask blocks for all queries."""
    if isinstance(mask, And):
        return both(real_keys(mask.left, shape), real_keys(mask.right, shape))
    if isinstance(mask, Padding):
        b, h, q, k = shape.indices()
        return mask.rule(b, h, q[:, :, :1], k)[:, 0, 0] if shape.queries else None
    if isinstance(mask, FromTensor):
        visible = is_allowed(unexpanded(mask.tensor)).any(2).any(1)
        return visible.expand(-1, mask.tensor.shape[3])
    return None


def _check(name: str, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise BadType(
            "{name}: expected a tensor or None, got {mask_type}; pass a headwise mask to the "
            "constructor: MultiheadAttention(..., mask=...)",
            name=name,
            mask_type=type(mask).__name__,
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise BadType(
            "{name}: expected dtype bool (True = blocked) or floating point (added to the "
            "scores), got {mask_dtype}; convert it with .bool()",
            name=name,
            mask_dtype=mask.dtype,
        )
    check_float_mask(mask, name)


def _attention(mask: Tensor, shape: AttentionShape) -> Mask:
    """Return attn_mask as (B or 1, H or 1, L, S), in which True means may attend."""
    expanded = _four_axes(mask, shape)
    tensor = unexpanded(expanded).to(shape.device)
    tensor = (~tensor if tensor.dtype == torch.bool else tensor).expand(expanded.shape)
    return FromTensor(tensor, "b h q k", shape.offset)


def _four_axes(mask: Tensor, shape: AttentionShape) -> Tensor:
    batch, heads, size = shape.batch, shape.heads, (shape.queries, shape.keys)
    if mask.shape[-2:] == size:
        first = mask.shape[:-2]
        if not first:
            return mask[None, None]
        if len(first) == 2 and broadcasts(first[0], batch) and broadcasts(first[1], heads):
            return mask
        if first == (batch,) and batch == heads > 1:
            raise BadValue(
                "attn_mask: shape {got} is ambiguous, since B = H; pass attn_mask[:, None] for one "
                "mask per sample, (B, 1, L, S), or attn_mask[None] for one per head, (1, H, L, S)",
                got=tuple(mask.shape),
            )
        if first == (batch * heads,):
            return mask.reshape(batch, heads, *size)
        if len(first) == 1 and broadcasts(first[0], batch):
            return mask[:, None]
    raise BadValue(
        "attn_mask: expected (L, S) = {shared}, (B*H, L, S) = {flat}, (B, L, S) = {by_sample}, or "
        "(B, H, L, S) = {by_head} where B and H may be 1, got {got}; pass padding (B, S) = "
        "{padding} as key_padding_mask",
        shared=size,
        flat=(batch * heads, *size),
        by_sample=(batch, *size),
        by_head=(batch, heads, *size),
        got=tuple(mask.shape),
        padding=(batch, shape.keys),
    )


def _padding(mask: Tensor, shape: AttentionShape, batched: bool) -> Mask:
    """Return a padding mask, or a float mask that all queries of a sample share."""
    expected = (shape.batch, shape.keys) if batched else (shape.keys,)
    if mask.shape != expected:
        letters = "(B, S)" if batched else "(S,)"
        raise BadValue(
            "key_padding_mask: expected {letters} = {expected}, with True = padding, got {got}; "
            "pass a mask over queries and keys as attn_mask",
            letters=letters,
            expected=expected,
            got=tuple(mask.shape),
        )
    rows = (mask if batched else mask[None]).to(shape.device)
    if rows.dtype == torch.bool:
        return padding(~rows)
    unread = without_numbers(rows) or torch.compiler.is_compiling() or is_tracing()
    known = not (rows.requires_grad or unread)
    if known and bool(((rows == 0) | ~is_allowed(rows)).all()):
        return padding(is_allowed(rows))
    bias = rows[:, None, None, :].expand(-1, -1, shape.queries, -1)
    return FromTensor(bias, "b h q k", shape.offset)


def _warn_of_padding(mask: Tensor, shape: AttentionShape) -> None:
    """Warn if a mask (L, S) looks like padding (B, S), where both shapes are equal."""
    ambiguous = shape.batch == shape.queries > 1 and mask.shape == (shape.queries, shape.keys)
    unread = without_numbers(mask) or torch.compiler.is_compiling()
    if ambiguous and not unread and _looks_like_padding(mask):
        text = Text(
            "attn_mask: shape {shape} is read as (L, S), but the mask looks like padding (B, S); "
            "pass padding as key_padding_mask, or attn_mask[None, None] for a mask over queries "
            "and keys",
            shape=tuple(mask.shape),
        )
        warnings.warn(PaddingOrMask(text), stacklevel=STACK_LEVEL)


def _looks_like_padding(mask: Tensor) -> bool:
    """Return whether each row blocks keys at one end only, like padding, but not as a band."""
    blocked = ~is_allowed(mask) if mask.is_floating_point() else mask
    if mask.is_floating_point() and bool((mask[~blocked] != 0).any()):
        return False  # a float mask with other values than 0 and -inf
    ends_only = bool(((blocked[:, 1:] != blocked[:, :-1]).sum(1) <= 1).all())
    same = bool((blocked == blocked[:1]).all())  # then both interpretations agree
    banded = mask.shape[1] > 1 and bool((blocked[1:, 1:] == blocked[:-1, :-1]).all())
    return ends_only and not same and not banded


State = MutableMapping[str, Any]


class NotPacked:
    """A placeholder for PyTorch's packed parameter, which raises an error whenever it is used.

    `torch.nn.TransformerEncoder` reads ``self_attn.in_proj_weight`` to decide whether to bypass the
    module; an object with ``__torch_function__`` prevents the bypass.
    """

    @classmethod
    def __torch_function__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise _not_packed()

    def __getitem__(self, index: object) -> NoReturn:
        raise _not_packed()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("__") else str(_not_packed()))


class PackedBias:
    """A descriptor of the packed bias: `NotPacked`, or None in a module without bias."""

    def __get__(self, module: nn.Module | None, owner: type) -> NotPacked | None:
        bare = module is not None and getattr(module.q_proj, "bias", None) is None
        return None if bare else NotPacked()


class TorchInterface(nn.Module, ABC):
    """Base class with the attributes that other code reads from `torch.nn.MultiheadAttention`."""

    _qkv_same_embed_dim = False  # prevents torch's encoder layer from bypassing this module
    in_proj_weight = NotPacked()
    in_proj_bias = PackedBias()
    embed_dim: int
    kdim: int
    vdim: int
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    @property
    @abstractmethod
    def rows(self) -> tuple[int, int, int]:
        """The numbers of rows of q_proj, k_proj and v_proj."""

    @property
    @abstractmethod
    def packs(self) -> bool:
        """Whether PyTorch would store the weights of q, k and v as one matrix (3E, E)."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Initialise every parameter again."""

    def _load_from_state_dict(  # PyTorch calls it for this module's part of a state_dict
        self,
        state_dict: State,
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        unpack(self, state_dict, prefix)
        rest = strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _reset_parameters(self) -> None:
        self.reset_parameters()

    @property
    def q_proj_weight(self) -> Tensor:
        """``q_proj.weight``, under PyTorch's name for separate weights."""
        return self.q_proj.weight

    @property
    def k_proj_weight(self) -> Tensor:
        return self.k_proj.weight

    @property
    def v_proj_weight(self) -> Tensor:
        return self.v_proj.weight

    def torch_state_dict(self, prefix: str = "", *, keep_vars: bool = False) -> dict[str, Tensor]:
        """Return a state_dict with the names of `torch.nn.MultiheadAttention`.

        Packed parameters are copies. `load_state_dict` accepts these names and the module's own.

        Args:
            prefix: a prefix of every name.
            keep_vars: as for `nn.Module.state_dict`.

        Example:
            >>> import headwise as hw
            >>> list(hw.MultiheadAttention(8, 2, bias=False).torch_state_dict())
            ['in_proj_weight', 'out_proj.weight']
        """
        return pack(self, self.state_dict(prefix=prefix, keep_vars=keep_vars), prefix)


def _not_packed() -> BadType:
    return BadType(
        "in_proj_weight, in_proj_bias: headwise has separate projections and no packed parameter; "
        "use q_proj, k_proj and v_proj, or torch_state_dict() for the packed names"
    )


def pack(owner: TorchInterface, state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return a module's state_dict with PyTorch's names, in PyTorch's order."""
    state = dict(state)
    packed: dict[str, Tensor] = {}
    if _plain(owner, state, prefix):
        weights = [state.pop(f"{prefix}{name}.weight") for name in QKV]
        if owner.packs:
            packed[f"{prefix}in_proj_weight"] = torch.cat(weights)
        else:
            packed |= {f"{prefix}{n}_weight": w for n, w in zip(QKV, weights, strict=True)}
        if f"{prefix}q_proj.bias" in state:
            biases = [state.pop(f"{prefix}{name}.bias") for name in QKV]
            packed[f"{prefix}in_proj_bias"] = torch.cat(biases)
    return packed | state


def unpack(owner: TorchInterface, state: State, prefix: str) -> None:
    """Split the packed tensors of a state_dict into q, k and v, in place.

    A tensor of a wrong size is split in three too, so the loading error names each projection.
    """
    rows = owner.rows
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


def _plain(module: TorchInterface, state: State, prefix: str) -> bool:
    """Return whether q, k and v each have only a weight, and possibly a bias, of PyTorch's size."""
    expected = {"weight", "bias"} if f"{prefix}q_proj.bias" in state else {"weight"}
    kinds = set()
    sizes = (module.embed_dim, module.kdim, module.vdim)
    for name, rows, columns in zip(QKV, module.rows, sizes, strict=True):
        start = f"{prefix}{name}."
        if {key.removeprefix(start) for key in state if key.startswith(start)} != expected:
            return False
        shapes = {"weight": (rows, columns), "bias": (rows,)}
        for kind in expected:
            tensor = state[start + kind]
            if not isinstance(tensor, Tensor) or tensor.shape != shapes[kind]:
                return False
            kinds.add((tensor.dtype, tensor.device))
    return len(kinds) == 1

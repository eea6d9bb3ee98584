"""Validation of the arguments of `MultiheadAttention`, and changes between tensor layouts."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks import Mask, appended, full
from headwise.nn.projections import QKV
from headwise.positions import Position, Stage


def to_batch_first(x: Tensor, is_batch_first: bool) -> Tensor:
    """Convert (L, ·), (B, L, ·) or (L, B, ·) to (B, L, ·)."""
    if x.dim() == 2:
        return x[None]
    return x if is_batch_first else x.transpose(0, 1)


def from_batch_first(y: Tensor, query: Tensor, is_batch_first: bool) -> Tensor:
    """Convert an output (B, L, ·) to the layout of the query."""
    if query.dim() == 2:
        return y[0]
    return y if is_batch_first else y.transpose(0, 1)


def split_heads(x: Tensor, dim: int) -> Tensor:
    """Convert (B, L, heads·D) to (B, heads, L, D), for the heads of this rank."""
    return torch.unflatten(x, -1, (-1, dim)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Convert (B, H, L, D) to (B, L, H·D)."""
    return x.transpose(1, 2).flatten(2)


def zero_padding(key: Tensor, value: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Set key (B, n, kdim) and value (B, n, vdim) to 0 on padding, for finite gradients.

    ``real`` is (B or 1, S), False on padding; its last n columns belong to key and value.
    """
    if real is None:
        return key, value
    column = real[:, real.shape[1] - key.shape[1] :, None]  # (B or 1, n, 1)
    return torch.where(column, key, 0.0), torch.where(column, value, 0.0)


def append_keys(
    keys: tuple[Tensor, Tensor],
    learned: tuple[Tensor | None, Tensor | None],
    zeros: bool,
    mask: Mask,
) -> tuple[Tensor, Tensor, Mask]:
    """Append the keys of ``add_bias_kv`` and ``add_zero_attn``, which every query may attend to.

    ``keys`` contains k and v, (B, G, S, D); ``learned`` contains bias_k and bias_v, (1, 1, G·D).
    """
    extra = (learned[0] is not None) + zeros
    k, v = (_extended(t, bias, zeros) for t, bias in zip(keys, learned, strict=True))
    return k, v, appended(mask, extra) if extra and mask != full() else mask


def _extended(rows: Tensor, bias: Tensor | None, zeros: bool) -> Tensor:
    batch, groups, _, dim = rows.shape
    parts = [rows]
    if bias is not None:
        parts.append(bias.view(1, groups, 1, dim).expand(batch, -1, -1, -1).to(rows.dtype))
    if zeros:
        parts.append(rows.new_zeros(batch, groups, 1, dim))
    return torch.cat(parts, 2) if len(parts) > 1 else rows


def returned_weights(
    weights: Tensor | None, average: bool, batched: bool, heads: int
) -> Tensor | None:
    """Return weights (B, H, L, S), or their mean over heads (B, L, S); without B if unbatched."""
    if weights is None:
        return None
    if average and weights.shape[1] != heads:
        raise BadValue(
            "average_attn_weights: this rank has {local} of {heads} heads, since the projections "
            "are sharded, so it cannot average over all heads; use average_attn_weights=False "
            "or need_weights=False",
            local=weights.shape[1],
            heads=heads,
        )
    weights = weights.mean(1) if average else weights
    return weights if batched else weights[0]


INPUTS = ("query", "key", "value")
SIZES = {"query": "embed_dim", "key": "kdim", "value": "vdim"}  # the last axis of each input


def check_positive(**sizes: object) -> None:
    """Check that every size is an integer of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise BadType("{name}: expected an integer, got {size!r}", name=name, size=size)
        if size < 1:
            raise BadValue("{name}: expected at least 1, got {size}", name=name, size=size)


def checked_head_dim(
    embed_dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None
) -> int:
    """Return D, which is E / H if ``head_dim`` is None, and check that G divides H."""
    if num_heads % num_kv_heads:
        raise BadValue(
            "num_kv_heads: expected a divisor of num_heads={num_heads}, got "
            "{num_kv_heads}; use one of {divisors}",
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            divisors=[g for g in range(1, num_heads + 1) if num_heads % g == 0],
        )
    if head_dim is not None:
        check_positive(head_dim=head_dim)
        return head_dim
    if embed_dim % num_heads:
        raise BadValue(
            "embed_dim: expected a multiple of num_heads, got embed_dim={embed_dim} and "
            "num_heads={num_heads}; or set the size of one head, for example head_dim={example}",
            embed_dim=embed_dim,
            num_heads=num_heads,
            example=embed_dim // num_heads or 1,
        )
    return embed_dim // num_heads


def checked_mask(mask: Mask | None) -> Mask | None:
    """Check that ``mask`` is a headwise mask or None, and return it."""
    if mask is None or isinstance(mask, Mask):
        return mask
    raise BadType(
        "mask: expected a headwise mask or None, got {mask_type}; pass for example hw.causal(), or "
        "hw.from_tensor(tensor) with True = may attend",
        mask_type=type(mask).__name__,
    )


def checked_module(name: str, module: nn.Module | None, example: str) -> nn.Module | None:
    """Check that the argument called ``name`` is a module or None, and return it."""
    if module is None or isinstance(module, nn.Module):
        return module
    raise BadType(
        "{name}: expected an nn.Module instance or None, got {module!r}; pass for example "
        "{example}",
        name=name,
        module=module,
        example=example,
    )


def check_position(position: Position | None, sizes: Mapping[str, set[int]]) -> None:
    """Check the type of a position encoding, and that the module has the sizes it requires.

    E may have several values: the sizes of query, key and value.
    """
    if position is None:
        return
    name = type(position).__name__
    if not isinstance(position, Position):
        raise BadType(
            "position: expected a headwise position encoding or None, got {position_type}; pass "
            "for example hw.Sinusoidal(embed_dim)",
            position_type=name,
        )
    for letter, size in position.expected_sizes().items():
        if sizes[letter] != {size}:
            raise BadValue(
                "position: {name} was created for {letter}={size}, but the module has "
                "{letter}={got}; create it with the module's size, or leave it out if query, key "
                "and value differ in size",
                name=name,
                letter=letter,
                size=size,
                got=", ".join(map(str, sorted(sizes[letter]))),
            )


def check_appended_keys(position: Position | None, global_projections: bool, append: bool) -> None:
    """Check that appended keys and global projections fit the position encoding."""
    inside = position is not None and bool(position.stages - {Stage.INPUT})
    name = type(position).__name__
    if inside and append:
        raise BadValue(
            "position: {name} needs a position for each key, but keys appended by add_bias_kv and "
            "add_zero_attn have none; leave both options out, or use a position encoding that is "
            "added to the input, such as hw.Sinusoidal(embed_dim)",
            name=name,
        )
    if global_projections and (inside or append):
        raise BadValue(
            "global_projections: it cannot be combined with {other}; leave one of the two out, or "
            "use a position encoding that is added to the input, such as hw.Learned(...)",
            other=name if inside else "add_bias_kv or add_zero_attn",
        )


def check_inputs(inputs: tuple[Tensor, ...], sizes: tuple[int, ...], is_batch_first: bool) -> None:
    """Check that query, key and value fit the module and one another.

    ``sizes`` contains embed_dim, kdim and vdim. Batched inputs are (B, L, ·) with
    ``is_batch_first``, otherwise (L, B, ·).
    """
    for name, x, size in zip(INPUTS, inputs, sizes, strict=True):
        if not isinstance(x, Tensor):
            raise BadType("{name}: expected a tensor, got {type}", name=name, type=type(x).__name__)
        if x.is_nested:
            raise BadValue(
                "{name}: expected a dense tensor, got a nested tensor; use "
                "x.to_padded_tensor(0.0) with key_padding_mask",
                name=name,
            )
        if x.dim() not in (2, 3):
            raise BadValue(
                "{name}: expected two axes (length, size), or three with a batch axis, got shape "
                "{shape}",
                name=name,
                shape=tuple(x.shape),
            )
        if x.shape[-1] != size:
            raise BadValue(
                "{name}: expected a last axis of size {argument}={size}, got shape {shape}; create "
                "the module with {argument}={last}, or project the input first",
                name=name,
                argument=SIZES[name],
                size=size,
                shape=tuple(x.shape),
                last=x.shape[-1],
            )
    query, key, value = inputs
    if not query.dim() == key.dim() == value.dim():
        raise _disagree(Text("the number of axes"), inputs)
    batch, length = (0, 1) if is_batch_first else (1, 0)
    if query.dim() == 2:
        length = 0
    elif not query.shape[batch] == key.shape[batch] == value.shape[batch]:
        axes = "(B, L, E)" if is_batch_first else "(L, B, E)"
        layout = f"{axes} with batch_first={is_batch_first}"
        raise _disagree(Text("the batch size B, read as {layout},", layout=layout), inputs)
    if key.shape[length] != value.shape[length]:
        raise _disagree(Text("the length S of key and value"), inputs)


def check_dtypes(inputs: tuple[Tensor, ...], projections: tuple[nn.Module, ...]) -> None:
    """Check that the dtype of each input is that of its projection, unless autocast is on."""
    for i, (x, projection) in enumerate(zip(inputs, projections, strict=True)):
        if type(projection) is not nn.Linear or x.dtype == projection.weight.dtype:
            continue
        if not torch.is_autocast_enabled(x.device.type):
            raise BadValue(
                "{name}: expected {expected}, the dtype of {projection}.weight, got {dtype}; "
                "use {name}.to({expected}) or module.to({dtype})",
                name=INPUTS[i],
                expected=projection.weight.dtype,
                projection=QKV[i],
                dtype=x.dtype,
            )


def check_beam_index(index: Tensor, batch: int, owner: Text) -> None:
    """Check that ``index``, which reorders beams, is an integer tensor (B',) from 0 to B - 1."""
    integers = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if not integers or index.dim() != 1:
        raise BadType(
            "index: expected an integer tensor (B,), the number of the old sample for each new "
            "sample, got {got}; pass for example torch.tensor([0, 0, 1])",
            got=tuple(index.shape) if isinstance(index, Tensor) else repr(index),
        )
    if bool(((index < 0) | (index >= batch)).any()):
        raise BadValue(
            "index: expected numbers from 0 of the {batch} samples in {owner}, got {index}; call "
            "reorder() before reset(), with the numbers of stored samples",
            owner=owner,
            batch=batch,
            index=index.tolist(),
        )


def _disagree(size: Text, inputs: Iterable[Tensor]) -> BadValue:
    shapes = (f"{name} {tuple(x.shape)}" for name, x in zip(INPUTS, inputs, strict=True))
    return BadValue(
        "query, key, value: {size} must agree, got {shapes}; either all three or none must have a "
        "batch axis, whose place batch_first sets",
        size=size,
        shapes=", ".join(shapes),
    )

"""Validation of the arguments of a `MultiheadAttention`, and its token and head layouts."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.lang import Text
from headwise.masks import Mask, appended, full
from headwise.nn.projections import QKV
from headwise.positions import Position, Stage


def to_batch_first(x: Tensor, is_batch_first: bool) -> Tensor:
    """(B, L, ·) of (L, ·), (B, L, ·) or (L, B, ·)."""
    if x.dim() == 2:
        return x[None]
    return x if is_batch_first else x.transpose(0, 1)


def from_batch_first(y: Tensor, query: Tensor, is_batch_first: bool) -> Tensor:
    """An output (B, L, ·) in the layout of the query."""
    if query.dim() == 2:
        return y[0]
    return y if is_batch_first else y.transpose(0, 1)


def split_heads(x: Tensor, dim: int) -> Tensor:
    """(B, L, heads·D) to (B, heads, L, D); under tensor parallelism the heads of this rank."""
    return torch.unflatten(x, -1, (-1, dim)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H·D)."""
    return x.transpose(1, 2).flatten(2)


def zero_padding(key: Tensor, value: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Key (B, n, kdim) and value (B, n, vdim) with zeros on padding, for finite gradients.

    ``real`` is (B or 1, S), False on padding; its last n columns are those of key and value.
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

    ``keys`` are k and v (B, G, S, D), ``learned`` bias_k and bias_v (1, 1, G·D).
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
    """(B, H, L, S), or the mean over heads (B, L, S); without B for unbatched inputs."""
    if weights is None:
        return None
    if average and weights.shape[1] != heads:
        raise BadValue(
            "average_attn_weights: this rank has {local} of {heads} heads, since the projections "
            "are sharded, and their mean is not that of all; use average_attn_weights=False or "
            "need_weights=False",
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
    """D, which is E / H where ``head_dim`` is None; also checks that G divides H."""
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
            "num_heads={num_heads}; set the size of a head, for example head_dim={example}",
            embed_dim=embed_dim,
            num_heads=num_heads,
            example=embed_dim // num_heads or 1,
        )
    return embed_dim // num_heads


def checked_mask(mask: Mask | None) -> Mask | None:
    """The mask, which must be a headwise mask or None."""
    if mask is None or isinstance(mask, Mask):
        return mask
    raise BadType(
        "mask: expected a headwise mask or None, got {mask_type}; for example "
        "hw.causal(), or hw.from_tensor(tensor), where True means may attend",
        mask_type=type(mask).__name__,
    )


def checked_module(name: str, module: nn.Module | None, example: str) -> nn.Module | None:
    """The submodule given as argument ``name``, which must be a module or None."""
    if module is None or isinstance(module, nn.Module):
        return module
    raise BadType(
        "{name}: expected a built module or None, got {module!r}; for example {example}",
        name=name,
        module=module,
        example=example,
    )


def check_position(position: Position | None, sizes: Mapping[str, set[int]]) -> None:
    """Check the type of a position, and the sizes that it requires against those of the module.

    E may have several sizes, of query, key and value.
    """
    if position is None:
        return
    name = type(position).__name__
    if not isinstance(position, Position):
        raise BadType(
            "position: expected a headwise position or None, got {position_type}; for "
            "example hw.Sinusoidal(embed_dim)",
            position_type=name,
        )
    for letter, size in position.expected_sizes().items():
        if sizes[letter] != {size}:
            raise BadValue(
                "position: {name} was made for {letter}={size}, the module has {letter}={got}; "
                "make it with the module's size, or leave it out where query, key and value differ",
                name=name,
                letter=letter,
                size=size,
                got=", ".join(map(str, sorted(sizes[letter]))),
            )


def check_appended_keys(position: Position | None, global_projections: bool, append: bool) -> None:
    """Refuse appended keys, which have no position, and global rows with a position inside."""
    inside = position is not None and bool(position.stages - {Stage.INPUT})
    name = type(position).__name__
    if inside and append:
        raise BadValue(
            "position: {name} needs the position of each key, and the keys that add_bias_kv "
            "and add_zero_attn append have none; leave them out, or use a position that is "
            "added to the input, such as hw.Sinusoidal(embed_dim)",
            name=name,
        )
    if global_projections and (inside or append):
        raise BadValue(
            "global_projections: expected no position inside attention and no appended keys, got "
            "{other}; leave one out, or use a position added to the input, such as hw.Learned(...)",
            other=name if inside else "add_bias_kv or add_zero_attn",
        )


def check_inputs(inputs: tuple[Tensor, ...], sizes: tuple[int, ...], is_batch_first: bool) -> None:
    """Check query, key and value against the module and against each other.

    ``sizes`` are embed_dim, kdim and vdim; the layout is (B, L, E), or else (L, B, E).
    """
    for name, x, size in zip(INPUTS, inputs, sizes, strict=True):
        if not isinstance(x, Tensor):
            raise BadType("{name}: expected a tensor, got {type}", name=name, type=type(x).__name__)
        if x.is_nested:
            raise BadValue(
                "{name}: expected a dense tensor, got a nested one; use "
                "x.to_padded_tensor(0.0) with key_padding_mask",
                name=name,
            )
        if x.dim() not in (2, 3):
            raise BadValue(
                "{name}: expected two axes (length, size) or three with a batch, got {shape}",
                name=name,
                shape=tuple(x.shape),
            )
        if x.shape[-1] != size:
            raise BadValue(
                "{name}: expected a last axis of size {argument}={size}, got {shape}; make "
                "the module with {argument}={last} or project the input first",
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
    """Check that each input has the dtype of its projection, unless autocast converts it."""
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
    """Check the index of a beam reorder: integers (B',), each from 0 to B - 1."""
    integers = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if not integers or index.dim() != 1:
        raise BadType(
            "index: expected integers (B,), for each new sample the old sample that it "
            "continues, got {got}; for example torch.tensor([0, 0, 1])",
            got=tuple(index.shape) if isinstance(index, Tensor) else repr(index),
        )
    if bool(((index < 0) | (index >= batch)).any()):
        raise BadValue(
            "index: {owner} holds {batch} samples, numbered from 0, got {index}; "
            "reorder before reset(), with numbers of the batch that it holds",
            owner=owner,
            batch=batch,
            index=index.tolist(),
        )


def _disagree(size: Text, inputs: Iterable[Tensor]) -> BadValue:
    shapes = (f"{name} {tuple(x.shape)}" for name, x in zip(INPUTS, inputs, strict=True))
    return BadValue(
        "query, key, value: {size} must agree, got {shapes}; all three have a batch axis or none "
        "has, and batch_first says which axis it is",
        size=size,
        shapes=", ".join(shapes),
    )

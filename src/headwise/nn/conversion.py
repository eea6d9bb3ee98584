"""Conversion of a model's attention to headwise and back, with the same weights.

An `nn.MultiheadAttention` is replaced by another module; a transformers model keeps its modules,
which call another function.
"""

from collections import Counter
from dataclasses import dataclass

from torch import nn

from headwise.attention import AUTO, check_engine
from headwise.errors import BadType, one_of
from headwise.lang import Text
from headwise.masks import Mask
from headwise.nn import huggingface
from headwise.nn.huggingface.attention_function import Settings
from headwise.nn.multihead_attention import MultiheadAttention
from headwise.nn.projections import PROJECTIONS, QKV
from headwise.nn.validation import checked_mask

LIBRARIES = ("headwise", "torch")  # the libraries that a model can be converted to
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PARTS = ("query_norm", "key_norm", "logit_scale", "gate")
EXTRAS = ("mask", "position", "sinks", "softcap", "global_proj", *PARTS)
"""The options that PyTorch's module does not have."""

Attention = nn.MultiheadAttention | MultiheadAttention


@dataclass(frozen=True)
class Conversion:
    """The result of `convert`.

    Attributes:
        model: the model; a new object only if the model itself was an attention.
        changed: names of the converted attentions, as in ``named_modules()``.
        left: names of the attentions that were not converted, each with the reason.
    """

    model: nn.Module
    changed: tuple[str, ...]
    left: tuple[tuple[str, Text], ...]

    def __str__(self) -> str:
        changed = (f"  {name or '(the model itself)'}" for name in self.changed)
        left = (f"  {name or '(the model itself)'}: {reason.en}" for name, reason in self.left)
        lines = (f"{len(self.changed)} changed", *changed, f"{len(self.left)} left", *left)
        return "\n".join(lines)


def convert(
    model: nn.Module, *, to: str = "headwise", mask: Mask | None = None, engine: str = AUTO
) -> Conversion:
    """Convert every attention of a model to headwise, or back to PyTorch.

    The model is changed in place. Its outputs stay the same unless a mask is given, except for the
    differences that ``docs/differences.md`` lists.

    Every `torch.nn.MultiheadAttention` becomes a `headwise.MultiheadAttention` with the same
    weights, ``requires_grad`` and training mode; one used in several places stays shared.
    Parameters are new objects: make the optimizer afterwards.

    Every transformers (>= 5) model in it gets the attention implementation "headwise"; its modules
    and parameters stay the same objects. An unknown option raises when the model runs. "torch"
    restores the earlier implementation.

    Args:
        model: any module.
        to: "headwise" or "torch".
        mask: for "headwise", a mask that holds in every converted attention from now on, together
            with those of the call; in transformers models not in cross-attention.
        engine: for "headwise", the engine, as in `headwise.attend`.

    Returns:
        The model, and the names of the attentions that were converted or not.

    Raises:
        BadType, BadValue: if an argument is wrong.

    Example:
        >>> import headwise as hw
        >>> encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> conversion = hw.convert(encoder, mask=hw.window(2, 2))
        >>> conversion.changed, type(encoder.self_attn).__name__
        (('self_attn',), 'MultiheadAttention')
        >>> print(hw.convert(encoder, to="torch"))
        0 changed
        1 left
          self_attn: PyTorch's module has no mask
    """
    if not isinstance(model, nn.Module):
        raise BadType(
            "model: expected a torch.nn.Module, got {model_type}", model_type=type(model).__name__
        )
    if to not in LIBRARIES:
        raise one_of("to", to, LIBRARIES)
    mask = checked_mask(mask)
    check_engine(engine)
    model, changed, left = _convert_modules(model, to, mask, engine)
    for name, module in huggingface.pretrained(model):
        if to == "headwise":
            switched, skipped = huggingface.switch(module, Settings("", mask, engine))
        else:
            switched, skipped = huggingface.restore(module)
        prefix = f"{name}." if name else ""
        changed += [(prefix + part).rstrip(".") for part in switched]
        left += [((prefix + part).rstrip("."), reason) for part, reason in skipped]
    return Conversion(model, tuple(changed), tuple(left))


def _convert_modules(
    model: nn.Module, to: str, mask: Mask | None, engine: str
) -> tuple[nn.Module, list[str], list[tuple[str, Text]]]:
    source = nn.MultiheadAttention if to == "headwise" else MultiheadAttention
    shared = _shared_parameters(model)
    new: dict[nn.Module, nn.Module] = {}
    changed, left = list[str](), list[tuple[str, Text]]()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, source):
            continue
        reason = _reason(module, shared)
        if reason is not None:
            left.append((name, reason))
            continue
        if module not in new:
            new[module] = _converted(module, mask, engine)
        changed.append(name)
        if not name:
            return new[module], changed, left
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, new[module])
    return model, changed, left


def _shared_parameters(model: nn.Module) -> set[int]:
    """The ids of parameters that belong to more than one module."""
    modules = model.modules()
    owners = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    return {number for number, count in owners.items() if count > 1}


def _reason(module: Attention, shared: set[int]) -> Text | None:
    """Why an attention cannot be converted, or None."""
    if type(module) not in (nn.MultiheadAttention, MultiheadAttention):
        name = type(module).__name__
        return Text("{name} is a subclass, which may compute otherwise", name=name)
    if any(getattr(part, hooks) for part in module.modules() for hooks in HOOKS):
        return Text("it has hooks, which would be lost; convert first, then register them")
    if any(id(parameter) in shared for parameter in module.parameters()):
        return Text("it shares a parameter with another module, which conversion would end")
    return _unsupported(module) if isinstance(module, MultiheadAttention) else None


def _unsupported(module: MultiheadAttention) -> Text | None:
    """The first feature of a headwise module that PyTorch's module does not have, or None."""
    for name in EXTRAS:
        if getattr(module, name) is not None:
            return Text("PyTorch's module has no {name}", name=name)
    if any(type(getattr(module, name)) is not nn.Linear for name in PROJECTIONS):
        return Text("a projection is no plain nn.Linear")
    if module.num_kv_heads != module.num_heads or module.rows[0] != module.embed_dim:
        return Text("PyTorch's heads fill embed_dim and share no keys")
    for kind in ("weight", "bias") if module.packs else ("bias",):
        if len({p.requires_grad for p in _qkv(module, kind) if p is not None}) > 1:
            return Text("PyTorch packs q, k and v, and here only some of them are frozen")
    return None


def _qkv(module: Attention, kind: str) -> list[nn.Parameter | None]:
    """The weights or biases of q, k and v; where they are packed, three times the packed one."""
    if isinstance(module, MultiheadAttention):
        return [getattr(getattr(module, name), kind) for name in QKV]
    packed = getattr(module, f"in_proj_{kind}")
    if packed is None and kind == "weight":
        return [getattr(module, f"{name}_weight") for name in QKV]
    return [packed] * 3


def _converted(module: Attention, mask: Mask | None, engine: str) -> Attention:
    """The module of the other library with the same weights, mode and ``requires_grad``."""
    dtype = module.out_proj.weight.dtype
    bias, bias_kv = _qkv(module, "bias")[0] is not None, module.bias_k is not None
    options = (module.add_zero_attn, module.kdim, module.vdim, module.batch_first, "meta", dtype)
    arguments = (module.embed_dim, module.num_heads, module.dropout, bias, bias_kv, *options)
    new: Attention
    if isinstance(module, MultiheadAttention):
        new, state = nn.MultiheadAttention(*arguments), module.torch_state_dict()
    else:
        new = MultiheadAttention(*arguments, mask=mask, engine=engine)
        state = module.state_dict()
    new.to_empty(device=module.out_proj.weight.device)
    new.load_state_dict(state)
    new.train(module.training)
    originals = dict(module.named_parameters())
    targets = [*new.parameters(), *_qkv(new, "weight"), *_qkv(new, "bias")]
    sources = [originals.get(name) for name, _ in new.named_parameters()]
    sources += [*_qkv(module, "weight"), *_qkv(module, "bias")]
    for target, source in zip(targets, sources, strict=True):
        if target is not None and source is not None:
            target.requires_grad_(source.requires_grad)
    return new

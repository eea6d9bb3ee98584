"""Conversion of a model's attention to headwise and back, with the same weights.

`convert` replaces every `nn.MultiheadAttention` by a headwise module. A transformers model keeps
its modules, and these call headwise's attention function.
"""

from collections import Counter
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from headwise.attention import AUTO, check_engine
from headwise.errors import BadType, one_of
from headwise.lang import Text
from headwise.masks import Mask
from headwise.nn import huggingface, torch_compat
from headwise.nn.huggingface.attention_function import Settings
from headwise.nn.multihead_attention import MultiheadAttention
from headwise.nn.projections import PROJECTIONS, QKV
from headwise.nn.validation import checked_mask

LIBRARIES = ("headwise", "torch")  # the libraries that a model can be converted to
HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
LINEARS = (nn.Linear, NonDynamicallyQuantizableLinear)  # the latter is PyTorch's own out_proj
CONVERTED = "_made_by_convert"  # marks a module made by `convert`, which may set its options again
PARTS = ("query_norm", "key_norm", "logit_scale", "gate")
EXTRAS = ("mask", "position", "sinks", "softcap", "global_proj", *PARTS)
"""The options that PyTorch's module does not have."""

Attention = nn.MultiheadAttention | MultiheadAttention


@dataclass(frozen=True)
class Conversion:
    """The result of `convert`.

    Attributes:
        model: the converted model; a new object only if the model itself was an attention module.
        changed: names of the converted attention modules, as in ``named_modules()``.
        left: names of the attention modules that were not converted, each with the reason.
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
    """Convert every attention module of a model to headwise, or back to PyTorch.

    The model is changed in place; if an error is raised, nothing is changed. Without a ``mask``,
    the outputs stay the same except for the differences that ``docs/differences.md`` lists.

    Every `torch.nn.MultiheadAttention` becomes a `headwise.MultiheadAttention` with the same
    weights, ``requires_grad``, training mode and user-defined attributes. A module used in several
    places stays shared. The parameters are new objects, so create the optimizer afterwards. A
    module converted by an earlier call gets the mask and the engine of this call.

    Every transformers (>= 5) model inside ``model`` gets the attention implementation "headwise";
    its modules and parameters stay the same objects. An attention option unknown to headwise raises
    an error when the model runs. ``to="torch"`` restores the earlier implementation.

    Args:
        model: any module.
        to: "headwise" or "torch".
        mask: for "headwise", a mask that every converted attention module combines with the masks
            of each call; in transformers models it does not apply to cross-attention.
        engine: for "headwise", the engine, as in `headwise.attend`.

    Returns:
        The model, and the names of the converted and of the unconverted attention modules.

    Raises:
        BadType, BadValue: if an argument has a wrong type or value.

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
    kept = {name: reason for name, reason in reversed(left) if name not in changed}
    return Conversion(model, tuple(dict.fromkeys(changed)), tuple(reversed(kept.items())))


def _convert_modules(
    model: nn.Module, to: str, mask: Mask | None, engine: str
) -> tuple[nn.Module, list[str], list[tuple[str, Text]]]:
    source = nn.MultiheadAttention if to == "headwise" else MultiheadAttention
    shared = _shared_parameters(model)
    new: dict[nn.Module, nn.Module] = {}
    changed, left = list[str](), list[tuple[str, Text]]()
    modules = list(model.named_modules(remove_duplicate=False))
    for name, module in modules:
        if not isinstance(module, source):
            continue
        reason = _wrapped(model, name) or _reason(module, shared)
        if reason is not None:
            left.append((name, reason))
            continue
        if module not in new:
            new[module] = _converted(module, mask, engine)
        changed.append(name)
    if to == "headwise":  # from here on nothing can fail
        ours = [
            (name, module) for name, module in modules if isinstance(module, MultiheadAttention)
        ]
        again, others = _set_again(ours, mask, engine)
        changed, left = changed + again, left + others
    for name, module in modules:
        if module in new and not name:
            return new[module], changed, left
        if module in new:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, new[module])
    return model, changed, left


def _set_again(
    modules: list[tuple[str, MultiheadAttention]], mask: Mask | None, engine: str
) -> tuple[list[str], list[tuple[str, Text]]]:
    """Set mask and engine of modules that `convert` made; return set and unset modules' names."""
    changed, left = list[str](), list[tuple[str, Text]]()
    for name, module in modules:
        if hasattr(module, CONVERTED):
            module.mask, module.engine = mask, engine
            changed.append(name)
        elif mask is not None or engine != AUTO:
            left.append((name, Text("it is already a headwise module; set its mask and engine")))
    return changed, left


def _wrapped(model: nn.Module, name: str) -> Text | None:
    """Return the reason why an attention module inside an adapter cannot be converted, or None."""
    owner = model.get_submodule(name.rpartition(".")[0]) if name else None
    if owner is not None and type(owner).__module__.partition(".")[0] == "peft":
        return Text("a peft adapter reads its parameters; convert first, then add adapters")
    return None


def _shared_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that belong to more than one module."""
    modules = model.modules()
    owners = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    return {number for number, count in owners.items() if count > 1}


def _reason(module: Attention, shared: set[int]) -> Text | None:
    """Return the reason why an attention module cannot be converted, or None."""
    if type(module) not in (nn.MultiheadAttention, MultiheadAttention):
        name = type(module).__name__
        return Text("{name} is a subclass and may compute attention differently", name=name)
    if isinstance(module, nn.MultiheadAttention) and type(module.out_proj) not in LINEARS:
        name = f"{type(module.out_proj).__module__}.{type(module.out_proj).__name__}"
        return Text("out_proj is a {name} instead of a plain linear layer", name=name)
    if any(getattr(part, hooks) for part in module.modules() for hooks in HOOKS):
        return Text("it has hooks, which would be lost; convert first, then register them")
    if any(p._backward_hooks or _accumulate_hooks(p) for p in module.parameters()):
        return Text("a parameter has hooks, which would be lost; convert first, then register them")
    if any("forward" in vars(part) for part in module.modules()):
        return Text("its forward was replaced and may compute attention differently")
    if any(getattr(part, "qconfig", None) is not None for part in module.modules()):
        return Text("it is already prepared for quantisation; convert first, then prepare it")
    if any(id(parameter) in shared for parameter in module.parameters()):
        return Text("it shares a parameter with another module; conversion would end the sharing")
    if isinstance(module, MultiheadAttention):
        return _unsupported(module) or _unlike(module, nn.MultiheadAttention)
    return _unlike(module, MultiheadAttention)


def _accumulate_hooks(parameter: nn.Parameter) -> object:
    return getattr(parameter, "_post_accumulate_grad_hooks", None)


def _plain(kind: type[Attention]) -> Attention:
    """Create a module of a class with every optional parameter, without memory for data."""
    return kind(1, 1, add_bias_kv=True, device="meta")


def _unlike(module: Attention, target: type[Attention]) -> Text | None:
    """Describe the first addition to a module that conversion would lose, or return None."""
    plain, there = _plain(type(module)), vars(_plain(target)).keys()
    for kind in ("_parameters", "_buffers", "_modules"):
        for name in vars(module)[kind].keys() - vars(plain)[kind].keys():
            return Text("its class does not define {name}, whose use is unknown", name=name)
    for name in _own_attributes(module):
        if name in there:
            return Text("its attribute {name} has another meaning in the new module", name=name)
    return None


def _own_attributes(module: Attention) -> dict[str, object]:
    """Return the user-defined attributes of a module, which its class does not define."""
    usual = vars(_plain(type(module))).keys() | {CONVERTED, "bias_k", "bias_v"}
    return {name: value for name, value in vars(module).items() if name not in usual}


def _unsupported(module: MultiheadAttention) -> Text | None:
    """Describe the first feature of a module that PyTorch's module lacks, or return None."""
    for name in EXTRAS:
        if getattr(module, name) is not None:
            return Text("PyTorch's module has no {name}", name=name)
    if any(type(getattr(module, name)) is not nn.Linear for name in PROJECTIONS):
        return Text("a projection is not a plain nn.Linear")
    if module.num_kv_heads != module.num_heads or module.rows[0] != module.embed_dim:
        return Text("PyTorch's module needs H·D = embed_dim and no shared key/value heads")
    for kind in ("weight", "bias") if module.packs else ("bias",):
        packed = [p for p in _qkv(module, kind) if p is not None]
        if len({p.requires_grad for p in packed}) > 1:
            return Text("PyTorch packs q, k and v, but only some of these are frozen here")
        if len({(p.dtype, p.device) for p in packed}) > 1:
            return Text("PyTorch packs q, k and v, but their dtypes or devices differ here")
    return None


def _qkv(module: Attention, kind: str) -> list[nn.Parameter | None]:
    """Return the weights or biases of q, k and v; a packed parameter is listed three times."""
    if isinstance(module, MultiheadAttention):
        return [getattr(getattr(module, name), kind) for name in QKV]
    packed = getattr(module, f"in_proj_{kind}")
    if packed is None and kind == "weight":
        return [getattr(module, f"{name}_weight") for name in QKV]
    return [packed] * 3


def _converted(module: Attention, mask: Mask | None, engine: str) -> Attention:
    """Create the other library's module with equal weights, mode and ``requires_grad``."""
    bias, bias_kv = _qkv(module, "bias")[0] is not None, module.bias_k is not None
    options = (module.add_zero_attn, module.kdim, module.vdim, module.batch_first, "meta")
    arguments = (module.embed_dim, module.num_heads, module.dropout, bias, bias_kv, *options)
    new: Attention
    if isinstance(module, MultiheadAttention):
        new, state = nn.MultiheadAttention(*arguments), module.torch_state_dict()
    else:
        new, state = MultiheadAttention(*arguments, mask=mask, engine=engine), module.state_dict()
        torch_compat.unpack(new, state, "")
        setattr(new, CONVERTED, True)
    copies = {name: tensor.clone() for name, tensor in state.items()}  # `clone` keeps the dtypes
    new.load_state_dict(copies, assign=True)
    new.train(module.training)
    originals = dict(module.named_parameters())
    targets = [*new.parameters(), *_qkv(new, "weight"), *_qkv(new, "bias")]
    sources = [originals.get(name) for name, _ in new.named_parameters()]
    sources += [*_qkv(module, "weight"), *_qkv(module, "bias")]
    for target, source in zip(targets, sources, strict=True):
        if target is not None and source is not None:
            target.requires_grad_(source.requires_grad)
    for name, value in _own_attributes(module).items():
        setattr(new, name, value)
    return new

"""A model's attention exchanged for headwise's, and back, with the same weights.

An `nn.MultiheadAttention` becomes another module; a transformers model keeps its modules and calls
another function.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from headwise.attention import AUTO
from headwise.errors import BadType, one_of
from headwise.lang import Text
from headwise.masks import Mask
from headwise.nn import huggingface
from headwise.nn.huggingface.attention_function import Settings
from headwise.nn.multihead_attention import MultiheadAttention
from headwise.nn.projections import PROJECTIONS, QKV
from headwise.nn.validation import checked_engine, checked_mask

LIBRARIES = ("headwise", "torch")
"""Whose modules a model can be converted to."""

ITSELF = "(the model itself)"

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    Attributes:
        model: the model; another object than was given only if it was itself an attention.
        changed: names of the attentions that were exchanged, as in ``named_modules()``.
        left: names of attentions that stayed as they are, each with the reason.
    """

    model: nn.Module
    changed: tuple[str, ...]
    left: tuple[tuple[str, Text], ...]

    def __str__(self) -> str:
        changed = (f"  {name or ITSELF}" for name in self.changed)
        left = (f"  {name or ITSELF}: {why.en}" for name, why in self.left)
        counts = (f"{len(self.changed)} changed", f"{len(self.left)} left")
        return "\n".join((counts[0], *changed, counts[1], *left))


def convert(
    model: nn.Module, *, to: str = "headwise", mask: Mask | None = None, engine: str = AUTO
) -> Conversion:
    """Exchange every attention of a model for headwise's, or back.

    The model is changed in place; its outputs stay the same unless a mask is given, but for the
    differences that ``docs/differences.md`` lists.

    Every `torch.nn.MultiheadAttention` becomes a `headwise.MultiheadAttention`. Weights are copied,
    ``requires_grad`` and training mode are kept, and one attention used in several places stays
    one. Parameters are new objects: make the optimizer afterwards.

    Every transformers (>= 5) model in it is set to run on "headwise", registered as an attention
    implementation; its modules and parameters stay the same objects. What a model asks for and
    headwise does not know is refused when it runs. "torch" sets back what it ran on before.

    Args:
        model: any module.
        to: "headwise" or "torch".
        mask: for "headwise", a mask that holds in every converted attention from now on, beside
            what the call brings; in transformers models not where a decoder attends to an encoder.
        engine: for "headwise", which engine runs them, as in `headwise.attend`.

    Returns:
        The model and what was done to it; print it to read it.

    Raises:
        BadType, BadValue: if an argument is wrong.

    Example:
        >>> import headwise as hw
        >>> encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> done = hw.convert(encoder, mask=hw.window(2, 2))
        >>> done.changed, type(encoder.self_attn).__module__
        (('self_attn',), 'headwise.nn.multihead_attention')
        >>> print(hw.convert(encoder, to="torch"))
        0 changed
        1 left
          self_attn: PyTorch's module has no mask of its own
    """
    if not isinstance(model, nn.Module):
        raise BadType(
            "model: expected a torch.nn.Module, got {model_type}", model_type=type(model).__name__
        )
    if to not in LIBRARIES:
        raise one_of("to", to, LIBRARIES)
    mask, engine = checked_mask(mask), checked_engine(engine)
    wanted = nn.MultiheadAttention if to == "headwise" else MultiheadAttention
    shared = _shared(model)
    made: dict[nn.Module, nn.Module] = {}
    changed, left = list[str](), list[tuple[str, Text]]()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, wanted):
            continue
        reason = _reason(module, shared)
        if reason is not None:
            left.append((name, reason))
            continue
        if module not in made:
            made[module] = _made(module, mask, engine)
        changed.append(name)
        model = _put(model, name, made[module])
    for name, module in huggingface.pretrained(model):
        done = (
            huggingface.exchange(module, Settings("", mask, engine))
            if to == "headwise"
            else huggingface.restore(module)
        )
        changed += [_joined(name, each) for each in done.changed]
        left += [(_joined(name, each), why) for each, why in done.left]
    return Conversion(model, tuple(changed), tuple(left))


def _joined(owner: str, name: str) -> str:
    return ".".join(part for part in (owner, name) if part)


def _made(module: nn.Module, mask: Mask | None, engine: str) -> nn.Module:
    if isinstance(module, MultiheadAttention):
        return _theirs(module)
    return _ours(cast("nn.MultiheadAttention", module), mask, engine)


def _put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """The model with a module in a place of it."""
    if not name:
        return module
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, module)
    return model


def _shared(model: nn.Module) -> set[int]:
    """Parameters that more than one module holds, by identity."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return {number for number, count in owners.items() if count > 1}


def _reason(module: nn.Module, shared: set[int]) -> Text | None:
    """Why an attention cannot be exchanged, or None."""
    if type(module) not in (nn.MultiheadAttention, MultiheadAttention):
        name = type(module).__name__
        return Text("{name} is a class of its own, and may compute otherwise", name=name)
    if any(getattr(each, hooks) for each in module.modules() for hooks in HOOKS):
        return Text("it has hooks, which would be lost; convert first, then register them")
    if any(id(parameter) in shared for parameter in module.parameters()):
        return Text("it shares a parameter with another module, and would no longer")
    return _beyond(module) if isinstance(module, MultiheadAttention) else None


def _beyond(module: MultiheadAttention) -> Text | None:
    """What a module of headwise has and PyTorch's has not, or None."""
    plain = all(type(getattr(module, name)) is nn.Linear for name in PROJECTIONS)
    shared = module.num_kv_heads != module.num_heads
    rules = (
        (module.mask is not None, Text("PyTorch's module has no mask of its own")),
        (module.position is not None, Text("PyTorch's module has no position")),
        (module.sinks is not None, Text("PyTorch's module has no sinks")),
        (
            module.global_proj is not None,
            Text("PyTorch's module has no projections of global tokens"),
        ),
        *_parts(module),
        (not plain, Text("a projection is no plain nn.Linear")),
        (
            shared or module.rows[0] != module.embed_dim,
            Text("PyTorch's heads fill embed_dim and share no keys"),
        ),
        (
            plain and _differ(module),
            Text("PyTorch packs q, k and v, and here some are frozen and others not"),
        ),
    )
    return next((reason for holds, reason in rules if holds), None)


def _parts(module: MultiheadAttention) -> list[tuple[bool, Text]]:
    """The built parts that PyTorch's module has not, each with whether it is there."""
    names = ("query_norm", "key_norm", "logit_scale", "gate")
    return [
        (getattr(module, name) is not None, Text("PyTorch's module has no {name}", name=name))
        for name in names
    ]


def _differ(module: MultiheadAttention) -> bool:
    """Whether parameters that PyTorch packs are not all frozen or all trained."""
    kinds = ("weight", "bias") if module.packs else ("bias",)
    return any(
        len({p.requires_grad for p in _of(module, kind) if p is not None}) > 1 for kind in kinds
    )


def _of(module: MultiheadAttention, kind: str) -> list[nn.Parameter | None]:
    return [getattr(getattr(module, name), kind) for name in QKV]


def _ours(module: nn.MultiheadAttention, mask: Mask | None, engine: str) -> MultiheadAttention:
    made = MultiheadAttention(
        *_arguments(module, module.in_proj_bias is not None), mask=mask, engine=engine
    )
    _fill(made, module)
    packed = module.in_proj_weight
    for name in QKV:
        projection = getattr(made, name)
        source = getattr(module, f"{name}_weight") if packed is None else packed
        projection.weight.requires_grad_(source.requires_grad)
        if projection.bias is not None:
            projection.bias.requires_grad_(module.in_proj_bias.requires_grad)
    return made


def _theirs(module: MultiheadAttention) -> nn.MultiheadAttention:
    made = nn.MultiheadAttention(*_arguments(module, module.q_proj.bias is not None))
    _fill(made, module)
    if module.packs:
        made.in_proj_weight.requires_grad_(module.q_proj.weight.requires_grad)
    else:
        for name in QKV:
            own = getattr(made, f"{name}_weight")
            own.requires_grad_(getattr(module, name).weight.requires_grad)
    if made.in_proj_bias is not None:
        made.in_proj_bias.requires_grad_(module.q_proj.bias.requires_grad)
    return made


Arguments = tuple[int, int, float, bool, bool, bool, int | None, int | None, bool, str, torch.dtype]


def _arguments(module: nn.MultiheadAttention | MultiheadAttention, bias: bool) -> Arguments:
    """What both constructors are called with, their positional arguments; without memory yet."""
    return (
        module.embed_dim,
        module.num_heads,
        module.dropout,
        bias,
        module.bias_k is not None,
        module.add_zero_attn,
        module.kdim,
        module.vdim,
        module.batch_first,
        "meta",
        module.out_proj.weight.dtype,
    )


def _fill(made: nn.Module, source: nn.MultiheadAttention | MultiheadAttention) -> None:
    """Weights and mode, and what both have by one name is trained or not; nothing is drawn."""
    made.to_empty(device=source.out_proj.weight.device)
    made.load_state_dict(source.state_dict())
    made.train(source.training)
    named = dict(source.named_parameters())
    for name, parameter in made.named_parameters():
        if name in named:
            parameter.requires_grad_(named[name].requires_grad)

"""What engines with a backward of their own have to know of other derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from headwise.call import Call
from headwise.lang import Text
from headwise.positions import Position

PlainFunction = Callable[[list[Tensor | None]], Sequence[Tensor]]
"""The same results by operations that can be differentiated to any order."""


def transformed(call: Call) -> bool:
    """Whether somebody differentiates or maps by torch.func, or in forward mode.

    While compiling nobody does: what is compiled cannot be asked, and has rules of its own.
    """
    if torch.compiler.is_compiling():
        return False
    if mapped():
        return True
    unpack: Callable[[Tensor], tuple[Tensor, Tensor | None]] = forward_ad.unpack_dual
    inputs = (call.q, call.k, call.v, *call.position.parameters())
    return any(unpack(each)[1] is not None for each in inputs)


def mapped() -> bool:
    """Whether somebody differentiates or maps by torch.func, of which the compiler knows too."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def with_frozen_tensors(position: Position) -> Position:
    """The same with the tensors that it holds now, for a backward that asks it again.

    By then others may stand in their places: `torch.func.functional_call` puts them there for the
    forward only.
    """
    kept: Position = _holding(position)
    return kept


def _holding(module: Any) -> Any:
    if not (module._parameters or module._buffers or module._modules):
        return module
    own = module.__new__(type(module))
    own.__dict__ = dict(module.__dict__)
    for name in ("_parameters", "_buffers"):
        own.__dict__[name] = dict(own.__dict__[name])
    own.__dict__["_modules"] = {
        name: each if each is None else _holding(each) for name, each in module._modules.items()
    }
    return own


def no_transform_rule() -> Text:
    """The reason of an engine that refuses a call because it is `transformed`."""
    return Text("it has no rule for torch.func transforms and forward-mode derivatives")


def gradients_by(
    plain: PlainFunction,
    inputs: Sequence[Tensor | None],
    wanted: Sequence[bool],
    gradients: Sequence[Tensor | None],
    beside: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """The gradients by plain operations, to be differentiated again where gradients are on.

    Args:
        plain: what gives the results from the inputs.
        inputs: of the engine's function.
        wanted: which of them and of those beside want a gradient; the others' is None.
        gradients: of its results, None for 0.
        beside: leaves that ``plain`` reads without being given them.
    """
    more = torch.is_grad_enabled()
    with torch.enable_grad():
        pairs = zip(inputs, wanted, strict=False)
        given = [each if each is None else _leaf(each, want, more) for each, want in pairs]
        results = zip(plain(given), gradients, strict=True)
        known = [(x, grad) for x, grad in results if grad is not None and x.requires_grad]
    every = (*given, *beside)
    chosen = [x for x, want in zip(every, wanted, strict=True) if want and x is not None]
    if not known or not chosen:
        return [None for _ in every]
    outputs, grads = zip(*known, strict=True)
    found = iter(torch.autograd.grad(outputs, chosen, grads, create_graph=more, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def _leaf(rows: Tensor, wanted: bool, more: bool) -> Tensor:
    """The same numbers, to take a gradient for: on the way of later gradients, or alone."""
    return rows.view_as(rows) if more else rows.detach().requires_grad_(wanted)

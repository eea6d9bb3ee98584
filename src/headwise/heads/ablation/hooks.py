"""Hooks that read and replace the outputs of heads in a forward pass.

The input of the output projection is the concatenation of the head outputs, so a pre-hook on the
projection can change each head. `torch.nn.MultiheadAttention` does not call its projection as a
module. Inside the context, its ``forward`` is therefore that of a `headwise.MultiheadAttention`
with views of the same parameters: nothing is copied, and gradients reach the original parameters.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headwise.errors import BadValue
from headwise.heads.ablation.sites import Site
from headwise.heads.names import Layer
from headwise.nn import MultiheadAttention
from headwise.nn.projections import attribute

TWIN = "headwise_twin"  # the attribute that holds the replacement module inside the context
NAMES = ("q_proj", "k_proj", "v_proj")


@contextmanager
def through_ours(module: nn.MultiheadAttention) -> Iterator[MultiheadAttention]:
    """Replace the ``forward`` of a module by headwise's; yield the replacement module.

    PyTorch's encoder layers bypass ``forward`` in eval mode unless the module has hooks, so an
    empty hook is registered. Nested contexts yield the same replacement module.
    """
    active = module.__dict__.get(TWIN)
    if active is not None:
        yield active
        return
    twin = MultiheadAttention(
        module.embed_dim,
        module.num_heads,
        module.dropout,
        module.in_proj_bias is not None,
        module.bias_k is not None,
        module.add_zero_attn,
        module.kdim,
        module.vdim,
        module.batch_first,
        "meta",
        module.out_proj.weight.dtype,
    )

    def _run(*args: Any, **kwargs: Any) -> Any:
        return functional_call(twin, _views(module), args, kwargs)

    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(lambda *_: None).remove)
        stack.callback(module.__dict__.pop, "forward")
        stack.callback(module.__dict__.pop, TWIN)
        module.__dict__.update({"forward": _run, TWIN: twin})
        yield twin.train(module.training)


@contextmanager
def unnested(model: nn.Module) -> Iterator[None]:
    """Disable nested tensors in PyTorch's encoders, since only their fast path supports them.

    Without nested tensors, the output at padding positions is not 0.
    """
    encoders = [module for module in model.modules() if isinstance(module, nn.TransformerEncoder)]
    nested = [encoder for encoder in encoders if getattr(encoder, "use_nested_tensor", False)]
    for encoder in nested:
        encoder.use_nested_tensor = False
    try:
        yield
    finally:
        for encoder in nested:
            encoder.use_nested_tensor = True


def _views(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """Return the parameters of headwise's module as views of those of PyTorch's module."""
    weights: Sequence[Tensor] = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    views = {f"{name}.weight": tensor for name, tensor in zip(NAMES, weights, strict=True)}
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(3)
        views |= {f"{name}.bias": tensor for name, tensor in zip(NAMES, biases, strict=True)}
    views |= {f"out_proj.{name}": tensor for name, tensor in module.out_proj.named_parameters()}
    extra = {"bias_k": module.bias_k, "bias_v": module.bias_v}
    return views | {name: tensor for name, tensor in extra.items() if tensor is not None}


Edit = Callable[[Layer, Tensor], Tensor | None]
"""A function from a layer and its head outputs (..., L, H, Dv) to new outputs; None: no change."""

Change = Callable[[Tensor], Tensor | None]  # an `Edit` of one attention module


@contextmanager
def tapped(
    model: nn.Module,
    attentions: tuple[Site, ...],
    layers: Collection[Layer],
    edit: Edit,
    *,
    queries: bool = False,
) -> Iterator[None]:
    """Call ``edit`` with the head outputs of ``layers`` in every forward pass of a model.

    If ``queries`` is true, edit the projected queries (..., L, H, D) instead of the outputs.
    """
    calls = _Calls(layers, edit)
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(calls.begin).remove)
        stack.callback(model.register_forward_hook(calls.end, always_call=True).remove)
        stack.enter_context(unnested(model))
        for site in attentions:
            if not set(site.layers) & set(layers):
                continue
            owner = site.module
            if isinstance(owner, nn.MultiheadAttention):
                owner = stack.enter_context(through_ours(owner))
            register = _hook_queries if queries else _hook_outputs
            stack.callback(register(site, owner, partial(calls.change, site)).remove)
        yield


class _Calls:
    """Counts the calls of each attention module, because ALBERT's layers share one module."""

    def __init__(self, layers: Collection[Layer], edit: Edit) -> None:
        self._layers, self._edit = layers, edit
        self._calls: Counter[int] = Counter()
        self._inside = False

    def begin(self, model: nn.Module, args: Any) -> None:
        self._calls.clear()
        self._inside = True

    def end(self, model: nn.Module, args: Any, output: Any) -> None:
        self._inside = False

    def change(self, site: Site, heads: Tensor) -> Tensor | None:
        """Return the edited heads of the current call; None if its layer is not edited."""
        layer = self._layer(site)
        return self._edit(layer, heads) if layer in self._layers else None

    def _layer(self, site: Site) -> Layer:
        """Return the layer of the current call, also if only a part of the model runs."""
        number = self._calls[id(site)]
        self._calls[id(site)] += 1
        if self._inside and number >= len(site.layers):
            raise BadValue(
                "model: {site_name} was called {number_plus_1} times in one forward pass, but has "
                "only the layers {map}; the calls cannot be assigned to layers",
                site_name=site.name,
                number_plus_1=number + 1,
                map=", ".join(map(str, site.layers)),
            )
        return site.layers[number % len(site.layers)]


def _hook_outputs(site: Site, owner: nn.Module, change: Change) -> Any:
    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        del module
        new = change(torch.unflatten(args[0], -1, (site.heads, site.size)))
        return None if new is None else (new.flatten(-2), *args[1:])

    path = "out_proj" if site.architecture is None else site.architecture.out
    return owner.get_submodule(path).register_forward_pre_hook(before)


def _hook_queries(site: Site, owner: nn.Module, change: Change) -> Any:
    """Register a hook after the query projection, which may be part of a fused projection."""
    architecture = site.architecture
    path, parts, by_head = "q_proj", 1, False
    if architecture is not None:
        path, by_head = architecture.fused or architecture.projections[0], architecture.by_head
        parts = 3 if architecture.fused else 1
    sizes = (site.heads, parts, site.size) if by_head else (parts, site.heads, site.size)
    axis = -2 if by_head else -3

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        del module, args
        pieces = torch.unflatten(output, -1, sizes).unbind(axis)
        changed = change(pieces[0])
        return None if changed is None else torch.stack((changed, *pieces[1:]), axis).flatten(-3)

    projection = attribute(owner, path)
    assert isinstance(projection, nn.Module)  # noqa: S101 - true of every architecture
    return projection.register_forward_hook(after)

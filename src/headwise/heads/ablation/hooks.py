"""PyTorch's own attention run through headwise's for a while, so that its heads can be reached.

`torch.nn.MultiheadAttention` computes everything in one function: no module is called between its
heads and its output projection, where a hook could stand. Meanwhile its ``forward`` is that of a
`headwise.MultiheadAttention` without parameters of its own, which is lent views of the original's:
gradients arrive at the original, and nothing is copied.


Reach into a running model where its heads stand side by side, and change what they give.

The output projection's input is what the heads of a layer put out, one after the other: a hook
there sees each head alone. The rest of the model runs as it is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headwise.errors import BadValue
from headwise.heads.ablation.sites import Site
from headwise.heads.names import Layer
from headwise.nn import MultiheadAttention
from headwise.nn.projections import attribute

TWIN = "headwise_twin"
"""The attribute in which the module that is called instead is kept meanwhile."""

NAMES = ("q_proj", "k_proj", "v_proj")


@contextmanager
def through_ours(module: nn.MultiheadAttention) -> Iterator[MultiheadAttention]:
    """Run a module through headwise's while this is open; yields the one that is called.

    PyTorch's encoder layers bypass a module's ``forward`` in evaluation, but not one with hooks:
    it has one meanwhile. Opened again inside, it yields the same.
    """
    running = module.__dict__.get(TWIN)
    if running is not None:
        yield running
        return
    twin = _twin(module)

    def _run(*args: Any, **kwargs: Any) -> Any:
        return functional_call(twin, _lent(module), args, kwargs)

    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(_nothing).remove)
        stack.callback(module.__dict__.pop, "forward")
        stack.callback(module.__dict__.pop, TWIN)
        module.__dict__.update({"forward": _run, TWIN: twin})
        yield twin.train(module.training)


@contextmanager
def unnested(model: nn.Module) -> Iterator[None]:
    """Keep PyTorch's encoders from packing padded texts, which only their fast path reads.

    Rows of padding, which are 0 there, have numbers meanwhile.
    """
    packing = [
        module
        for module in model.modules()
        if isinstance(module, nn.TransformerEncoder) and getattr(module, "use_nested_tensor", False)
    ]
    for module in packing:
        module.use_nested_tensor = False
    try:
        yield
    finally:
        for module in packing:
            module.use_nested_tensor = True


def _nothing(module: nn.Module, args: Any) -> None:
    del module, args


def _twin(module: nn.MultiheadAttention) -> MultiheadAttention:
    return MultiheadAttention(
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


def _lent(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """Headwise's parameters by name, as views of the module's."""
    weights = (
        (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        if module.in_proj_weight is None
        else module.in_proj_weight.chunk(3)
    )
    lent = {f"{name}.weight": each for name, each in zip(NAMES, weights, strict=True)}
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(3)
        lent |= {f"{name}.bias": each for name, each in zip(NAMES, biases, strict=True)}
    lent |= {f"out_proj.{name}": each for name, each in module.out_proj.named_parameters()}
    extra = {"bias_k": module.bias_k, "bias_v": module.bias_v}
    return lent | {name: each for name, each in extra.items() if each is not None}


Edit = Callable[[Layer, Tensor], Tensor | None]
"""Given a layer and what its heads put out (..., L, H, Dv): what they shall put out instead, or
None to leave it."""


@contextmanager
def tapped(
    model: nn.Module,
    found: tuple[Site, ...],
    layers: Collection[Layer],
    edit: Edit,
    *,
    queries: bool = False,
) -> Iterator[None]:
    """Let an edit see, and change, the heads of some layers in every pass of a model.

    Args:
        model: the model, which is left as it was.
        found: its attentions.
        layers: which layers the edit is shown.
        edit: called once a layer in every pass.
        queries: whether it is shown the heads' queries (..., L, H, D), as they come out of their
            projection, and not what the heads put out.
    """
    calls = _Calls()
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(calls.begin).remove)
        stack.callback(model.register_forward_hook(calls.end, always_call=True).remove)
        stack.enter_context(unnested(model))
        for site in found:
            if not set(site.layers) & set(layers):
                continue
            owner = site.module
            if isinstance(owner, nn.MultiheadAttention):
                owner = stack.enter_context(through_ours(owner))
            place = _queries if queries else _outputs
            stack.callback(place(site, owner, _counted(site, calls, layers, edit)).remove)
        yield


class _Calls:
    """Which call of an attention it is in this pass: ALBERT runs one attention once a layer."""

    def __init__(self) -> None:
        self._made: Counter[int] = Counter()
        self._inside = False

    def begin(self, model: nn.Module, args: Any) -> None:
        del model, args
        self._made.clear()
        self._inside = True

    def end(self, model: nn.Module, args: Any, output: Any) -> None:
        del model, args, output
        self._inside = False

    def layer(self, site: Site) -> Layer:
        """The layer that an attention serves now; a part of the model may be run by itself."""
        number = self._made[id(site)]
        self._made[id(site)] += 1
        if self._inside and number >= len(site.layers):
            raise BadValue(
                "model: it runs {site_name} {number_plus_1} times in one pass, and here "
                "that attention is known as {map} only; its heads cannot be told apart "
                "by layer",
                site_name=site.name,
                number_plus_1=number + 1,
                map=", ".join(map(str, site.layers)),
            )
        return site.layers[number % len(site.layers)]


def _counted(
    site: Site, calls: _Calls, layers: Collection[Layer], edit: Edit
) -> Callable[[Tensor], Tensor | None]:
    """The edit of one call's heads, or None where it is of no layer that was asked for."""

    def change(heads: Tensor) -> Tensor | None:
        layer = calls.layer(site)
        return edit(layer, heads) if layer in layers else None

    return change


def _outputs(site: Site, owner: nn.Module, change: Callable[[Tensor], Tensor | None]) -> Any:
    """A hook before the output projection."""
    path = "out_proj" if site.architecture is None else site.architecture.out

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        del module
        new = change(torch.unflatten(args[0], -1, (site.heads, site.size)))
        return None if new is None else (new.flatten(-2), *args[1:])

    return owner.get_submodule(path).register_forward_pre_hook(before)


def _queries(site: Site, owner: nn.Module, change: Callable[[Tensor], Tensor | None]) -> Any:
    """A hook after the projection of the queries, alone or as a part of one matrix."""
    architecture = site.architecture
    path = "q_proj" if architecture is None else architecture.fused or architecture.projections[0]
    by_head = architecture is not None and architecture.by_head
    parts = 3 if architecture is not None and architecture.fused else 1
    sizes = (site.heads, parts, site.size) if by_head else (parts, site.heads, site.size)
    axis = -2 if by_head else -3

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        del module, args
        each = torch.unflatten(output, -1, sizes).unbind(axis)
        new = change(each[0])
        return None if new is None else torch.stack((new, *each[1:]), axis).flatten(-3)

    projection = attribute(owner, path)
    assert isinstance(projection, nn.Module)  # noqa: S101 - the architecture fits
    return projection.register_forward_hook(after)

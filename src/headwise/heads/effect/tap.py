"""Reach into a running model where its heads stand side by side, and change what they give.

The output projection's input is what the heads of a layer put out, one after the other: a hook
there sees each head alone. The rest of the model runs as it is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.effect.sites import Site
from headwise.heads.effect.torch_attention import through_ours, unnested
from headwise.heads.names import Layer
from headwise.nn.projections import attribute

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

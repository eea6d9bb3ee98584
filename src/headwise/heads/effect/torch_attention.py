"""PyTorch's own attention run through headwise's for a while, so that its heads can be reached.

`torch.nn.MultiheadAttention` computes everything in one function: no module is called between its
heads and its output projection, where a hook could stand. Meanwhile its ``forward`` is that of a
`headwise.MultiheadAttention` without parameters of its own, which is lent views of the original's:
gradients arrive at the original, and nothing is copied.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from headwise.nn import MultiheadAttention

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

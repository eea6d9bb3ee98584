"""Locate the attention inside a user's module, and bypass the norms around it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn

from headwise.errors import BadFile
from headwise.verify.oracle.jobs import Weights
from headwise.verify.target.calls.signature import read_signature
from headwise.verify.target.parameters.parameter_names import bind

LONGFORMER = ("transformers.models.longformer.modeling_longformer", "LongformerSelfAttention")


class Longformer(nn.Module):
    """transformers' Longformer without global tokens; pads the sequence as the model around it."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.num_heads = attention.num_heads

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, L, E) to the same."""
        batch, length, _ = hidden_states.shape
        window = 2 * int(self.attention.one_sided_attn_window_size)  # type: ignore[arg-type]
        more = max(window, -(-length // window) * window) - length
        padded = nn.functional.pad(hidden_states, (0, 0, 0, more))
        hidden = torch.arange(length + more, device=padded.device).expand(batch, -1) >= length
        output: Tensor = self.attention(
            padded,
            attention_mask=padded.new_zeros(hidden.shape).masked_fill(hidden, -10000.0),
            is_index_masked=hidden,
            is_index_global_attn=torch.zeros_like(hidden),
            is_global_attn=False,
        )[0]
        return output[:, :length]


def wrap_known_module(module: nn.Module) -> nn.Module:
    """The module, wrapped where it is one of the modules listed here."""
    name = (type(module).__module__, type(module).__name__)
    return Longformer(module) if name == LONGFORMER else module


NORM = re.compile(r"(?i)(^|[._])(layer_?norm|norm\d*|ln(_?\w+)?|rms_?norm)\.(weight|bias)$")
"""Parameters of a norm around an attention."""
INNER = re.compile(r"(?i)[qk]_?(layer)?norm")
"""Parameters of a norm of q or k, which is inside the attention."""


def norms(module: nn.Module) -> tuple[str, ...]:
    """The paths of the norms in a module that are not of q or k."""
    names = (name for name, _ in module.named_parameters())
    result = (n.rpartition(".")[0] for n in names if NORM.search(n) and not INNER.search(n))
    return tuple(dict.fromkeys(path for path in result if path))


@contextmanager
def bypassed(module: nn.Module, paths: tuple[str, ...]) -> Iterator[None]:
    """A context in which the submodules at these paths return their input."""
    inner = map(module.get_submodule, paths)
    handles = [m.register_forward_hook(lambda _m, args, _y: args[0]) for m in inner]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_attention(module: nn.Module, weights: Weights, heads: int) -> str:
    """The path of the only attention inside a module; empty where there is none or several."""
    result: list[str] = []
    for path, inner in module.named_modules():
        inside = not path or any(path.startswith(f"{other}.") for other in result)
        if not inside and not norms(inner) and is_attention(inner, weights, heads):
            result.append(path)
    return result[0] if len(result) == 1 else ""


def is_attention(module: nn.Module, weights: Weights, heads: int) -> bool:
    """Whether a module is an attention that can be called."""
    try:
        bind(module, weights, heads)
        read_signature(module.forward, "forward")
    except BadFile:
        return False
    return True


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself in float32, else a copy in another dtype."""
    return module if dtype == torch.float32 else deepcopy(module).to(dtype)

"""The attention inside of a layer: where it stands among the layer's modules."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from headwise.errors import BadFile
from headwise.verify.binding import bind
from headwise.verify.calling import read_signature
from headwise.verify.jobs import Weights

NORM = re.compile(r"(?i)(^|[._])(layer_?norm|norm\d*|ln(_?\w+)?|rms_?norm)\.(weight|bias)$")
"""Parameters of a norm around an attention."""
INNER = re.compile(r"(?i)[qk]_?(layer)?norm")
"""Those of a norm of q or k, which stands inside."""


def surrounded(module: nn.Module) -> bool:
    """Whether a module holds more than an attention: a norm that is not of q or k."""
    return bool(norms(module))


def norms(module: nn.Module) -> tuple[str, ...]:
    """The paths of the norms in a module that are not of q or k."""
    names = (name for name, _ in module.named_parameters())
    found = (n.rpartition(".")[0] for n in names if NORM.search(n) and not INNER.search(n))
    return tuple(dict.fromkeys(path for path in found if path))


@contextmanager
def without(module: nn.Module, paths: tuple[str, ...]) -> Iterator[None]:
    """The module with what stands at these paths handing on what it is given."""
    handles = [
        module.get_submodule(path).register_forward_hook(lambda _m, args, _y: args[0])
        for path in paths
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def reached(module: nn.Module, weights: Weights, heads: int) -> str:
    """The path of the one attention inside of a module; empty where there is none, or several."""
    found: list[str] = []
    for path, inner in module.named_modules():
        inside = any(path.startswith(f"{other}.") for other in found)
        if path and not inside and not surrounded(inner) and attends(inner, weights, heads):
            found.append(path)
    return found[0] if len(found) == 1 else ""


def attends(module: nn.Module, weights: Weights, heads: int) -> bool:
    """Whether a module is an attention that could be called."""
    try:
        bind(module, weights, heads)
        read_signature(module.forward, "forward")
    except BadFile:
        return False
    return True

"""The attention inside of a layer: where it stands among the layer's modules."""

import re

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
    names = (name for name, _ in module.named_parameters())
    return any(
        NORM.search(name) and not re.search(r"(?i)[qk]_?(layer)?norm", name) for name in names
    )


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

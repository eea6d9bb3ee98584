"""When what a mask draws from a seed has to be drawn by an operator of its own."""

from collections.abc import Callable

import torch


def needs_operator() -> bool:
    """Whether `torch.compile` traces, or `torch.func` maps or differentiates, what runs now.

    The one cannot follow a generator that is made on the way, the other takes what is drawn from it
    for randomness that its caller did not ask for. An operator is one node for both.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    active: Callable[[], bool] | None = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and active()

"""The same network with random weights: what its heads show comes from its shape alone."""

import copy
from typing import Any

import torch
from torch import nn

from headwise.errors import BadType

SEED = 7919
"""One that a model is hardly made with: the copy of an untrained model would be that model."""


def random_copy(model: nn.Module, *, seed: int = SEED) -> nn.Module:
    """A model of the same class and sizes whose weights are those it begins training with.

    Args:
        model: of transformers, which knows how it begins; or any other whose modules with weights
            all have PyTorch's ``reset_parameters``.
        seed: of the random weights; the global generator is left as it was.

    Returns:
        The copy, in eval mode, on the device of the model and running on the same implementation.

    Raises:
        BadType: if a module's weights cannot be begun again, or it was changed since.
    """
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = getattr(type(model), "_from_config", None)
        if build is None:
            _reset(fresh)
        else:
            _as_begun(fresh, build(copy.deepcopy(model.config)))
    return fresh.eval()


def _as_begun(model: nn.Module, begun: nn.Module) -> None:
    """Take over the weights of a model of the same configuration, which may have parts more."""
    state, wanted = begun.state_dict(), model.state_dict()
    for name, weight in wanted.items():
        if name not in state or state[name].shape != weight.shape:
            raise BadType(
                "model: expected the parts that its configuration says, got {name} of "
                "shape {weight_shape}; take the copy before the model is pruned or "
                "changed",
                name=name,
                weight_shape=tuple(weight.shape),
            )
    model.load_state_dict({name: state[name] for name in wanted})


def _reset(model: nn.Module) -> None:
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        begin: Any = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if own and begin is None:
            raise BadType(
                "model: expected modules that can begin again, got {name} "
                "({module_type}) without reset_parameters; give a model of transformers, "
                "or write that method",
                name=name or type(model).__name__,
                module_type=type(module).__name__,
            )
        if begin is not None:
            begin()

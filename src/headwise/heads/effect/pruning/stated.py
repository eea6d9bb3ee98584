"""A configuration that says what a model has become, where it can say it."""

import copy
from typing import Any

import torch
from torch import nn

from headwise.heads.effect.pruning.counts import COUNTED, SHARES, inner
from headwise.heads.effect.sites import Site, sites


def state(model: nn.Module) -> bool:
    """Write the new numbers of heads into a model's configuration, if it can say them.

    It can if a model made from it has the same parameters of the same shapes, and attentions that
    count the same heads. Otherwise it is left as it was: a configuration has one number of heads
    for all layers, and in many architectures it is also what sets the size of a head.

    Args:
        model: a transformers model with fewer heads.

    Returns:
        Whether it says them now.
    """
    config: Any = getattr(model, "config", None)
    found = sites(model)
    if config is None or len({(site.heads, site.size) for site in found}) > 1:
        return False
    new = copy.deepcopy(config)
    _say(new, found[0])
    try:
        with torch.device("meta"):
            made = type(model)(new)
    except (ValueError, TypeError, AttributeError, RuntimeError, AssertionError):
        return False  # such a model cannot even be made
    if _shapes(made) != _shapes(model) or _numbers(made) != _numbers(model):
        return False
    for each in _configurations(model, type(config)):
        _say(each, found[0])
    return True


def _say(config: Any, site: Site) -> None:
    """The numbers of one attention, by transformers' own names for them."""
    config.num_attention_heads = site.heads
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = site.heads // getattr(inner(site), SHARES[0], 1)
    config.head_dim = site.size


def _configurations(model: nn.Module, kind: type) -> list[Any]:
    """Every configuration in the model: T5's two stacks have a copy each."""
    found = {
        id(each): each for m in model.modules() if type(each := getattr(m, "config", None)) is kind
    }
    return list(found.values())


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _numbers(model: nn.Module) -> list[list[tuple[str, object]]]:
    """How each attention counts its heads."""
    return [
        [(name, value) for name in COUNTED if (value := inner(site).__dict__.get(name)) is not None]
        for site in sites(model)
    ]

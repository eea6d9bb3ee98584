"""Somebody's attention, made callable: what a loaded target is, by looking at it."""

from dataclasses import replace

from torch import nn

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.verify.adapter import not_recognised
from headwise.verify.calling import parameters_of, read_signature
from headwise.verify.functions import AdapterRunner, FunctionRunner
from headwise.verify.jobs import self_job
from headwise.verify.modules import of_class, of_instance
from headwise.verify.runners import Runner
from headwise.verify.running import Tell, silent


def runner(target: object, name: str, embed_dim: int, heads: int, tell: Tell = silent) -> Runner:
    """What a loaded target is, by looking at it.

    Args:
        target: a class of modules, a module, or a function.
        name: how messages call it.
        embed_dim: E.
        heads: H.
        tell: told of every call before it is made.

    Raises:
        BadFile: if it is not recognised; the message shows the adapter to write.
        BadValue: if embed_dim is no multiple of heads.
    """
    if heads < 1 or embed_dim < 1 or embed_dim % heads:
        raise BadValue(
            "embed_dim: expected a multiple of heads, got {embed_dim} with {heads} "
            "heads; use --embed-dim {max}",
            embed_dim=embed_dim,
            heads=heads,
            max=max(heads, 1) * 5,
        )
    weights = self_job(embed_dim, heads).weights
    if isinstance(target, type) and issubclass(target, nn.Module):
        return replace(of_class(target, name, weights, heads), tell=tell)
    if isinstance(target, nn.Module):
        return replace(of_instance(target, name, weights, heads), tell=tell)
    if isinstance(target, type) or not callable(target):
        raise not_recognised(Text("{name} is neither a torch.nn.Module nor a function", name=name))
    if [p.name for p in parameters_of(target, name)][1:2] == ["weights"]:
        return AdapterRunner(target, tell=tell)
    signature = read_signature(target, name)
    if len(signature.tensors) != 3:
        raise not_recognised(
            Text(
                "the function {name} takes {num_tensors} tensors, expected q, k, v",
                name=name,
                num_tensors=len(signature.tensors),
            )
        )
    return FunctionRunner(target, signature, tell=tell)

"""Batches of model inputs: a mapping of named inputs, a tuple of arguments, or a tensor."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.heads.names import Layer

Batch = Mapping[str, Any] | tuple[Any, ...] | Tensor
"""One batch. A transformers tokenizer gives a mapping."""


def run(model: nn.Module, batch: Batch) -> Any:
    """The output of a model for a batch.

    Raises:
        BadType: if it is not a batch.
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple):
        return model(*batch)
    if isinstance(batch, Tensor):
        return model(batch)
    raise BadType(
        "batches: expected a mapping of named inputs, a tuple or a tensor, got "
        "{batch_type}; a tokenizer gives a mapping",
        batch_type=type(batch).__name__,
    )


def several(batches: object, argument: str) -> list[Batch]:
    """The batches as a list; a single one is a list of one.

    Raises:
        BadType: if they are not batches.
        BadValue: if there is none.
    """
    if isinstance(batches, Mapping | Tensor) or (isinstance(batches, tuple) and batches):
        return [batches]
    if not isinstance(batches, Iterable):
        raise BadType(
            "{argument}: expected batches, got {batches_type}; give a list of what the "
            "model is called with",
            argument=argument,
            batches_type=type(batches).__name__,
        )
    batch_list = list(batches)
    if not batch_list:
        raise BadValue(
            "{argument}: expected at least one batch, got none; give texts for the model to read",
            argument=argument,
        )
    return batch_list


def real(batch: Batch, layer: Layer, length: int) -> Tensor | None:
    """(B, L), True where a token of the layer is not padding; None without a mask."""
    name = "decoder_attention_mask" if layer.part in ("decoder", "cross") else "attention_mask"
    mask = batch.get(name) if isinstance(batch, Mapping) else None
    fits = isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] == length
    return mask.bool() if fits and mask is not None else None


def in_evaluation(model: nn.Module) -> None:
    """Check that a model is in eval mode.

    Raises:
        BadValue: if it is in training mode.
    """
    if model.training:
        raise BadValue(
            "model: expected eval mode, where dropout does nothing; call model.eval() first"
        )


def passes(model: nn.Module, batches: list[Batch]) -> Iterator[Batch]:
    """Each batch after the model has read it, without gradients."""
    for batch in batches:
        with torch.no_grad():
            run(model, batch)
        yield batch

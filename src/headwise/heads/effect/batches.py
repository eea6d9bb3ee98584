"""What a model is given: one batch, as a mapping of named inputs, a tuple, or a tensor."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.heads.names import Layer

Batch = Mapping[str, Any] | tuple[Any, ...] | Tensor
"""One batch. A transformers tokenizer gives a mapping."""


def run(model: nn.Module, batch: Batch) -> Any:
    """The model's answer on a batch.

    Raises:
        BadType: if it is none.
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple):
        return model(*batch)
    if isinstance(batch, Tensor):
        return model(batch)
    raise BadType(
        f"batches: expected a mapping of named inputs, a tuple or a tensor, got "
        f"{type(batch).__name__}; a tokenizer gives a mapping",
        f"batches：应为命名输入的映射、元组或张量，收到 {type(batch).__name__}；"
        "分词器给出的就是映射",
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
            f"{argument}: expected batches, got {type(batches).__name__}; give a list of what the "
            "model is called with",
            f"{argument}：应为若干批次，收到 {type(batches).__name__}；请给出模型输入的列表",
        )
    found = list(batches)
    if not found:
        raise BadValue(
            f"{argument}: expected at least one batch, got none; give texts for the model to read",
            f"{argument}：至少应有一个批次，收到零个；请给出供模型阅读的文本",
        )
    return found


def real(batch: Batch, layer: Layer, length: int) -> Tensor | None:
    """(B, L), True on the tokens of a layer that are no padding; None where nothing is said."""
    name = "decoder_attention_mask" if layer.part in ("decoder", "cross") else "attention_mask"
    mask = batch.get(name) if isinstance(batch, Mapping) else None
    fits = isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] == length
    return mask.bool() if fits and mask is not None else None


def in_evaluation(model: nn.Module) -> None:
    """Refuse a model whose dropout would be measured along.

    Raises:
        BadValue: if it is in training mode.
    """
    if model.training:
        raise BadValue(
            "model: expected eval mode, where dropout does nothing; call model.eval() first",
            "model：应处于 eval 模式（不做 dropout）；请先调用 model.eval()",
        )


def passes(model: nn.Module, batches: list[Batch]) -> Iterator[Batch]:
    """Each batch after the model has read it, without gradients."""
    for batch in batches:
        with torch.no_grad():
            run(model, batch)
        yield batch

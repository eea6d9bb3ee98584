"""Batches of model inputs, and the next-token loss of each example."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.heads.ablation.sites import sites
from headwise.heads.names import Layer
from headwise.lang import Text

Batch = Mapping[str, Any] | tuple[Any, ...] | Tensor  # one batch; a tokenizer returns a mapping


def run(model: nn.Module, batch: Batch) -> Any:
    """Return the output of a model for a batch; raise `BadType` if ``batch`` is not a batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple):
        return model(*batch)
    if isinstance(batch, Tensor):
        return model(batch)
    raise BadType(
        "batches: expected a mapping of named inputs, a tuple or a tensor, got "
        "{batch_type}; a tokenizer returns a mapping",
        batch_type=type(batch).__name__,
    )


def several(batches: object, argument: str) -> list[Batch]:
    """Return one or more batches as a list; raise `BadType` if they are not batches."""
    if isinstance(batches, Mapping | Tensor) or (isinstance(batches, tuple) and batches):
        return [batches]
    if not isinstance(batches, Iterable):
        raise BadType(
            "{argument}: expected batches, got {batches_type}; pass a list of model inputs",
            argument=argument,
            batches_type=type(batches).__name__,
        )
    batch_list = list(batches)
    if not batch_list:
        raise BadValue(
            "{argument}: expected at least one batch, got none; pass a list of model inputs",
            argument=argument,
        )
    return batch_list


def real(batch: Batch, layer: Layer, length: int) -> Tensor | None:
    """Return (B, L), True where a token of the layer is not padding; None without a mask."""
    name = "decoder_attention_mask" if layer.part in ("decoder", "cross") else "attention_mask"
    mask = batch.get(name) if isinstance(batch, Mapping) else None
    fits = isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] == length
    return mask.bool() if fits and mask is not None else None


def in_evaluation(model: nn.Module) -> None:
    """Raise `BadValue` if a model is in training mode."""
    if model.training:
        raise BadValue("model: expected eval mode, got training mode; call model.eval() first")


Loss = Callable[[nn.Module, Batch], Tensor]  # returns the B losses of a model on a batch

FURTHER = (
    "final_logit_softcapping", "lm_head_multiplier", "logit_scale", "logits_scaling",
    "logits_soft_cap", "output_logit_soft_cap", "output_multiplier", "scale_decoder_outputs",
)  # fmt: skip
"""Configuration entries that transform the logits after the product with tied embeddings."""


def next_token_loss(model: nn.Module, batch: Batch, *, start: int = 0) -> Tensor:
    """Return the mean next-token cross-entropy of each text (B,), in nats.

    Args:
        model: a model that returns logits (B, L, V) or an output with ``.logits``; or a causal
            transformers model without language-model head and with tied embeddings.
        batch: the token ids (B, L) as a tensor; or a mapping with ``input_ids``, or with
            ``decoder_input_ids`` for an encoder-decoder, and with their mask if there is padding.
        start: the index of the first predicted token.

    Raises:
        BadValue: if the model does not predict the next token, or a text has no token to predict.

    Example:
        >>> class Guess(nn.Module):
        ...     def forward(self, ids):
        ...         return torch.tensor([[[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]]).log()
        >>> loss = next_token_loss(Guess(), torch.tensor([[0, 1, 1]]))
        >>> round(loss.mul(2).exp().item(), 4)  # 1 / (1/2 · 3/4)
        2.6667
    """
    ids, mask = _ids(batch)
    logits = _logits(model, run(model, batch))
    if logits.dim() != 3 or logits.shape[:2] != ids.shape:
        raise BadValue(
            "loss: expected logits of shape {value}, got {logits_shape}; pass a loss function "
            "that takes the model and a batch and returns one loss for each example",
            value=(*ids.shape, "V"),
            logits_shape=tuple(logits.shape),
        )
    first = max(1, start)
    counts = mask[:, first:] & mask[:, first - 1 : -1]  # predicted from a token that is not padding
    if not counts.any(1).all():
        raise BadValue(
            "loss: a text has no token to predict at index {first} or later; pass longer texts",
            first=first,
        )
    wide = logits[:, first - 1 : -1].to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(wide.transpose(1, 2), ids[:, first:], reduction="none")
    return torch.where(counts, losses, 0.0).sum(1) / counts.sum(1)


def _ids(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the token ids (B, L) and a mask (B, L) that is False on padding."""
    inputs: Any = {"input_ids": batch} if isinstance(batch, Tensor) else batch
    if isinstance(inputs, Mapping):
        prefix = "decoder_" if "decoder_input_ids" in inputs else ""
        ids, mask = inputs.get(f"{prefix}input_ids"), inputs.get(f"{prefix}attention_mask")
        if isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point():
            return ids, torch.ones_like(ids).bool() if mask is None else mask.bool()
    raise BadValue(
        "batches: the next-token loss needs input_ids (B, L); pass a mapping with that key, "
        "or your own loss function"
    )


def unpredicting(model: nn.Module, answer: Any) -> Text | None:
    """Return why a model with this output does not predict the next token, or None."""
    for site in () if getattr(model, "config", None) is None else sites(model):
        attention = getattr(site.module, "self", site.module)
        decodes = site.layers[0].part in ("", "decoder")
        if decodes and getattr(attention, "is_causal", None) is False:
            return Text("{later} attends to later tokens", later=site.name)
    if _logits_in(answer) is not None:
        return None
    hidden = getattr(answer, "last_hidden_state", None)
    config: Any = getattr(model, "config", None)
    if hidden is None or not getattr(config, "tie_word_embeddings", False):
        return Text("it returns no logits, and its embeddings are not tied")
    weight = model.get_input_embeddings().weight  # type: ignore[operator]
    parts = (config, *(getattr(config, name, None) for name in ("decoder", "text_config")))
    further = any(getattr(part, name, None) for part in parts for name in FURTHER)
    if weight.shape[1] != hidden.shape[2] or further:
        return Text("its tied embeddings alone do not give its logits")
    return None


def _logits(model: nn.Module, answer: Any) -> Tensor:
    reason, logits = unpredicting(model, answer), _logits_in(answer)
    if reason is not None:
        raise BadValue(
            "loss: {kind} does not predict the next token ({reason}); load it with its "
            "language-model head (AutoModelForCausalLM), or pass your own loss function",
            kind=type(model).__name__,
            reason=reason,
        )
    if logits is not None:
        return logits
    weight = model.get_input_embeddings().weight  # type: ignore[operator]
    return torch.as_tensor(answer.last_hidden_state @ weight.T)


def _logits_in(answer: Any) -> Tensor | None:
    logits = answer if isinstance(answer, Tensor) else getattr(answer, "logits", None)
    return logits if isinstance(logits, Tensor) else None

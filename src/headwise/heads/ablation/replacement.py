"""What heads put out instead: nothing, their mean over other texts, or what they do on another."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.ablation.batches import Batch, real, run
from headwise.heads.ablation.hooks import tapped
from headwise.heads.ablation.sites import Site
from headwise.heads.names import Layer

MOST_NUMBERS = 1 << 28
"""How many numbers of other texts are kept at most: 1 GiB in float32."""


class Instead(Protocol):
    """What stands in for the heads of a layer."""

    def begin(self, model: nn.Module, args: Any) -> None:
        """Before each pass."""
        ...

    def learn(self, layer: Layer, each: Tensor, batch: Batch) -> None:
        """What the heads put out on a batch of the reference, (B, L, n, Dv)."""
        ...

    def heads(self, layer: Layer, each: Tensor) -> Tensor:
        """What they shall put out instead of ``each``, (..., L, n, Dv)."""
        ...


class Zero:
    """Nothing; also for queries, whose heads then attend to all keys alike."""

    def begin(self, model: nn.Module, args: Any) -> None:
        del model, args

    def learn(self, layer: Layer, each: Tensor, batch: Batch) -> None:
        del layer, each, batch

    def heads(self, layer: Layer, each: Tensor) -> Tensor:
        del layer
        return torch.zeros_like(each)


class Mean:
    """The mean over every real token of the reference, summed in float64."""

    def __init__(self) -> None:
        self._sums: dict[Layer, Tensor] = {}
        self._counts: dict[Layer, float] = {}

    def begin(self, model: nn.Module, args: Any) -> None:
        del model, args

    def learn(self, layer: Layer, each: Tensor, batch: Batch) -> None:
        tokens = each.double().flatten(0, -3)  # (B·L, n, Dv)
        mask = real(batch, layer, each.shape[-3])
        if mask is not None and mask.numel() == len(tokens):
            tokens = tokens[mask.flatten().to(tokens.device)]
        self._sums[layer] = self._sums.get(layer, 0.0) + tokens.sum(0)
        self._counts[layer] = self._counts.get(layer, 0.0) + len(tokens)

    def heads(self, layer: Layer, each: Tensor) -> Tensor:
        mean = self._sums[layer] / self._counts[layer]
        return mean.to(each).expand_as(each)


class Resample:
    """What the heads put out on another text, drawn anew for every text of every pass."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: dict[Layer, list[Tensor]] = {}
        self._drawn: Tensor | None = None
        self._numbers = 0

    def begin(self, model: nn.Module, args: Any) -> None:
        del model, args
        self._drawn = None

    def learn(self, layer: Layer, each: Tensor, batch: Batch) -> None:
        del batch
        self._numbers += each.numel()
        if self._numbers > MOST_NUMBERS:
            raise BadValue(
                "reference: more than {most_numbers} numbers of other texts would be "
                "kept; give fewer texts or fewer heads, or use kind='mean'",
                most_numbers=MOST_NUMBERS,
            )
        kept = self._kept.setdefault(layer, [])
        if kept and kept[0].shape[1:] != each.shape[1:]:
            raise _lengths(kept[0].shape[1], each.shape[1])
        kept.append(each.detach().clone())

    def heads(self, layer: Layer, each: Tensor) -> Tensor:
        there = torch.cat(self._kept[layer])  # (R, L, n, Dv)
        if each.dim() != 4 or each.shape[1:] != there.shape[1:]:
            raise _lengths(there.shape[1], each.shape[-3])
        if self._drawn is None or len(self._drawn) != len(each):
            self._drawn = torch.randint(len(there), (len(each),), generator=self._generator)
        return there[self._drawn.to(there.device)].to(each)


def read(
    model: nn.Module,
    found: tuple[Site, ...],
    by_layer: Mapping[Layer, list[int]],
    instead: Instead,
    reference: list[Batch],
) -> None:
    """Let the model read the reference as it is, and show what its heads put out on it."""
    for batch in reference:

        def learn(layer: Layer, each: Tensor, batch: Batch = batch) -> None:
            instead.learn(layer, each[..., by_layer[layer], :], batch)

        with tapped(model, found, by_layer, learn), torch.no_grad():
            run(model, batch)


def _lengths(reference: int, given: int) -> BadValue:
    return BadValue(
        "reference: expected texts of one length, that of the text to be read, got "
        "{reference} and {given} tokens; cut them alike, and give batches of whole "
        "texts, or use kind='mean'",
        reference=reference,
        given=given,
    )

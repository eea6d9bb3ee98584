"""Replacements of head outputs: zero, the mean over reference texts, or another text's output."""

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
"""The largest number of stored reference outputs: 1 GiB in float32."""


class Instead(Protocol):
    """The replacement of head outputs."""

    def begin(self, model: nn.Module, args: Any) -> None:
        """Called before each forward pass."""
        ...

    def learn(self, layer: Layer, output: Tensor, batch: Batch) -> None:
        """Record the outputs on a reference batch, (B, L, n, Dv)."""
        ...

    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        """The replacement of the outputs ``each`` (..., L, n, Dv)."""
        ...


class Zero:
    """Zero; also for queries, whose heads then attend to all keys equally."""

    def begin(self, model: nn.Module, args: Any) -> None:
        del model, args

    def learn(self, layer: Layer, output: Tensor, batch: Batch) -> None:
        del layer, output, batch

    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        del layer
        return torch.zeros_like(output)


class Mean:
    """The mean over all reference tokens without padding, accumulated in float64."""

    def __init__(self) -> None:
        self._sums: dict[Layer, Tensor] = {}
        self._counts: dict[Layer, float] = {}

    def begin(self, model: nn.Module, args: Any) -> None:
        del model, args

    def learn(self, layer: Layer, output: Tensor, batch: Batch) -> None:
        tokens = output.double().flatten(0, -3)  # (B·L, n, Dv)
        mask = real(batch, layer, output.shape[-3])
        if mask is not None and mask.numel() == len(tokens):
            tokens = tokens[mask.flatten().to(tokens.device)]
        self._sums[layer] = self._sums.get(layer, 0.0) + tokens.sum(0)
        self._counts[layer] = self._counts.get(layer, 0.0) + len(tokens)

    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        mean = self._sums[layer] / self._counts[layer]
        return mean.to(output).expand_as(output)


class Resample:
    """The output on a reference text, sampled for every text of every pass."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: dict[Layer, list[Tensor]] = {}
        self._drawn: Tensor | None = None
        self._numbers = 0

    def begin(self, model: nn.Module, args: Any) -> None:
        del model, args
        self._drawn = None

    def learn(self, layer: Layer, output: Tensor, batch: Batch) -> None:
        del batch
        self._numbers += output.numel()
        if self._numbers > MOST_NUMBERS:
            raise BadValue(
                "reference: more than {most_numbers} numbers of other texts would be "
                "kept; give fewer texts or fewer heads, or use kind='mean'",
                most_numbers=MOST_NUMBERS,
            )
        kept = self._kept.setdefault(layer, [])
        if kept and kept[0].shape[1:] != output.shape[1:]:
            raise _lengths(kept[0].shape[1], output.shape[1])
        kept.append(output.detach().clone())

    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        stored = torch.cat(self._kept[layer])  # (R, L, n, Dv)
        if output.dim() != 4 or output.shape[1:] != stored.shape[1:]:
            raise _lengths(stored.shape[1], output.shape[-3])
        if self._drawn is None or len(self._drawn) != len(output):
            self._drawn = torch.randint(len(stored), (len(output),), generator=self._generator)
        return stored[self._drawn.to(stored.device)].to(output)


def read(
    model: nn.Module,
    attentions: tuple[Site, ...],
    by_layer: Mapping[Layer, list[int]],
    instead: Instead,
    reference: list[Batch],
) -> None:
    """Run the intact model on the reference and record the outputs of its heads."""
    for batch in reference:

        def learn(layer: Layer, output: Tensor, batch: Batch = batch) -> None:
            instead.learn(layer, output[..., by_layer[layer], :], batch)

        with tapped(model, attentions, by_layer, learn), torch.no_grad():
            run(model, batch)


def _lengths(reference: int, given: int) -> BadValue:
    return BadValue(
        "reference: expected texts of one length, that of the text to be read, got "
        "{reference} and {given} tokens; cut them alike, and give batches of whole "
        "texts, or use kind='mean'",
        reference=reference,
        given=given,
    )

"""Ablation methods, and the replacements of head outputs that they compute."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadValue, one_of
from headwise.heads.ablation.hooks import tapped
from headwise.heads.ablation.loss import Batch, real, run
from headwise.heads.ablation.sites import Site
from headwise.heads.names import Layer
from headwise.lang import Text, same
from headwise.nn import MultiheadAttention
from headwise.positions import Rotary, Stage


@dataclass(frozen=True)
class Method:
    """An ablation method.

    Attributes:
        name: the name, as in ``ablate(kind=...)``.
        title: the output of an ablated head, in words.
        formula: the output as a formula: z is the output of a head, A its attention weights.
        source: the publication, and how headwise differs from it.
        reference: whether the method needs reference texts.
    """

    name: str
    title: Text
    formula: Text
    source: Text
    reference: bool = False


ZERO = Method(
    name="zero",
    title=Text("the output of the head is 0"),
    formula=Text("z = 0"),
    source=Text(
        "Michel et al. 2019, equation 2 (mask xi_h = 0); Voita et al. 2019, section 6 (gate 0)"
    ),
)

MEAN = Method(
    name="mean",
    title=Text("the output of the head is its mean over reference texts"),
    formula=Text("z = mean of z_ref over all non-padding tokens of the reference texts"),
    source=Text(
        "Wang et al. 2022 (interpretability in the wild), section 3, mean ablation; the paper "
        "averages at each position of a template, headwise over all positions"
    ),
    reference=True,
)

RESAMPLE = Method(
    name="resample",
    title=Text("the output of the head is its output on a random reference text"),
    formula=Text("z[b, i] = z_ref[r(b), i], r(b) sampled for each text in each forward pass"),
    source=Text(
        "Chan et al. 2022 (causal scrubbing), resampling ablation; all heads of a forward pass "
        "use the same reference text"
    ),
    reference=True,
)

UNIFORM = Method(
    name="uniform",
    title=Text("the head attends to all allowed keys equally"),
    formula=Text(
        "A[i,j] = 1 / number of allowed keys of query i; queries are 0, so all scores are equal"
    ),
    source=Text(
        "Kovaleva et al. 2019, section 4.6 (disabling a head); in the paper 1/L, padding included"
    ),
)

METHODS = (ZERO, MEAN, RESAMPLE, UNIFORM)


def method_named(name: object) -> Method:
    """Return the ablation method with a name; raise `BadValue` if no method has it."""
    for method in METHODS:
        if method.name == name:
            return method
    raise one_of("kind", name, tuple(method.name for method in METHODS))


def check_uniform(
    attentions: tuple[Site, ...], layers: Collection[Layer], argument: str = "kind"
) -> None:
    """Raise `BadValue` if queries of 0 do not make all scores of these layers equal."""
    for site in attentions:
        reason = _other_term(site) if set(site.layers) & set(layers) else None
        if reason is not None:
            raise BadValue(
                "{argument}: 'uniform' sets queries to 0 to get equal weights, but in {place} "
                "{reason}; use 'zero' or 'mean'",
                argument=argument,
                place=same(site.name) if site.name else Text("this module"),
                reason=reason,
            )


def _other_term(site: Site) -> Text | None:
    """Return why weights differ between keys although the query is 0, or None."""
    module, architecture = site.module, site.architecture
    if getattr(module, "sinks", None) is not None:
        return Text("a learned sink takes part of the weight")
    if architecture is not None and architecture.name == "T5":
        return Text("a position bias is added to the scores")
    if isinstance(module, MultiheadAttention):
        if module.global_proj is not None:
            return Text("global tokens have separate query projections")
        position = module.position
        stages = () if position is None or isinstance(position, Rotary) else position.stages
        if Stage.CONTENT in stages or Stage.SCORES in stages:  # a rotated query of 0 stays 0
            return Text("a position term is added to the scores")
    beside = () if architecture is None else architecture.beside
    for name, _ in module.named_parameters():
        shifts = name.endswith("bias") and "norm" in name.lower()
        if shifts and not name.startswith(beside):
            return Text("a normalisation adds a bias to the queries")
    return None


MOST_NUMBERS = 1 << 28  # the most stored values of reference outputs: 1 GiB in float32


class Replacement(ABC):
    """Computes the replacement of head outputs: the base class."""

    def begin(self, model: nn.Module, args: Any) -> None:
        """Prepare the replacement before each forward pass."""
        del model, args

    def learn(self, layer: Layer, output: Tensor, batch: Batch) -> None:
        """Record the head outputs (B, L, n, Dv) on a reference batch."""
        del layer, output, batch

    @abstractmethod
    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        """Return the replacement of head outputs (..., L, n, Dv)."""


class Zero(Replacement):
    """Replaces by zero: head outputs, or queries so that heads attend to all keys equally."""

    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        return torch.zeros_like(output)


class Mean(Replacement):
    """Replaces by the mean over all non-padding reference tokens, accumulated in float64."""

    def __init__(self) -> None:
        self._sums: dict[Layer, Tensor] = {}
        self._counts: dict[Layer, float] = {}

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


class Resample(Replacement):
    """Replaces by the output on a reference text, sampled for each text in each forward pass."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: dict[Layer, list[Tensor]] = {}
        self._drawn: Tensor | None = None
        self._numbers = 0

    def begin(self, model: nn.Module, args: Any) -> None:
        self._drawn = None

    def learn(self, layer: Layer, output: Tensor, batch: Batch) -> None:
        self._numbers += output.numel()
        if self._numbers > MOST_NUMBERS:
            raise BadValue(
                "reference: 'resample' stores at most {most_numbers} values of reference "
                "outputs; pass fewer texts or heads, or use kind='mean'",
                most_numbers=MOST_NUMBERS,
            )
        kept = self._kept.setdefault(layer, [])
        if kept and kept[0].shape[1:] != output.shape[1:]:
            raise _different_lengths(kept[0].shape[1], output.shape[1])
        kept.append(output.detach().clone())

    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        stored = torch.cat(self._kept[layer])  # (R, L, n, Dv)
        if output.dim() != 4 or output.shape[1:] != stored.shape[1:]:
            raise _different_lengths(stored.shape[1], output.shape[-3])
        if self._drawn is None or len(self._drawn) != len(output):
            self._drawn = torch.randint(len(stored), (len(output),), generator=self._generator)
        return stored[self._drawn.to(stored.device)].to(output)


def replacement_of(method: Method, seed: int) -> Replacement:
    """Return a new replacement for a method."""
    if method is MEAN:
        return Mean()
    return Resample(seed) if method is RESAMPLE else Zero()


def read(
    model: nn.Module,
    attentions: tuple[Site, ...],
    by_layer: Mapping[Layer, list[int]],
    replacement: Replacement,
    reference: list[Batch],
) -> None:
    """Run the intact model on the reference texts and record the outputs of its heads."""
    for batch in reference:

        def learn(layer: Layer, output: Tensor, batch: Batch = batch) -> None:
            replacement.learn(layer, output[..., by_layer[layer], :], batch)

        with tapped(model, attentions, by_layer, learn), torch.no_grad():
            run(model, batch)


def _different_lengths(reference: int, length: int) -> BadValue:
    return BadValue(
        "reference: expected batches of texts as long as the input, got {reference} and {given} "
        "tokens; cut all texts to one length, or use kind='mean'",
        reference=reference,
        given=length,
    )

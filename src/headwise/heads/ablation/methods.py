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
        title: what the head puts out.
        formula: z is the output of a head, A its weights.
        source: the publication, and differences from it.
        reference: whether it needs reference texts.
    """

    name: str
    title: Text
    formula: Text
    source: Text
    reference: bool = False


ZERO = Method(
    name="zero",
    title=Text("the head puts out nothing"),
    formula=Text("z = 0"),
    source=Text(
        "Michel et al. 2019, equation 2 (their mask xi_h = 0); Voita et al. 2019, "
        "section 6 (gate 0)"
    ),
)

MEAN = Method(
    name="mean",
    title=Text("the head puts out what it does on average over other texts"),
    formula=Text("z = E over all real tokens of the reference of z_ref"),
    source=Text(
        "Wang et al. 2022 (interpretability in the wild), section 3, mean ablation; "
        "their mean is for each position of a template, this one is over all positions"
    ),
    reference=True,
)

RESAMPLE = Method(
    name="resample",
    title=Text("the head puts out what it does on another text, drawn at random"),
    formula=Text("z[b, i] = z_ref[r(b), i], r(b) drawn for each text of each pass"),
    source=Text(
        "Chan et al. 2022 (causal scrubbing), resampling ablation; all heads of one "
        "pass take from the same other text"
    ),
    reference=True,
)

UNIFORM = Method(
    name="uniform",
    title=Text("the head attends to every allowed key alike"),
    formula=Text(
        "A[i,j] = 1 / number of keys allowed to i: its queries are 0, so that all scores are equal"
    ),
    source=Text(
        "Kovaleva et al. 2019, section 4.6 (disabling a head); theirs is 1/L, padding included"
    ),
)

METHODS = (ZERO, MEAN, RESAMPLE, UNIFORM)


def method_named(name: object) -> Method:
    """The method of that name; raises `BadValue` if there is none."""
    for method in METHODS:
        if method.name == name:
            return method
    raise one_of("kind", name, tuple(method.name for method in METHODS))


def check_uniform(
    attentions: tuple[Site, ...], layers: Collection[Layer], argument: str = "kind"
) -> None:
    """Raise `BadValue` if queries of 0 do not make all scores of some layers equal."""
    for site in attentions:
        reason = _other_term(site) if set(site.layers) & set(layers) else None
        if reason is not None:
            raise BadValue(
                "{argument}: 'uniform' sets the queries of a head to 0, and in {place} {reason}, "
                "so that its weights would not be equal; use 'zero' or 'mean'",
                argument=argument,
                place=same(site.name) if site.name else Text("it"),
                reason=reason,
            )


def _other_term(site: Site) -> Text | None:
    """The term that changes scores of equal queries, or None."""
    module, architecture = site.module, site.architecture
    if getattr(module, "sinks", None) is not None:
        return Text("a sink takes a share")
    if architecture is not None and architecture.name == "T5":
        return Text("a position bias is added to the scores")
    if isinstance(module, MultiheadAttention):
        if module.global_proj is not None:
            return Text("global tokens have queries of their own")
        position = module.position
        stages = () if position is None or isinstance(position, Rotary) else position.stages
        if Stage.CONTENT in stages or Stage.SCORES in stages:  # a rotated query of 0 stays 0
            return Text("a position is added to the scores")
    beside = () if architecture is None else architecture.beside
    for name, _ in module.named_parameters():
        shifts = name.endswith("bias") and "norm" in name.lower()
        if shifts and not name.startswith(beside):
            return Text("a normalisation adds to the queries")
    return None


MOST_NUMBERS = 1 << 28  # the largest number of stored reference outputs: 1 GiB in float32


class Replacement(ABC):
    """The replacement of head outputs."""

    def begin(self, model: nn.Module, args: Any) -> None:
        """Called before each forward pass."""
        del model, args

    def learn(self, layer: Layer, output: Tensor, batch: Batch) -> None:
        """Record the outputs on a reference batch, (B, L, n, Dv)."""
        del layer, output, batch

    @abstractmethod
    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        """The replacement of the outputs (..., L, n, Dv)."""


class Zero(Replacement):
    """Zero; also for queries, whose heads then attend to all keys equally."""

    def heads(self, layer: Layer, output: Tensor) -> Tensor:
        return torch.zeros_like(output)


class Mean(Replacement):
    """The mean over all reference tokens without padding, accumulated in float64."""

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
    """The output on a reference text, sampled for every text of every pass."""

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
                "reference: more than {most_numbers} numbers of other texts would be "
                "kept; give fewer texts or fewer heads, or use kind='mean'",
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
    """The replacement that a method computes."""
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
    """Run the intact model on the reference and record the outputs of its heads."""
    for batch in reference:

        def learn(layer: Layer, output: Tensor, batch: Batch = batch) -> None:
            replacement.learn(layer, output[..., by_layer[layer], :], batch)

        with tapped(model, attentions, by_layer, learn), torch.no_grad():
            run(model, batch)


def _different_lengths(reference: int, length: int) -> BadValue:
    return BadValue(
        "reference: expected texts of one length, that of the text to be read, got {reference} and "
        "{given} tokens; cut them alike, and give batches of whole texts, or use kind='mean'",
        reference=reference,
        given=length,
    )

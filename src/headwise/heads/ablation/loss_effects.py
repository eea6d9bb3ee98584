"""Measure the effect of ablations on the loss, and the gradient importance of each head."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.ablation.ablate import ablate
from headwise.heads.ablation.hooks import tapped
from headwise.heads.ablation.loss import Batch, Loss, in_evaluation, next_token_loss, several
from headwise.heads.ablation.methods import ZERO, Method, method_named
from headwise.heads.ablation.sites import parsed, sites
from headwise.heads.names import Head, Layer

RESAMPLES = 2000
CONFIDENCE = 0.95
CHUNK = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A mean over examples with its interval; ``confidence`` is the nominal coverage."""

    mean: float
    low: float
    high: float
    confidence: float
    examples: int


def bootstrap(
    values: Tensor, *, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """Return the mean of values with its percentile bootstrap interval.

    For a paired interval, pass the differences of the pairs.

    Args:
        values: (N,), one value for each example or each seed; N is at least 2.
        seed: the seed of the resampling.
        resamples: the number of resamples.
        confidence: the nominal coverage, between 0 and 1.

    Raises:
        BadValue: if there are fewer than two values, or a value is not finite.

    Source: Efron & Tibshirani 1993, chapter 13. The interval is too narrow for few values.

    Example:
        >>> bootstrap(torch.tensor([1.0, 1.0, 1.0])).low
        1.0
    """
    wide = values.detach().double().flatten().cpu()
    count = len(wide)
    if count < 2:
        raise BadValue(
            "values: expected at least 2 examples for an interval, got {count}; use "
            "more texts or seeds",
            count=count,
        )
    if not wide.isfinite().all():
        raise BadValue(
            "values: expected finite losses, got NaN or infinity; check the model's outputs"
        )
    generator = torch.Generator().manual_seed(seed)
    step = max(1, CHUNK // count)
    sizes = [(min(step, resamples - start), count) for start in range(0, resamples, step)]
    means = [wide[torch.randint(count, size, generator=generator)].mean(1) for size in sizes]
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    low, high = torch.quantile(torch.cat(means), tails).tolist()
    return Interval(wide.mean().item(), low, high, confidence, count)


Group = str | Head | Collection[Head | str]  # heads that are ablated together


@dataclass(frozen=True)
class How:
    """The arguments of `headwise.ablate`; ``seed`` is also the seed of bootstrap intervals."""

    kind: str = ZERO.name
    reference: Batch | Collection[Batch] = ()
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Effect:
    """The loss of each example of a corpus, with and without some heads.

    Attributes:
        heads: the heads ablated together.
        kind: the ablation method.
        clean: (N,), the loss of each example with the heads, in float64.
        ablated: (N,), the loss of each example without the heads, in float64.
        interval: the mean of ``ablated - clean`` over examples, with its paired interval.
    """

    heads: tuple[Head, ...]
    kind: Method
    clean: Tensor
    ablated: Tensor
    interval: Interval


def effect(
    model: nn.Module,
    batches: Batch | Collection[Batch],
    heads: Group,
    loss: Loss = next_token_loss,
    how: How | None = None,
) -> Effect:
    """Measure the effect on the loss of ablating heads together.

    Args:
        model: a model in eval mode.
        batches: the corpus; its batches have at least two examples in total.
        heads: the heads to ablate, such as "L0H2,L1H8".
        loss: a function of the model and a batch that returns one loss for each example.
        how: the ablation method; None for zero ablation.

    Raises:
        BadType, BadValue: as `headwise.ablate`; or if ``loss`` does not return one finite number
            for each example.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> size = lambda model, x: model(x, x, x)[0].square().mean((1, 2))
        >>> result = effect(layer, torch.randn(5, 3, 8), "L0H0,L0H1", size)
        >>> result.interval.high < 0  # only the bias is left, which is 0
        True
    """
    return effects(model, batches, [heads], loss, how)[0]


def effects(
    model: nn.Module,
    batches: Batch | Collection[Batch],
    groups: Sequence[Group],
    loss: Loss = next_token_loss,
    how: How | None = None,
) -> tuple[Effect, ...]:
    """Measure the effect on the loss of ablating each group of heads, one group at a time.

    The intact model runs once. The errors are those of `effect`.
    """
    in_evaluation(model)
    corpus, how = several(batches, "batches"), how or How()
    clean = losses(model, corpus, loss)
    results = []
    for group in groups:
        heads = parsed(group)
        with ablate(model, heads, how.kind, reference=how.reference, seed=how.seed):
            ablated = losses(model, corpus, loss)
        interval = bootstrap(ablated - clean, seed=how.seed)
        results.append(Effect(heads, method_named(how.kind), clean, ablated, interval))
    return tuple(results)


def losses(model: nn.Module, corpus: list[Batch], loss: Loss) -> Tensor:
    """Return the loss of each example of a corpus, (N,) in float64, without gradients."""
    with torch.no_grad():
        return torch.cat([_checked(loss(model, batch)).double().cpu() for batch in corpus])


def _checked(values: object) -> Tensor:
    """Return the losses of a batch if they are one finite number for each example."""
    if not isinstance(values, Tensor) or values.dim() != 1:
        got = type(values).__name__
        if isinstance(values, Tensor):
            got = f"shape {tuple(values.shape)}"
        raise BadValue(
            "loss: expected a tensor (B,), one loss for each example, got {got}; average "
            "over tokens, but not over examples",
            got=got,
        )
    if not values.isfinite().all():
        raise BadValue(
            "loss: expected finite numbers, got NaN or infinity; check the model's outputs"
        )
    return values


@dataclass(frozen=True, eq=False)
class Importance:
    """The gradient of the loss of each example with respect to a gate on each head, at gate 1.

    Attributes:
        gradients: the signed gradients dL_n/dξ_h of each layer, (N, H) in float64.
    """

    gradients: Mapping[Layer, Tensor]

    def raw(self, head: Head) -> float:
        """Return the mean absolute gradient of a head, I_h of Michel et al. 2019, equation 3."""
        return self._layer(head.layer)[head.number].item()

    def value(self, head: Head) -> float:
        """Return ``raw`` divided by the Euclidean norm of its layer; 0 if the norm is 0."""
        norm = self._layer(head.layer).norm().item()
        return self.raw(head) / norm if norm else 0.0

    def spread(self, head: Head) -> float:
        """Return the standard error of ``value`` over examples, with the layer norm held fixed."""
        absolute = self.gradients[head.layer].abs()
        norm = self._layer(head.layer).norm().item()
        error = absolute[:, head.number].std().item() / len(absolute) ** 0.5
        return error / norm if norm else 0.0

    def heads(self) -> tuple[Head, ...]:
        """Return every head, layer by layer."""
        sizes = [(layer, self.gradients[layer].shape[1]) for layer in sorted(self.gradients)]
        return tuple(Head(layer, number) for layer, heads in sizes for number in range(heads))

    def ranking(self) -> tuple[Head, ...]:
        """Return every head, the least important first; ties are ordered by name."""
        return tuple(sorted(self.heads(), key=lambda head: (self.value(head), head)))

    def _layer(self, layer: Layer) -> Tensor:
        return self.gradients[layer].abs().mean(0)


def importance(
    model: nn.Module, batches: Batch | Collection[Batch], loss: Loss = next_token_loss
) -> Importance:
    """Measure the gradient importance of every head on a corpus.

    Each batch takes one forward and one backward pass. Each head has a separate gate for each
    example, because the paper averages the absolute gradients of the examples.

    Args:
        model: a model in eval mode; its parameters receive no gradient.
        batches: the corpus; examples are along the first dimension of the model inputs.
        loss: a function of the model and a batch that returns one loss for each example.

    Raises:
        BadType, BadValue: if an argument is invalid, or examples are not along the first dimension.

    Source: Michel et al. 2019, section 4.1: I_h = E_x |dL(x)/dξ_h|, divided by the layer's
        Euclidean norm, after Molchanov et al. 2017.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> size = lambda model, x: model(x, x, x)[0].square().mean((1, 2))
        >>> result = importance(layer, torch.randn(5, 3, 8), size)
        >>> round(sum(result.value(head) ** 2 for head in result.heads()), 12)
        1.0
    """
    in_evaluation(model)
    gradients: dict[Layer, list[Tensor]] = {}
    for batch in several(batches, "batches"):
        gates: dict[Layer, Tensor] = {}
        with torch.enable_grad():
            with gated(model, gates):
                losses = _checked(loss(model, batch))
            slopes = torch.autograd.grad(
                losses.sum(), list(gates.values()), allow_unused=True, materialize_grads=True
            )
        for layer, slope in zip(gates, slopes, strict=True):
            if len(slope) != len(losses):
                raise _indistinguishable(len(losses), len(slope))
            gradients.setdefault(layer, []).append(slope.double().cpu())
    return Importance({layer: torch.cat(gradients[layer]) for layer in sorted(gradients)})


@contextmanager
def gated(model: nn.Module, gates: dict[Layer, Tensor]) -> Iterator[None]:
    """Multiply the head outputs by gates (B, H); layers without gates get gates of value 1."""
    attentions = sites(model)

    def gate(layer: Layer, outputs: Tensor) -> Tensor:
        if layer not in gates:
            shape = (*outputs.shape[:-3], outputs.shape[-2])
            gates[layer] = outputs.new_ones(shape[-2:] if len(shape) > 1 else (1, *shape))
            gates[layer].requires_grad_()
        if outputs.dim() != 4 or len(gates[layer]) != len(outputs):
            raise _indistinguishable(len(gates[layer]), len(outputs))
        return outputs * gates[layer][:, None, :, None]

    layers = [layer for site in attentions for layer in site.layers]
    with tapped(model, attentions, layers, gate):
        yield


def _indistinguishable(examples: int, rows: int) -> BadValue:
    return BadValue(
        "batches: got {examples} losses but {rows} samples inside the model; put the examples "
        "along the first dimension, and run one forward pass for each batch",
        examples=examples,
        rows=rows,
    )

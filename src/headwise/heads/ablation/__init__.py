"""Ablation: remove heads from a model and measure the effect on its loss.

sites            find the attention modules of a model
hooks            read and replace the outputs of heads in a forward pass
methods          zero, mean, resample and uniform ablation: formulas, sources, replacements
ablate           the context manager `ablate`
loss             batches of model inputs, and the next-token loss of each example
loss_effects     the change of the loss with confidence intervals; gradient importance
curve            the loss as more heads are removed, compared with equally many random heads
prune, shrink    copy a model without some of its heads
experiment/      the experiment and the report of ``headwise ablate``
"""

from headwise.heads.ablation.ablate import Ablation, ablate
from headwise.heads.ablation.curve import (
    Comparison,
    Point,
    against_random,
    compared,
    curve,
    repeated,
)
from headwise.heads.ablation.loss import next_token_loss, unpredicting
from headwise.heads.ablation.loss_effects import (
    Effect,
    How,
    Importance,
    Interval,
    bootstrap,
    effect,
    effects,
    importance,
)
from headwise.heads.ablation.methods import METHODS, Method
from headwise.heads.ablation.prune import prune
from headwise.heads.ablation.sites import Site, every_head, sites

KINDS, Kind = METHODS, Method  # the earlier names

__all__ = [
    "KINDS",
    "METHODS",
    "Ablation",
    "Comparison",
    "Effect",
    "How",
    "Importance",
    "Interval",
    "Kind",
    "Method",
    "Point",
    "Site",
    "ablate",
    "against_random",
    "bootstrap",
    "compared",
    "curve",
    "effect",
    "effects",
    "every_head",
    "importance",
    "next_token_loss",
    "prune",
    "repeated",
    "sites",
    "unpredicting",
]

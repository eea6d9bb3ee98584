"""What a head does for the model's answers: taken out, weighed, removed.

sites            where the attentions of a model stand
torch_attention  PyTorch's own attention, reached into
tap              see and change what heads give, as the model runs
kinds            the ways to take a head out, each an experiment with its source
ablation         take heads out for a while
loss             how badly a model predicts each example
interval         how sure a mean over examples is
measured         what taking heads out does to the loss
importance       how much the loss depends on each head, by its gradient
against_random   some heads against as many others, on texts that repeat
pruning/         a smaller model, with heads cut out of its weights
curve            the loss as more and more heads are taken out
"""

from headwise.heads.effect.ablation import Ablation, ablate
from headwise.heads.effect.against_random import Comparison, against_random, compared, repeated
from headwise.heads.effect.curve import Point, curve
from headwise.heads.effect.importance import Importance, importance
from headwise.heads.effect.interval import Interval, bootstrap
from headwise.heads.effect.kinds import KINDS, Kind
from headwise.heads.effect.loss import next_token_loss, unpredicting
from headwise.heads.effect.measured import Effect, How, effect, effects
from headwise.heads.effect.pruning import prune
from headwise.heads.effect.sites import Site, every_head, sites

__all__ = [
    "KINDS",
    "Ablation",
    "Comparison",
    "Effect",
    "How",
    "Importance",
    "Interval",
    "Kind",
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

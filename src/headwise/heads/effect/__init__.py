"""What a head does for the model's answers: taken out, weighed, removed.

anatomy          how the libraries build an attention
sites            where the attentions of a model stand
torch_attention  PyTorch's own attention, reached into
tap              see and change what heads give, as the model runs
kinds            the ways to take a head out, each an experiment with its source
ablation         take heads out for a while
"""

from headwise.heads.effect.ablation import Ablation, ablate
from headwise.heads.effect.kinds import KINDS, Kind
from headwise.heads.effect.sites import Site, every_head, sites

__all__ = ["KINDS", "Ablation", "Kind", "Site", "ablate", "every_head", "sites"]

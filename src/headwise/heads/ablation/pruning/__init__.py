"""Prune heads from the weights of a model.

kept_heads    the kept heads and the head counts of a module
slicing       rows and columns of projections
eligibility   whether a module can be pruned
shrink        one attention module made smaller
prune         a smaller model with its configuration
"""

from headwise.heads.ablation.pruning.prune import prune

__all__ = ["prune"]

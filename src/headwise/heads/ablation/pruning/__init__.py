"""Prune heads from the weights of a model.

slicing  the kept heads of a module, and slices of its projections
shrink   one attention module made smaller
prune    whether a module can be pruned; a smaller model with its configuration
"""

from headwise.heads.ablation.pruning.prune import prune

__all__ = ["prune"]

"""Heads cut out of a model's weights.

kept           which heads stay, and which key/value heads they read
counts         the numbers by which an attention knows how many heads it has
projections    rows and columns cut out
position_bias  T5's bias of positions, layer by layer
reasons        why an attention cannot be cut
shrink         one attention made smaller
stated         a configuration that says what the model has become
prune          a smaller model
"""

from headwise.heads.ablation.pruning.prune import prune

__all__ = ["prune"]

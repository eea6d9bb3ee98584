"""Position encodings.

position    the interface, and `NoPosition`
absolute    encodings added to the input: sinusoidal, learned
rotary      rotation of queries and keys
relative    score terms for the difference key - query: Shaw, Transformer-XL
score_bias  biases added to the scores: ALiBi, T5
"""

from headwise.positions.absolute import Learned, Sinusoidal
from headwise.positions.position import NoPosition, Position, Stage
from headwise.positions.relative import Shaw, TransformerXL
from headwise.positions.rotary import Frequencies, Rotary
from headwise.positions.score_bias import ALiBi, T5Bias

POSITIONS = (ALiBi, Learned, NoPosition, Rotary, Shaw, Sinusoidal, T5Bias, TransformerXL)
"""All position encodings."""

__all__ = [
    "POSITIONS",
    "ALiBi",
    "Frequencies",
    "Learned",
    "NoPosition",
    "Position",
    "Rotary",
    "Shaw",
    "Sinusoidal",
    "Stage",
    "T5Bias",
    "TransformerXL",
]

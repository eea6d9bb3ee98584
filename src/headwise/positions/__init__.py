"""Position encodings.

position    the interface, `NoPosition`, and `Combined` of two positions
absolute    encodings added to the input: sinusoidal, learned
rotary      rotation of queries and keys
frequencies the angles of the rotation, scaled to longer texts: linear, dynamic NTK, YaRN, Llama 3
relative    score terms for the difference key - query: Shaw, Transformer-XL
score_bias  biases added to the scores: ALiBi, T5
"""

from headwise.positions.absolute import Learned, Sinusoidal
from headwise.positions.frequencies import (
    DynamicNTK,
    Frequencies,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    YaRN,
    frequencies_from,
)
from headwise.positions.position import Combined, NoPosition, Position, Stage
from headwise.positions.relative import Shaw, TransformerXL
from headwise.positions.rotary import Rotary
from headwise.positions.score_bias import ALiBi, T5Bias

POSITIONS = (ALiBi, Learned, NoPosition, Rotary, Shaw, Sinusoidal, T5Bias, TransformerXL)
"""All position encodings."""

__all__ = [
    "POSITIONS",
    "ALiBi",
    "Combined",
    "DynamicNTK",
    "Frequencies",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPE",
    "NoPosition",
    "Position",
    "Rotary",
    "Shaw",
    "Sinusoidal",
    "Stage",
    "T5Bias",
    "TransformerXL",
    "YaRN",
    "frequencies_from",
]

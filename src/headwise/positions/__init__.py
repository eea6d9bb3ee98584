"""Positions: where a token stands. One position, one file."""

from headwise.positions.alibi import ALiBi
from headwise.positions.learned import Learned
from headwise.positions.none import NoPosition
from headwise.positions.position import Position, Stage
from headwise.positions.rotary import Rotary
from headwise.positions.shaw import Shaw
from headwise.positions.sinusoidal import Sinusoidal
from headwise.positions.t5_bias import T5Bias
from headwise.positions.transformer_xl import TransformerXL

POSITIONS = (ALiBi, Learned, NoPosition, Rotary, Shaw, Sinusoidal, T5Bias, TransformerXL)
"""Every position there is; each stands in a file of its name."""

__all__ = [
    "POSITIONS",
    "ALiBi",
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

"""Positions: where a token stands. One position, one file."""

from headwise.positions.base import Position
from headwise.positions.learned import Learned
from headwise.positions.none import NoPosition
from headwise.positions.sinusoidal import Sinusoidal

POSITIONS = (Learned, NoPosition, Sinusoidal)
"""Every position there is; each stands in a file of its name."""

__all__ = ["POSITIONS", "Learned", "NoPosition", "Position", "Sinusoidal"]

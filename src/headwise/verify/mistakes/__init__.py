"""The catalogue of mistakes. One mistake is one function and one entry of an explicit tuple."""

from headwise.verify.mistakes.around import AROUND
from headwise.verify.mistakes.base import Mistake, combine
from headwise.verify.mistakes.edges import EDGES
from headwise.verify.mistakes.inside import INSIDE
from headwise.verify.mistakes.masking import MASKING

MISTAKES: tuple[Mistake, ...] = (*INSIDE, *MASKING, *AROUND, *EDGES)
"""Every mistake there is."""

__all__ = ["MISTAKES", "Mistake", "combine"]

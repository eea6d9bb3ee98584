"""Modules: attention with its projections."""

from headwise.nn.attention import MultiheadAttention
from headwise.nn.init import INITS

__all__ = ["INITS", "MultiheadAttention"]

"""Modules: attention with its projections, and what it remembers between calls."""

from headwise.nn.attention import MultiheadAttention
from headwise.nn.cache import GrowingCache, KVCache, SlidingCache, StaticCache
from headwise.nn.conversion import Conversion, convert
from headwise.nn.flow import Flow, measure
from headwise.nn.gate import OutputGate
from headwise.nn.init import INITS, t_fixup
from headwise.nn.layouts import load_layout
from headwise.nn.logit_scale import LogitScale
from headwise.nn.memory import SegmentMemory
from headwise.nn.qk_norm import UnitNorm

__all__ = [
    "INITS",
    "Conversion",
    "Flow",
    "GrowingCache",
    "KVCache",
    "LogitScale",
    "MultiheadAttention",
    "OutputGate",
    "SegmentMemory",
    "SlidingCache",
    "StaticCache",
    "UnitNorm",
    "convert",
    "load_layout",
    "measure",
    "t_fixup",
]

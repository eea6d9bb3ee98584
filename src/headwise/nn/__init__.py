"""Attention modules with projections, their caches, initialisation and weight conversion."""

from headwise.nn.cache import (
    GrowingCache,
    KeyValues,
    KVCache,
    MemoryCache,
    SlidingCache,
    StaticCache,
)
from headwise.nn.cache_state import SegmentMemory
from headwise.nn.conversion import Conversion, convert
from headwise.nn.init import INITS, Flow, measure, t_fixup
from headwise.nn.multihead_attention import MultiheadAttention
from headwise.nn.safe_globals import SAFE_GLOBALS as SAFE_GLOBALS
from headwise.nn.submodules import LogitScale, OutputGate, UnitNorm
from headwise.nn.weight_layouts import load_layout

__all__ = [
    "INITS",
    "Conversion",
    "Flow",
    "GrowingCache",
    "KVCache",
    "KeyValues",
    "LogitScale",
    "MemoryCache",
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

"""Attention of a running model, measured without changing the model's output.

session             `capture`, the context manager
capture_options     its options, validated
recorder            collects statistics and weights while a capture is open
transformers_hooks  records models of transformers
module_hooks        records `nn.MultiheadAttention` and `headwise.MultiheadAttention`
from_tensors        `measure`: statistics of plain q, k and v
block_weights       blocks of queries, and their weights as the model computes them
pattern             mask and bias, a block at a time
token_positions     which tokens keys and queries are, with a cache too
"""

from headwise.heads.capture.from_tensors import measure
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.session import capture

__all__ = ["Recorder", "capture", "measure"]

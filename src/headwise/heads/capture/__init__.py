"""Measure the attention of a running model without changing the model's output.

session             `capture`, the context manager
capture_options     the validated options of `capture`
recorder            collects statistics and attention weights during a capture
transformers_hooks  records the attention of transformers models
module_hooks        records `nn.MultiheadAttention` and `headwise.MultiheadAttention`
from_tensors        `measure`, which measures the attention of q, k and v
block_weights       attention weights of blocks of queries, as the model computes them
pattern             allowed pairs and biases of blocks of queries
token_positions     positions and token ids of queries and keys, also with a cache
"""

from headwise.heads.capture.from_tensors import measure
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.session import capture

__all__ = ["Recorder", "capture", "measure"]

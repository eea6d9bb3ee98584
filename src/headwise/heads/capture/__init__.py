"""Attention of a running model, measured without changing what it answers.

weights      the attention weights of one block of queries, as the model computes them
recorder     what an open capture collects
huggingface  the doors of transformers' models
"""

from headwise.heads.capture.huggingface import capture
from headwise.heads.capture.recorder import Recorder

__all__ = ["Recorder", "capture"]

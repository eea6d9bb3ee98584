"""Attention of a running model, measured without changing what it answers.

pattern        who may attend to whom, and what is added, a block at a time
weights        the attention weights of one block of queries, as the model computes them
texts          which tokens keys and queries are, with a cache too
recorder       what an open capture collects
replaced       putting a function in a method's place, and taking it away again
huggingface    the door of transformers' models
torch_modules  the door of nn.MultiheadAttention
bare           the door of bare q, k and v
own_modules    the door of headwise.MultiheadAttention
opening        `capture` itself
"""

from headwise.heads.capture.bare import measure
from headwise.heads.capture.opening import capture
from headwise.heads.capture.recorder import Recorder

__all__ = ["Recorder", "capture", "measure"]

"""Attention of transformers models, run by headwise as an attention implementation.

`register` registers the name "headwise" with transformers: the function that the attentions of a
model call (attention_function), with logit soft-capping, and the function that makes
their masks (transformers_masks). `switch` sets a model to it, and `restore` back.
"""

from headwise.nn.huggingface.attention_function import (
    NAME,
    Switched,
    pretrained,
    register,
    restore,
    switch,
)

__all__ = ["NAME", "Switched", "pretrained", "register", "restore", "switch"]

"""Attention of transformers models, run by headwise as an attention implementation.

`register` gives transformers the name "headwise", the attention function (attention_function) and
the mask function (transformers_masks). `switch` sets a model to it, and `restore` back.
"""

from headwise.nn.huggingface.attention_function import NAME, pretrained, register, restore, switch

__all__ = ["NAME", "pretrained", "register", "restore", "switch"]

"""transformers' models run by headwise, as an attention implementation of that name.

`register` makes the name known, with the function that a model's attentions call (attention) and
the one that makes their masks (masks); `exchange` sets a whole model to it, and `restore` back.
"""

from headwise.nn.huggingface.attn_implementation import (
    NAME,
    Exchange,
    exchange,
    pretrained,
    register,
    restore,
)

__all__ = ["NAME", "Exchange", "exchange", "pretrained", "register", "restore"]

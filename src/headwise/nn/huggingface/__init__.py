"""The attention implementation "headwise" for transformers models.

`register` registers its attention function (attention_function) and its mask function
(transformers_masks). `switch` makes a model use the implementation, and `restore` undoes this.
"""

from headwise.nn.huggingface.attention_function import NAME, pretrained, register, restore, switch

__all__ = ["NAME", "pretrained", "register", "restore", "switch"]

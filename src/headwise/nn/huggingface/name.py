"""The name under which transformers finds headwise."""

from headwise.errors import MissingExtra
from headwise.nn.huggingface.attention import attention
from headwise.nn.huggingface.masks import described

NAME = "headwise"
"""What ``model.set_attn_implementation`` and ``attn_implementation=`` are given."""


def register() -> None:
    """Make "headwise" an attention implementation of transformers; again changes nothing.

    Afterwards ``model.set_attn_implementation("headwise")`` and
    ``from_pretrained(..., attn_implementation="headwise")`` work. `headwise.convert` does both, and
    can add a mask or choose an engine.

    Raises:
        MissingExtra: if transformers (>= 5) is not installed.

    Example:
        >>> register()
        >>> from transformers import AttentionInterface
        >>> NAME in AttentionInterface().valid_keys()
        True
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, described)

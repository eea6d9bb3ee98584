"""The name under which transformers finds headwise."""

from headwise.errors import MissingExtra
from headwise.nn.huggingface import attention, masks

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
        attention.enter(NAME)
        masks.enter(NAME)
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error

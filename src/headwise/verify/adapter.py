"""The way out for a target that is not recognised: five lines that the user writes."""

from headwise.errors import BadFile

EXAMPLE = """\
from torch.func import functional_call
from yours import YourAttention
def attention(x, weights, heads, mask=None):
    named = {"your_query.weight": weights.q, "your_query.bias": weights.q_bias}
    return functional_call(YourAttention(x.shape[-1], heads), named, (x, mask))"""
"""An adapter: x is (B, L, E); weights has q, k, v, out and q_bias, k_bias, v_bias, out_bias in
PyTorch's orientation, y = x Wᵀ + b; mask is (B, H, L, L), True where a query may attend, or None.
It returns the output (B, L, E), or the output and the weights (B, H, L, L)."""


class NotRecognised(BadFile):
    """A target that cannot be called without the user's help; the message shows an adapter."""


def not_recognised(what_en: str, what_zh: str) -> NotRecognised:
    """The error for a target that needs an adapter.

    Example:
        >>> print(str(not_recognised("no weight is known", "")).splitlines()[0])
        target: no weight is known; write an adapter and verify that, as file.py:attention
    """
    return NotRecognised(
        f"target: {what_en}; write an adapter and verify that, as file.py:attention\n{EXAMPLE}",
        f"目标：{what_zh}；请写一个适配函数并验证它：file.py:attention\n{EXAMPLE}",
    )


def no_function(what_en: str, what_zh: str) -> BadFile:
    """The error for a function of q, k and v, which no adapter mends."""
    return BadFile(
        f"target: {what_en}; expected f(q, k, v, mask=None) on (B, H, L, D), giving (B, H, L, Dv)",
        f"目标：{what_zh}；应为作用于 (B, H, L, D) 的 f(q, k, v, mask=None)，给出 (B, H, L, Dv)",
    )


def no_memory(name: str, said: str) -> BadFile:
    """The error for a target that ran out of memory."""
    what = " ".join(said.split())[:200]
    return BadFile(
        "target: {name} ran out of memory: {what}; expected a few MiB at these sizes: "
        "look for what grows without end, or allow more with --memory-limit",
        name=name,
        what=what,
    )


def without_example(error: NotRecognised) -> BadFile:
    """The same error in one line, for a place that shows the adapter on its own."""
    en, zh = (text.removesuffix(EXAMPLE).strip() for text in (error.text.en, error.text.zh))
    return BadFile(en, zh)

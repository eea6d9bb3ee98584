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


def not_recognised(what_en: str, what_zh: str) -> BadFile:
    """The error for a target that needs an adapter; it shows one."""
    lines = EXAMPLE.replace("\n", "; ").replace(":;", ":").replace("    ", "")
    return BadFile(
        f"target: {what_en}; write an adapter and verify that, file.py:attention: {lines}",
        f"目标：{what_zh}；请写一个适配函数并验证它，file.py:attention：{lines}",
    )

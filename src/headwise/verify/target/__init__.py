"""Load the target named on the command line, and the errors of a target that cannot be used.

Loading runs the target's code.
"""

from headwise.errors import BadFile
from headwise.lang import Text, Translated

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


def not_recognised(reason: Text) -> NotRecognised:
    """The error for a target that needs an adapter.

    Example:
        >>> print(str(not_recognised(Text("no weight is recognised"))).splitlines()[0])
        target: no weight is recognised; write an adapter and verify that, as file.py:attention
    """
    return NotRecognised(
        "target: {reason}; write an adapter and verify that, as file.py:attention\n{example}",
        reason=reason,
        example=EXAMPLE,
    )


def no_function(reason: Text) -> BadFile:
    """The error for a function of q, k and v that cannot be called."""
    return BadFile(
        "target: {reason}; expected f(q, k, v, mask=None) on (B, H, L, D), giving (B, H, L, Dv)",
        reason=reason,
    )


def no_memory(name: str, details: str | Text) -> BadFile:
    """The error for a target that ran out of memory."""
    return BadFile(
        "target: {name} ran out of memory: {details}; expected a few MiB at these sizes: "
        "look for what grows without end, or allow more with --memory-limit",
        name=name,
        details=" ".join(details.split())[:200] if isinstance(details, str) else details,
    )


def one_line(error: BaseException | None, limit: int = 200) -> str:
    """The type and the message of an error, in one line of limited length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:limit]


def without_example(error: NotRecognised) -> BadFile:
    """The same error in one line, for a place that shows the adapter on its own."""
    en, zh = (text.removesuffix(EXAMPLE).strip() for text in (error.text.en, error.text.zh))
    return BadFile(Translated(en, zh))


RUNS_CODE = Text("This runs the code of the target as it stands, with your rights.")


def load(target: str) -> object:
    """The class, function or module that ``file.py:Name`` or ``package.Name`` names.

    Raises:
        BadFile: if there is no such file or name, if importing it raises, or if the name is
            nothing that can be called.
    """
    from headwise.verify.target.loading import load_target

    return load_target(target)

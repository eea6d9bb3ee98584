"""`capture`, the context manager."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from headwise.errors import BadType, BadValue
from headwise.heads.capture.capture_options import CaptureOptions
from headwise.heads.capture.module_hooks import FUSED, headwise_hooks, torch_hooks
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.transformers_hooks import transformers_hooks
from headwise.heads.names import Head


@contextmanager
def capture(
    model: nn.Module,
    *,
    want: Collection[str] | None = None,
    heads: Collection[Head | str] | str = (),
    rows: Sequence[int] | None = None,
    separators: Collection[int] = (),
    punctuation: Collection[int] = (),
) -> Iterator[Recorder]:
    """Measure every head of a model while it runs, without changing its output.

    Statistics are computed block by block; only the weights of ``heads`` are stored as Lq × Lk.

    Args:
        model: a module in eval mode with attention from transformers (>= 5, with "sdpa", "eager"
            or "headwise"), `nn.MultiheadAttention` or `headwise.MultiheadAttention`.
        want: names of metrics, such as ["entropy", "previous"]; None for those in
            `headwise.heads.metrics.MEASURED`.
        heads: the heads whose attention weights are stored: "L0H2,L1H8", ["L0H2"], a collection of
            `headwise.heads.names.Head`, or "all".
        rows: the indices of the queries in a forward pass whose weights are stored; None for all.
        separators: the ids of special tokens such as [SEP].
        punctuation: the ids of punctuation tokens.

    Yields:
        A `Recorder`. Its ``statistics`` cover all forward passes; its ``weights`` and ``allowed``,
        (B, rows, Lk) for each of the ``heads``, are those of the last forward pass.

    Raises:
        BadType: if ``model`` is a compiled or scripted module, or an argument has the wrong type.
        BadValue: if ``model`` is in training mode, uses an unsupported implementation, calls no
            attention that can be captured, is already being captured, computes another formula or
            outputs NaN for a token; if a metric is unknown; or if a head does not exist.
        MissingExtra: if ``model`` is from transformers and transformers is not installed.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiheadAttention(8, 2, batch_first=True, mask=hw.causal()).eval()
        >>> x = torch.zeros(1, 4, 8)
        >>> with hw.capture(layer, want=["distance"]) as seen:
        ...     _ = layer(x, x, x)
        >>> seen.statistics.value(seen.statistics.metrics[0], seen.statistics.heads()[0])
        0.75
    """
    _check(model)
    options = CaptureOptions.parse(want, heads, rows, separators, punctuation)
    recorder = Recorder(model, options)
    with ExitStack() as stack:
        stack.enter_context(transformers_hooks(recorder))
        stack.enter_context(torch_hooks(recorder))
        stack.enter_context(headwise_hooks(recorder))
        if not isinstance(model, (nn.MultiheadAttention, *FUSED)):
            before = model.register_forward_pre_hook(recorder.start, with_kwargs=True)
            after = model.register_forward_hook(recorder.stop, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield recorder
    recorder.finish()


def _check(model: object) -> None:
    compiled = hasattr(model, "_orig_mod")
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule) or compiled:
        kind = "a compiled module" if compiled else type(model).__name__
        raise BadType(
            "model: expected a plain nn.Module, got {kind}; capture the original module instead",
            kind=kind,
        )
    if model.training:
        raise BadValue("model: expected eval mode, got training mode; call model.eval() first")

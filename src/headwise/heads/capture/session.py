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
    """Measure every head of a model while it runs, without a change of its output.

    Statistics are computed block by block; nothing of size Lq × Lk is kept but the chosen weights.

    Args:
        model: a module in eval mode whose attentions are those of transformers (>= 5, on "sdpa",
            "eager" or "headwise"), `nn.MultiheadAttention` or `headwise.MultiheadAttention`.
        want: names of metrics, such as ["entropy", "previous"]; None means those in
            `headwise.heads.metrics.MEASURED`.
        heads: the heads whose full weights are kept, such as "L0H2,L1H8", ["L0H2"] or
            `headwise.heads.names.Head`; or "all".
        rows: the queries whose weights are kept, counted in each pass from 0; None means all.
        separators: the ids of special tokens such as [SEP].
        punctuation: the ids of punctuation.

    Yields:
        A `Recorder`: its ``statistics`` add up over all passes; ``weights`` and ``allowed``, (B,
        rows, Lk) for each of the heads, are those of the last pass.

    Raises:
        BadType: if the model is no module that Python runs, or an argument has the wrong type.
        BadValue: if the model is in training mode, runs on a fused implementation, calls no
            attention that can be captured, is already being captured, computes another formula or
            outputs NaN for a real token; if a metric is unknown; or if a head does not exist.
        MissingExtra: if a transformers model is given and transformers is not installed.

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
            "model: expected a module that Python runs, got {kind}, which shows nothing "
            "of its inside; capture the module that it was made from",
            kind=kind,
        )
    if model.training:
        raise BadValue(
            "model: expected eval mode, where dropout does nothing; call model.eval() first"
        )

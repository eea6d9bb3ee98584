"""Statistics of plain q, k and v: the attention of `headwise.attend` on them, measured."""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor, nn

from headwise.call import Call
from headwise.errors import BadValue
from headwise.heads.capture.block_weights import AttentionTerms, WeightBlock
from headwise.heads.capture.capture_options import CaptureOptions
from headwise.heads.capture.pattern import CallPattern
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.token_positions import KeyInfo
from headwise.heads.names import Head
from headwise.masks import Mask
from headwise.masks.patterns.composed import Appended
from headwise.positions import Position, Stage


def terms_of_call(call: Call) -> AttentionTerms:
    """The terms of one of headwise's own attentions."""
    q, k = call.position.content(call.q, call.k, call.shape)

    def values(block: WeightBlock) -> Tensor | None:
        first = call.shape.offset + block.part.rows.start
        query = torch.arange(first, first + block.weights.shape[2], device=q.device)
        key = torch.arange(block.part.keys.start, block.part.keys.stop, device=q.device)
        return call.position.values(block.weights, query, key)

    added = values if Stage.VALUES in call.position.stages else None
    appended = call.mask.count if isinstance(call.mask, Appended) else 0
    terms = q, k, call.v, call.scale, CallPattern(call), call.softcap, call.sinks
    return AttentionTerms(*terms, values=added, appended=appended)


def real_keys(call: Call) -> Tensor | None:
    """(B, n), False on padding, for the keys that are tokens: not for appended ones."""
    mask, shape = call.mask, call.shape
    if isinstance(mask, Appended) and mask.own is not None:
        shape = replace(shape, keys=mask.own)
        mask = mask.inner
    return mask.unpadded_keys(shape)


def measure(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    position: Position | None = None,
    scale: float | None = None,
    want: Collection[str] | None = None,
    heads: Collection[Head | str] | str = (),
) -> Recorder:
    """Measure the attention of q, k and v, a block of queries at a time.

    Args:
        q: (B, H, Lq, D), as for `headwise.attend`; so are the next five.
        k: (B, G, Lk, D).
        v: (B, G, Lk, Dv).
        mask: the allowed pairs.
        position: the position encoding.
        scale: the factor on the scores.
        want: names of metrics; None means those in `headwise.heads.metrics.MEASURED`.
        heads: the heads of layer 0 whose full weights are kept, such as "L0H2,L0H5" or "all".

    Returns:
        A `Recorder` with one layer, L0.

    Raises:
        BadType, BadValue: if an argument is wrong, or there is no query, no key or no such head.

    Example:
        >>> import headwise as hw
        >>> q = k = v = torch.eye(4)[None, None] * 40
        >>> seen = measure(q, k, v, mask=hw.causal(), want=["self"])
        >>> round(seen.statistics.value(seen.statistics.metrics[0], Head.parse("L0H0")), 6)
        1.0
    """
    options = CaptureOptions.parse(want, heads)
    q, k, v = (tensor.detach() if isinstance(tensor, Tensor) else tensor for tensor in (q, k, v))
    call = Call.of(q, k, v, mask=mask, position=position, scale=scale)
    module, terms = nn.Module(), terms_of_call(call)
    if not terms.measurable:
        batch, heads_count, queries, _ = terms.size
        raise BadValue(
            "q, k: expected at least one sample, head, query and key, got B={batch}, H={heads}, "
            "Lq={queries}, Lk={tokens}, of which nothing can be measured",
            batch=batch,
            heads=heads_count,
            queries=queries,
            tokens=terms.tokens,
        )
    recorder = Recorder(module, options)
    key_info = KeyInfo(real_keys(call), False, call.shape.offset)
    with torch.no_grad():
        recorder.take(module, terms, None, key_info)
    recorder.finish()
    return recorder

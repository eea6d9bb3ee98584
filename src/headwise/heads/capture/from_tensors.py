"""Statistics of bare q, k and v: what `headwise.attend` would do with them, measured."""

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
    """What one of headwise's own attentions is computed from."""
    q, k = call.position.content(call.q, call.k, call.shape)
    adds = Stage.VALUES in call.position.stages

    def values(block: WeightBlock) -> Tensor | None:
        first = call.shape.offset + block.part.rows.start
        query = torch.arange(first, first + block.weights.shape[2], device=q.device)
        key = torch.arange(block.part.keys.start, block.part.keys.stop, device=q.device)
        return call.position.values(block.weights, query, key)

    return AttentionTerms(
        q=q,
        k=k,
        v=call.v,
        scale=call.scale,
        pattern=CallPattern(call),
        sink=call.sinks,
        values=values if adds else None,
        appended=call.mask.count if isinstance(call.mask, Appended) else 0,
    )


def real_keys(call: Call) -> Tensor | None:
    """(B, n), False on padding among the keys of the text: appended keys are none of it."""
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
        mask: who may attend.
        position: where tokens stand.
        scale: the factor on the scores.
        want: names of what is measured; None means everything in `headwise.heads.metrics.MEASURED`.
        heads: the heads whose full weights are kept, such as "L0H2,L0H5" or "all"; they are heads
            of layer 0.

    Returns:
        A `Recorder` with one layer, L0.

    Raises:
        BadType, BadValue: an argument is wrong, there is no query or no key, or no head of a name
            that is asked for; the message says which.

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
    _check_some(terms)
    recorder = Recorder(module, options)
    key_info = KeyInfo(real_keys(call), False, call.shape.offset)
    with torch.no_grad():
        recorder.take(module, terms, None, key_info)
    recorder.finish()
    return recorder


def _check_some(terms: AttentionTerms) -> None:
    """Refuse a call that has nothing to measure."""
    if not terms.measurable:
        batch, heads, queries, _ = terms.size
        raise BadValue(
            "q, k: expected at least one sample, head, query and key, got B={batch}, "
            "H={heads}, Lq={queries}, Lk={tokens}, of which nothing can be measured",
            batch=batch,
            heads=heads,
            queries=queries,
            tokens=terms.tokens,
        )

"""Statistics of bare q, k and v: what `headwise.attend` would do with them, measured."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from headwise.call import Call
from headwise.heads.capture.pattern import CallPattern
from headwise.heads.capture.recorder import Recorder, Wanted
from headwise.heads.capture.texts import Told
from headwise.heads.capture.weights import Block, Terms
from headwise.heads.names import Head
from headwise.masks import Mask
from headwise.positions import Position, Stage


def terms_of(call: Call) -> Terms:
    """What one of headwise's own attentions is computed from."""
    q, k = call.position.content(call.q, call.k, call.frame)
    adds = Stage.VALUES in call.position.stages

    def values(block: Block) -> Tensor | None:
        first = call.frame.offset + block.part.rows.start
        query = torch.arange(first, first + block.weights.shape[2], device=q.device)
        key = torch.arange(block.part.keys.start, block.part.keys.stop, device=q.device)
        return call.position.values(block.weights, query, key)

    return Terms(
        q=q,
        k=k,
        v=call.v,
        scale=call.scale,
        pattern=CallPattern(call),
        sink=call.sinks,
        values=values if adds else None,
    )


def measure(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    position: Position | None = None,
    scale: float | None = None,
    want: Collection[str] | None = None,
    heads: Collection[Head] = (),
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
        heads: the heads whose full weights are kept; they are heads of layer 0.

    Returns:
        A `Recorder` with one layer, L0.

    Raises:
        BadType, BadValue: an argument is wrong; the message names it.

    Example:
        >>> import headwise as hw
        >>> q = k = v = torch.eye(4)[None, None] * 40
        >>> seen = measure(q, k, v, mask=hw.causal(), want=["self"])
        >>> round(seen.statistics.value(seen.statistics.metrics[0], Head.parse("L0H0")), 6)
        1.0
    """
    q, k, v = (each.detach() for each in (q, k, v))
    call = Call.of(q, k, v, mask=mask, position=position, scale=scale)
    module = nn.Module()
    recorder = Recorder(module, Wanted(metrics=Wanted.named(want), heads=frozenset(heads)))
    told = Told(call.mask.real_keys(call.frame), False, call.frame.offset)
    with torch.no_grad():
        recorder.take(module, terms_of(call), None, told)
    return recorder

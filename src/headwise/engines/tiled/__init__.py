"""Attention whose cost follows the pattern, not Lq Lk.

The mask says which tiles it leaves empty; bands become overlapping views of the keys and go to the
fused kernel as one batch, other tiles are gathered, and parts that share queries are merged by
their logsumexp. Forward and backward, nothing of size (Lq, Lk) ever being written.

    apart               heads with different masks, each mask on its own
    layers              a mask taken apart: `bands`, `lines` and `tiles`, each giving parts
    parts               blocks of queries and keys; `rows` says which; `far` tells places apart
    scores              what the scores of a part get: mask and bias
    forward, backward   over all parts; `blocks` and `kernel` compute one
    function, operator  the doors for autograd and for torch.compile
    dropped             the door for autograd of a call with dropout
    reasons             when it cannot run, and when it has nothing to win
"""

import torch
from torch import Tensor

from headwise.call import Call, Result
from headwise.engines.dropping import with_dropout
from headwise.engines.sinks import widened
from headwise.engines.tiled import kernel
from headwise.engines.tiled.apart import groups, separately
from headwise.engines.tiled.dropped import dropped, plain
from headwise.engines.tiled.encoding import encode, known
from headwise.engines.tiled.far import pays as far_pays
from headwise.engines.tiled.function import Setting, tiled
from headwise.engines.tiled.operator import operator
from headwise.engines.tiled.reasons import pays, why_not
from headwise.positions import Stage
from headwise.positions.base import Far
from headwise.positions.relative import Relative, differences

NAME = "tiled"


def run(call: Call) -> Result:
    """Attention a part at a time; see the package."""
    if call.dropout:
        return dropped(call) if plain(call) else with_dropout(call, run)
    apart = groups(call)
    return _run(call) if len(apart) == 1 else separately(call, apart, _run)


def _run(call: Call) -> Result:
    """The same for heads with one mask, or with masks that cannot be told apart."""
    q, k = call.position.content(call.q, call.k, call.frame)
    q, k, v, asked = (kernel.packed(t) for t in widened(call, q, k, call.v, call.q))
    relative = _relative(call, asked)
    far = _far(call, k, v)
    more = () if far is None else (*far.keys, *far.values)
    width, held = v.shape[3], [q, k, v, *more]
    if kernel.fused(q) and Stage.VALUES not in call.position.stages:
        held = kernel.even(*held)
    q, k, v, *further = held
    if torch.compiler.is_compiling():
        offset, scale = call.frame.offset, call.scale
        output, logsumexp = operator(q, k, v, *encode(call.mask), offset, scale, call.sinks)
    else:
        setting = Setting(
            call.mask,
            call.position,
            call.scale,
            call.frame,
            tuple(each is not None for each in relative),
            None if far is None else far.reach,
            call.sinks is not None,
        )
        known = [each for each in relative if each is not None]
        sinks = () if call.sinks is None else (call.sinks,)
        tensors = (q, k, v, asked, *known, *further, *sinks)
        output, logsumexp = tiled(setting, *tensors, *_learned(call))
    sums = logsumexp if "logsumexp" in call.need else None
    return Result(output[..., :width].to(call.v.dtype), logsumexp=sums)


def _relative(call: Call, asked: Tensor) -> Relative:
    """What the position adds at every difference of a key and a query, if that is all it adds."""
    if Stage.SCORES not in call.position.stages:
        return Relative()
    with torch.autocast(asked.device.type, enabled=False):
        found = call.position.relative(differences(*call.places()), asked, call.scale)
    return found or Relative()


def _far(call: Call, k: Tensor, v: Tensor) -> Far | None:
    """What stands for k and v where pairs are far apart, if most are."""
    with torch.autocast(k.device.type, enabled=False):
        far = call.position.far(k, v)
    if far is None or not far_pays(call.mask, call.frame, far.reach):
        return None
    return far


def _learned(call: Call) -> list[Tensor]:
    """Tensors beside q, k and v that want a gradient."""
    held = encode(call.mask)[1] if known(call.mask) else []
    return [t for t in (*call.position.parameters(), *held) if t.requires_grad]


__all__ = ["NAME", "pays", "run", "why_not"]

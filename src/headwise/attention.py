"""`attend`: attention by the first engine in order of preference that can run it."""

import sys
from collections.abc import Collection
from dataclasses import replace
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional

from headwise.call import Call, Result
from headwise.engines import ENGINES, Engine, best, nonfinite
from headwise.errors import BadValue, EngineRefused, one_of
from headwise.lang import Text, joined
from headwise.masks import Mask
from headwise.positions import Position
from headwise.score_functions import ScoreMod
from headwise.shapes import Keys, Queries, Values

AUTO = "auto"


@overload
def attend(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    mask: Mask | Tensor | None = None,
    position: Position | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    score_mod: ScoreMod | None = None,
    need: None = None,
    engine: str = AUTO,
) -> Tensor: ...
@overload
def attend(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    mask: Mask | Tensor | None = None,
    position: Position | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    score_mod: ScoreMod | None = None,
    need: Collection[str],
    engine: str = AUTO,
) -> Result: ...
def attend(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    mask: Mask | Tensor | None = None,
    position: Position | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    offset: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    score_mod: ScoreMod | None = None,
    need: Collection[str] | None = None,
    engine: str = AUTO,
) -> Tensor | Result:
    """Compute softmax(f(q kᵀ · scale) + bias) v over the keys that the mask allows, for each head.

    Args:
        q: queries (B, H, Lq, D).
        k: keys (B, G, Lk, D); G divides H, and query head h uses key head h // (H / G).
        v: values (B, G, Lk, Dv).
        mask: which query may attend to which key. In a boolean tensor, True means may attend; a
            float tensor is added to the scaled scores. A fully masked query has output 0 and
            gradient 0.
        position: a position encoding of matching sizes, such as `ALiBi`, `Rotary`, `Shaw`, `T5Bias`
            or `TransformerXL`.
        scale: factor on the scores; None means 1/sqrt(D).
        dropout: probability of dropping a weight; the caller passes 0 outside training.
        offset: position of the first query among the keys; None means Lk - Lq, which aligns the
            last query with the last key.
        sinks: one extra logit per head (H,) in every softmax, which belongs to no key. So a head
            can attend to nothing: its weights sum to less than 1. A logit of 0 is Miller's "softmax
            off by one"; -inf disables the sink.
        softcap: c in c · tanh(scores / c), applied to the scaled scores before any bias; None
            means no cap.
        score_mod: a function ``(score, b, h, q_idx, kv_idx) -> score`` of the scaled and capped
            scores, as in `torch.nn.attention.flex_attention`, with ``q_idx`` counted from 0. Its
            arguments are tensors that broadcast; the scores are float32 at least. To mask a pair,
            use ``mask``; see `headwise.from_mask_mod`.
        need: further results to return: "weights", "logsumexp", and the statistics of the weights
            "entropy", "received", "distance" and "largest"; see `Result`. None returns the output
            alone.
        engine: "auto" chooses an engine; a name runs that engine or raises.

    Returns:
        The output (B, H, Lq, Dv), or with ``need`` a `Result` with the output in ``.output``.

    Raises:
        BadValue, BadType: an argument is wrong; the message names it.
        EngineRefused: the named engine cannot run this call; the message lists every reason.

    Source: Vaswani et al. 2017, equation 1; its Q, K, V are q, k, v of one head here. Sinks: Xiao
        et al. 2023 (StreamingLLM), and the model card of gpt-oss (OpenAI 2025). Soft cap: Gemma 2
        (Riviere et al. 2024), section 2.

    Example:
        >>> import torch, headwise as hw
        >>> q, k, v = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 2, 3)
        >>> hw.attend(q, k, v)  # equal scores: the mean of the values
        tensor([[[[1., 1., 1.]]]])
    """
    refuse_context_parallel()
    call = Call.of(
        q,
        k,
        v,
        mask=mask,
        position=position,
        scale=scale,
        dropout=dropout,
        offset=offset,
        sinks=sinks,
        softcap=softcap,
        score_mod=score_mod,
        need=() if need is None else need,
    )
    result = _in_autocast_dtype(nonfinite.run(choose(call, engine), call), q.device.type)
    return result.output if need is None else result


def _in_autocast_dtype(result: Result, device_type: str) -> Result:
    """The result with its output in the dtype of `torch.autocast`, if that is active.

    Some engines compute in float32 there, and `F.scaled_dot_product_attention` returns this dtype.
    """
    output = result.output
    known = torch.amp.is_autocast_available(device_type)
    if output.dtype == torch.float64 or not (known and torch.is_autocast_enabled(device_type)):
        return result
    return replace(result, output=output.to(torch.get_autocast_dtype(device_type)))


def choose(call: Call, engine: str) -> Engine:
    """Return the engine that runs the call; raise if the named engine cannot run it."""
    if engine == AUTO:
        return best(call)
    check_engine(engine)
    chosen = next(candidate for candidate in ENGINES if engine == candidate.NAME)
    reasons = list(chosen.why_not(call))
    if reasons:
        raise EngineRefused(
            "engine: '{engine}' cannot run this call: {reasons}; use engine='{auto}'",
            engine=engine,
            reasons=joined(Text("; "), reasons),
            auto=AUTO,
        )
    return chosen


_CONTEXT_PARALLEL = tuple(
    f"torch.distributed.tensor.experimental.{module}"
    for module in ("_context_parallel._attention", "_attention")
)
"""Modules in which torch versions store the functions that `context_parallel` has replaced."""


def refuse_context_parallel() -> None:
    """Raise inside `context_parallel`, where q, k and v are a part of the sequence."""
    for name in _CONTEXT_PARALLEL:
        replaced = getattr(sys.modules.get(name), "_replaced_functions", None)
        if replaced and functional.scaled_dot_product_attention in replaced:
            raise BadValue(
                "attend: inside context_parallel, q, k and v are one part of the sequence; only "
                "torch's own attention reads the other parts; leave the context, or use "
                "F.scaled_dot_product_attention in it"
            )


def check_engine(engine: str) -> None:
    """Check that an argument is the name of an engine or "auto"."""
    names = (AUTO, *(candidate.NAME for candidate in ENGINES))
    if engine not in names:
        raise one_of("engine", engine, names)

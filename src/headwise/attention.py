"""`attend`: attention by the preferred engine that can run it."""

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
    """softmax(f(q kᵀ · scale) + bias) v over the keys that the mask allows, for each head.

    Args:
        q: queries (B, H, Lq, D).
        k: keys (B, G, Lk, D); G divides H, and query head h reads key head h // (H / G).
        v: values (B, G, Lk, Dv).
        mask: which query may attend to which key. In a boolean tensor True means may attend; a
            float tensor is added to the scaled scores. A fully masked query gives 0, with gradient
            0.
        position: a position encoding, such as `ALiBi`, `Rotary`, `Shaw`, `T5Bias` or
            `TransformerXL`, of matching sizes.
        scale: factor on the scores; None means 1/sqrt(D).
        dropout: probability with which a weight is dropped; the caller passes 0 outside training.
        offset: position of the first query among the keys; None means Lk - Lq, so that the last
            query stands at the last key.
        sinks: one logit per head (H,), a further term of every softmax that belongs to no key. A
            head may so attend to nothing: its weights sum to less than 1. 0 is Miller's
            "softmax off by one", -inf none.
        softcap: c in c · tanh(scores / c), applied to the scaled scores before any bias; None
            means no cap.
        score_mod: a function ``(score, b, h, q_idx, kv_idx) -> score`` of the scaled and capped
            scores, as `torch.nn.attention.flex_attention` takes it: ``q_idx`` counts the queries
            from 0. It is called with tensors that broadcast, the scores in float32 at least. What
            blocks a pair belongs into ``mask``; see `headwise.from_mask_mod`.
        need: what else to return: "weights", "logsumexp", and the statistics of the weights
            "entropy", "received", "distance" and "largest"; see `Result`. None gives the bare
            output.
        engine: "auto" chooses; a name runs that engine or raises.

    Returns:
        The output (B, H, Lq, Dv), or with ``need`` a `Result` whose ``.output`` it is.

    Raises:
        BadValue, BadType: an argument is wrong; the message names it.
        EngineRefused: the engine named cannot run this call; the message has every reason.

    Source: Vaswani et al. 2017, equation 1; Q, K, V there are one head's q, k, v here. Sinks: Xiao
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
    if output.dtype == torch.float64 or not torch.is_autocast_enabled(device_type):
        return result
    return replace(result, output=output.to(torch.get_autocast_dtype(device_type)))


def choose(call: Call, engine: str) -> Engine:
    """The engine that runs the call; refuses one chosen by name that cannot."""
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
"""Where versions of torch keep the functions that `context_parallel` has replaced."""


def refuse_context_parallel() -> None:
    """Refuse a call inside `context_parallel`, where q, k and v are a part of the sequence."""
    for name in _CONTEXT_PARALLEL:
        replaced = getattr(sys.modules.get(name), "_replaced_functions", None)
        if replaced and functional.scaled_dot_product_attention in replaced:
            raise BadValue(
                "attend: inside context_parallel q, k and v are one part of the sequence, and only "
                "torch's own attention reaches the others; leave the context, or use "
                "F.scaled_dot_product_attention there"
            )


def check_engine(engine: str) -> None:
    """Check that an argument is the name of an engine, or "auto"."""
    names = (AUTO, *(candidate.NAME for candidate in ENGINES))
    if engine not in names:
        raise one_of("engine", engine, names)

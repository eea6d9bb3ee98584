"""One attention, step by step, from what an article gives; a step can be replaced.

A table is named by its key and its head from 1, or None for all heads. The keys are those of
`headwise.explain.trace.KEYS`, the weights "W_q", "W_k", "W_v" and "W_out" as (inputs, outputs), and
their biases "b_q" to "b_out". A table that is not given and cannot be computed is left out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Place = tuple[str, int | None]
Tables = dict[Place, Tensor]


def softmax_of_rows(scores: Tensor) -> Tensor:
    """Softmax over the keys; a row that is blocked everywhere gives zeros."""
    return scores.softmax(-1).nan_to_num(0.0)


def blocked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores with minus infinity where a mask is False; a mask of floats is added."""
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


@dataclass(frozen=True, eq=False)
class StepRules:
    """How each step is computed; ``scale`` None means 1/sqrt(D).

    ``mask`` is (L, S) or (H, L, S), True where a query may attend, or floats that are added.
    """

    scale: float | None = None
    mask: Tensor | None = None
    score: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.T
    block: Callable[[Tensor, Tensor | None], Tensor] = blocked
    weigh: Callable[[Tensor], Tensor] = softmax_of_rows
    reweigh: Callable[[Tensor, Tensor | None], Tensor] = lambda weights, _: weights
    mix: Callable[[Tensor, Tensor], Tensor] = lambda weights, v: weights @ v
    order: Callable[[list[Tensor]], list[Tensor]] = lambda heads: heads
    finish: Callable[[Tensor, Tensor], Tensor] = lambda concat, weight: concat @ weight


def attention_tables(given: Tables, heads: int, steps: StepRules) -> Tables:
    """Every quantity that the given tables determine, in float64."""
    tables: Tables = {}
    for name, source in (("q", "x"), ("k", "memory"), ("v", "memory")):
        _project(name, given, tables, heads, source)
    parts = []
    for head in range(1, heads + 1):
        _one_head(head, given, tables, steps)
        if ("head", head) in tables:
            parts.append(tables["head", head])
    if ("x", None) in given:
        tables["x", None] = given["x", None]
    if len(parts) == heads:
        tables["concat", None] = torch.cat(steps.order(parts), 1)
        _output(given, tables, steps)
    tables |= {place: table for place, table in given.items() if place[0].startswith("W_")}
    for key in ("W_q", "W_k", "W_v"):
        if (key, None) in given and given[key, None].shape[1] % heads == 0:
            columns = given[key, None].chunk(heads, 1)
            tables |= {(key, head): part for head, part in enumerate(columns, start=1)}
    return tables


def _project(name: str, given: Tables, tables: Tables, heads: int, source: str) -> None:
    """Q, K or V of all heads and of each head; fewer heads of K and V are shared evenly."""
    x = given.get((source, None), given.get(("x", None)))
    weight = given.get((f"W_{name}", None))
    own = sorted(((h, t) for (key, h), t in given.items() if key == name and h), key=lambda p: p[0])
    whole = given.get((name, None))
    if own:
        of_heads = [table for _, table in own]
        whole = torch.cat(of_heads, 1)
    elif whole is None and x is not None and weight is not None:
        bias = given.get((f"b_{name}", None), torch.zeros(()).double())
        whole = x @ weight + bias
    if whole is None:
        return
    if not own:
        of_heads = list(whole.chunk(_groups(name, whole.shape[1], tables, heads), 1))
    tables[name.upper(), None] = whole
    if heads % len(of_heads) == 0:
        shared = heads // len(of_heads)
        tables |= {(name, head): of_heads[(head - 1) // shared] for head in range(1, heads + 1)}


def _groups(name: str, width: int, tables: Tables, heads: int) -> int:
    """How many heads share the columns of K or V: as many as Q has, or fewer."""
    q, k = tables.get(("q", 1)), tables.get(("K", None))
    if name == "k" and q is not None and width % q.shape[1] == 0:
        return width // q.shape[1]
    if name == "v" and q is not None and k is not None and k.shape[1] % q.shape[1] == 0:
        return k.shape[1] // q.shape[1]
    return heads


def _one_head(head: int, given: Tables, tables: Tables, steps: StepRules) -> None:
    q, k, v = (tables.get((name, head)) for name in "qkv")
    score, scaled = given.get(("score", head)), given.get(("scaled", head))
    if score is None and q is not None and k is not None and q.shape[1] == k.shape[1]:
        score = steps.score(q, k)
    if score is not None:
        tables["score", head] = score
        tables["scaled", head] = scaled = score * scale_of(steps, tables, head)
    elif scaled is not None:
        tables["scaled", head] = scaled
    weights = given.get(("softmax", head))
    if scaled is not None:
        _softmax(head, scaled, tables, steps)
        weights = tables.get(("softmax", head))
    elif weights is not None:
        tables["softmax", head] = weights
    if weights is not None and v is not None and weights.shape[1] == len(v):
        tables["head", head] = steps.mix(weights, v)


def _softmax(head: int, scaled: Tensor, tables: Tables, steps: StepRules) -> None:
    mask = steps.mask if steps.mask is None or steps.mask.dim() < 3 else steps.mask[head - 1]
    if mask is not None and mask.shape != scaled.shape:
        return
    masked = steps.block(scaled, mask)
    if mask is not None:
        tables["masked", head] = masked
    most = masked.amax(-1, keepdim=True)
    tables["shifted", head] = masked - torch.where(most.isfinite(), most, 0.0)
    tables["exp", head] = masked.exp()
    tables["exp_shifted", head] = tables["shifted", head].exp()
    weights = steps.reweigh(steps.weigh(masked), mask)
    tables["softmax", head] = weights


def scale_of(steps: StepRules, tables: Tables, head: int | None = 1) -> float:
    """The factor on the scores: 1/sqrt(D) where none is given and D is known, else 1."""
    if steps.scale is not None:
        return steps.scale
    k = tables.get(("k", head))
    return 1.0 if k is None else 1 / math.sqrt(k.shape[1])


def _output(given: Tables, tables: Tables, steps: StepRules) -> None:
    concat, weight = tables["concat", None], given.get(("W_out", None))
    if weight is None or weight.shape[0] != concat.shape[1]:
        return
    bias = given.get(("b_out", None), torch.zeros(()).double())
    tables["output", None] = steps.finish(concat, weight) + bias
